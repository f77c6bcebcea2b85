"""``hisparse demo`` as a user runs it."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import Result

from hisparse.cli import comparison
from hisparse.cli.counts import OUTCOMES

SMALL = ("--requests", "2", "--context-tokens", "480", "--new-tokens", "6", "--prefill-chunk", "256")
KEYS = [
    "tokens_identical", "model", "requests", "context_tokens", "new_tokens", "hot_slots", "top_k", "hit_ratio",
    "selections", "host_to_device_bytes", "device_kv_bytes", "stock_kv_bytes", "step_seconds", "layers",
]  # fmt: skip


def test_json_is_one_object_with_the_promised_keys(tmp_path: Path) -> None:
    """A fresh process prints one JSON object on standard output, exits with 0 and leaves its directory clean."""
    command = [sys.executable, "-m", "hisparse.cli", "demo", "--json", *SMALL]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert list(report) == KEYS
    assert report["tokens_identical"] is True
    assert (report["model"], report["requests"]) == ("tiny_dsa", 2)
    assert (report["context_tokens"], report["new_tokens"]) == (480, 12)
    assert (report["hot_slots"], report["top_k"]) == (256, 128)
    assert list(report["selections"]) == list(OUTCOMES)
    assert sum(report["selections"].values()) == 2 * 5 * 6 * 128
    assert report["hit_ratio"] == report["selections"]["hit"] / (
        report["selections"]["hit"] + report["selections"]["miss"]
    )
    assert set(report["step_seconds"]) == {"stock", "resident_absorbed", "hisparse"}
    assert [list(layer) for layer in report["layers"]] == [["layer", "group", *OUTCOMES, "bytes"]] * 6
    assert sum(layer["bytes"] for layer in report["layers"]) == report["host_to_device_bytes"] > 0
    assert report["stock_kv_bytes"] == (325 + 165) * 6 * (576 + 128) * 4
    assert report["device_kv_bytes"] > 2 * 256 * 6 * 576 * 4
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("hisparse")] == []


def test_tables_show_texts_layers_and_verdict(run_cli: Callable[..., Result], tmp_path: Path) -> None:
    """Without ``--json`` the texts, the three ways, six layers and the verdict are printed."""
    result = run_cli("demo", *SMALL, "--host-pool", f"disk:{tmp_path}", "--hot-slots", "128")
    assert result.exit_code == 0, result.stderr
    assert "argparse after 320 tokens:" in result.stdout
    for text in ("stock cache", "resident, absorbed", "HiSparse", "128 hot slots for top-128", "tokens identical: yes"):
        assert text in result.stdout
    assert re.search(r"selections: hit [\d,]+, miss [\d,]+, resident 0, padding 0; total 7,680", result.stdout)
    assert list(tmp_path.iterdir()) == []


def test_metrics_are_served_while_it_runs() -> None:
    """While requests are decoded, the endpoint shows the hits of those that are done, by group."""
    command = [sys.executable, "-m", "hisparse.cli", "demo", "--json", "--host-pool", "ram", *SMALL]
    command[command.index("--requests") + 1] = "4"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().removeprefix("metrics while this runs:").strip()
        scraped = ""
        while process.poll() is None and not _hits(scraped):
            with suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310  (loopback address)
                scraped = answer.read().decode()
            time.sleep(0.05)
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert _hits(scraped) > 0
    assert 'model_name="tiny_dsa"' in scraped
    assert re.search(r'hisparse_hot_selections_total\{[^}]*group="5"[^}]*\} [1-9]', scraped)
    assert re.search(r'hisparse_hot_copied_bytes_total\{[^}]*layer="5"[^}]*\} [1-9]', scraped)


def test_failed_check_exits_with_one(
    run_cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A sum that does not hold is printed on standard error and makes the exit code 1; the report is still printed."""
    monkeypatch.setattr(comparison, "_recount", lambda _cache: ("recount failed: 1 + 1 != 3 pages",))
    result = run_cli("demo", "--json", *SMALL, "--requests", "1", "--host-pool", f"disk:{tmp_path}")
    assert result.exit_code == 1
    assert "check failed: argparse: recount failed: 1 + 1 != 3 pages" in result.stderr
    assert list(json.loads(result.stdout)) == KEYS


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--model", "/nonexistent"), "model folder /nonexistent does not exist"),
        (("--hot-slots", "100"), "100"),
        (("--host-pool", "disc:/tmp"), "disk:DIR"),
        (("--context-tokens", "2", "--requests", "7"), "at least 8 tokens"),
        (("--context-tokens", "900000"), "lower --context-tokens"),
    ],
)
def test_bad_input_exits_with_two(run_cli: Callable[..., Result], arguments: tuple[str, ...], sentence: str) -> None:
    """Bad input gives one sentence, exit code 2 and nothing on standard output."""
    result = run_cli("demo", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [("--requests", "0"), ("--requests", "9"), ("--new-tokens", "1"), ("--bogus",)])
def test_options_out_of_range_exit_with_two(run_cli: Callable[..., Result], arguments: tuple[str, ...]) -> None:
    """Options outside their range never start a run."""
    assert run_cli("demo", *arguments).exit_code == 2


def test_unwritable_disk_is_said_before_work(run_cli: Callable[..., Result], tmp_path: Path) -> None:
    """A pool directory that cannot be made is refused with its name, before a model is loaded."""
    blocked = tmp_path / "file"
    blocked.touch()
    result = run_cli("demo", *SMALL, "--host-pool", f"disk:{blocked / 'pool'}")
    assert result.exit_code == 2
    assert f"cannot use {blocked / 'pool'} for a host pool" in result.stderr


def test_temporary_directory_goes_after_an_error(
    run_cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The fresh pool directory is removed also when the demo is refused."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run_cli("demo", "--hot-slots", "5").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def _hits(scraped: str) -> float:
    values = re.findall(r"^vllm:hisparse_cache_hits(?:_total)?\{[^}]*\} (\S+)$", scraped, flags=re.MULTILINE)
    return sum(map(float, values))
