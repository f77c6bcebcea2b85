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
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import Result

from hisparse.cli import comparison
from hisparse.cli.counts import OUTCOMES

SMALL = ("--requests", "2", "--context-tokens", "480", "--new-tokens", "6", "--prefill-chunk", "256")
KEYS = [
    "tokens_identical", "model", "requests", "context_tokens", "new_tokens", "hot_slots", "top_k", "hit_ratio",
    "selections", "host_to_device_bytes", "device_kv_bytes", "stock_kv_bytes", "step_seconds", "layers",
    "second_question",
]  # fmt: skip


@dataclass(frozen=True)
class FinishedDemo:
    """One demo in a process of its own: what it printed, left behind, and served meanwhile."""

    code: int
    stdout: str
    stderr: str
    scraped: str
    left: list[str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedDemo:
    """``hisparse demo --json`` of four requests; its metrics are scraped until they show a hit."""
    folder = tmp_path_factory.mktemp("tmp")
    command = [sys.executable, "-m", "hisparse.cli", "demo", "--json", *SMALL, "--requests", "4"]
    environment = os.environ | {"TMPDIR": str(folder)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        first_line = process.stderr.readline()
        url = first_line.removeprefix("metrics while this runs:").strip()
        scraped = ""
        while process.poll() is None and not _hits(scraped):
            with suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310  (loopback address)
                scraped = answer.read().decode()
            time.sleep(0.02)
        stdout, rest = process.communicate()
    return FinishedDemo(process.returncode, stdout, first_line + rest, scraped, [p.name for p in folder.iterdir()])


def test_progress_is_lines_where_no_bar_can_be_drawn(finished: FinishedDemo) -> None:
    """Standard error that is no terminal names each stage of each request in a line of its own."""
    lines = finished.stderr.splitlines()
    for way in ("stock cache", "resident cache", "HiSparse"):
        assert len([line for line in lines if line.endswith(f": {way}")]) == 4


def test_json_is_one_object_with_the_promised_keys(finished: FinishedDemo) -> None:
    """A fresh process prints one JSON object on standard output, exits with 0 and leaves its directory clean."""
    assert finished.code == 0, finished.stderr
    report = json.loads(finished.stdout)
    assert list(report) == KEYS
    assert report["tokens_identical"] is True
    assert (report["model"], report["requests"]) == ("tiny_dsa", 4)
    assert (report["context_tokens"], report["new_tokens"]) == (480, 24)
    assert (report["hot_slots"], report["top_k"]) == (256, 128)
    assert list(report["selections"]) == list(OUTCOMES)
    assert sum(report["selections"].values()) == (4 + 1) * 5 * 6 * 128
    assert report["hit_ratio"] == report["selections"]["hit"] / (
        report["selections"]["hit"] + report["selections"]["miss"]
    )
    assert set(report["step_seconds"]) == {"stock", "resident_absorbed", "hisparse"}
    assert [list(layer) for layer in report["layers"]] == [["layer", "group", *OUTCOMES, "bytes"]] * 6
    assert sum(layer["bytes"] for layer in report["layers"]) == report["host_to_device_bytes"] > 0
    assert report["stock_kv_bytes"] == (480 + 4 * 5) * 6 * (576 + 128) * 4
    assert report["device_kv_bytes"] > 4 * 256 * 6 * 576 * 4
    second = report["second_question"]
    assert list(second) == [
        "document", "context_tokens", "restored_tokens", "tokens_identical", "first_token_seconds"
    ]  # fmt: skip
    assert (second["restored_tokens"], second["tokens_identical"]) == (64, True)
    assert 96 < second["context_tokens"] < 120
    assert set(second["first_token_seconds"]) == {"recomputed", "restored"}
    assert [name for name in finished.left if name.startswith("hisparse")] == []


def test_tables_show_texts_layers_and_verdict(run_cli: Callable[..., Result], tmp_path: Path) -> None:
    """Without ``--json`` the texts, the three ways, six layers and the verdict are printed."""
    result = run_cli("demo", *SMALL, "--host-pool", f"disk:{tmp_path}", "--hot-slots", "128")
    assert result.exit_code == 0, result.stderr
    assert "argparse after 320 tokens:" in result.stdout
    for text in (
        "stock cache",
        "resident, absorbed",
        "HiSparse",
        "128 hot slots for top-128",
        "tokens identical: yes",
        "second question",
    ):
        assert text in result.stdout
    assert re.search(r"selections: hit [\d,]+, miss [\d,]+, resident 0, padding 0; total 11,520", result.stdout)
    assert list(tmp_path.iterdir()) == []


def test_metrics_are_served_while_it_runs(finished: FinishedDemo) -> None:
    """While requests are decoded, the endpoint shows the hits of those that are done, by group."""
    assert _hits(finished.scraped) > 0
    assert 'model_name="tiny_dsa"' in finished.scraped
    assert re.search(r'hisparse_hot_selections_total\{[^}]*group="5"[^}]*\} [1-9]', finished.scraped)
    assert re.search(r'hisparse_hot_copied_bytes_total\{[^}]*layer="5"[^}]*\} [1-9]', finished.scraped)


def test_failed_check_exits_with_one(
    run_cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A sum that does not hold is printed on standard error and makes the exit code 1; the report is still printed."""
    monkeypatch.setattr(comparison, "_recount", lambda _cache: ("recount failed: 1 + 1 != 3 pages",))
    result = run_cli(
        "demo", "--json", *SMALL, "--requests", "1", "--context-tokens", "160", "--host-pool", f"disk:{tmp_path}"
    )
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
        (("--hot-slots", "100000000"), "hot_slots is 100,000,000, expected at most 32,768 (--hot-slots)"),
        (("--new-tokens", "100000", "--context-tokens", "300"), "need 100,078 positions, the model has 32,768"),
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
    result = run_cli("demo", *arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.stderr


def test_no_temporary_directory_is_one_sentence(
    run_cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a place for its pool the demo says so, and how to name one."""
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    result = run_cli("demo", *SMALL)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no temporary directory for the host pool: ")
    assert "(TMPDIR, or --host-pool)" in result.stderr


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
