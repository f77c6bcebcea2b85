"""``hisparse generate`` as a user runs it."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from hisparse.data import long_documents, tiny_dsa_path

PROMPT = long_documents(1)[0].text[:1500]
KEYS = [
    "model", "text", "prompt_tokens", "new_tokens", "prefill_seconds", "tokens_per_second", "hot_slots", "top_k",
    "hit_ratio", "selections", "host_to_device_bytes", "device_kv_bytes", "layers",
]  # fmt: skip


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    """A prompt longer than the model's top-k."""
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT, encoding="utf-8")
    return file


def test_text_is_what_the_stock_cache_gives(run_cli: Callable[..., Result], prompt_file: Path, tmp_path: Path) -> None:
    """Greedy text in float32 from a pool on disk equals plain ``generate`` with the same chunks."""
    result = run_cli(
        *("generate", "--prompt-file", prompt_file, "--max-new-tokens", "16", "--dtype", "float32", "--json"),
        *("--prefill-chunk", "128", "--host-pool", f"disk:{tmp_path / 'pool'}", "--hot-slots", "192"),
    )
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    tokenizer = AutoTokenizer.from_pretrained(tiny_dsa_path())
    model = AutoModelForCausalLM.from_pretrained(tiny_dsa_path(), dtype=torch.float32)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    stock = model.generate(ids, do_sample=False, max_new_tokens=16, prefill_chunk_size=128)
    assert report["text"] == tokenizer.decode(stock[0, ids.shape[1] :], skip_special_tokens=True)
    assert list(report) == KEYS
    assert report["prompt_tokens"] == ids.shape[1] > 128
    assert (report["hot_slots"], report["top_k"]) == (192, 128)
    assert sum(report["selections"].values()) >= 15 * 6 * 128
    assert report["host_to_device_bytes"] == sum(layer["bytes"] for layer in report["layers"]) > 0
    assert list((tmp_path / "pool").iterdir()) == []


def test_text_streams_and_a_summary_ends_it(run_cli: Callable[..., Result]) -> None:
    """Without ``--json`` the text comes first and one summary line last."""
    result = run_cli("generate", "--prompt", PROMPT, "--max-new-tokens", "8", "--dtype", "float32")
    assert result.exit_code == 0, result.stderr
    assert re.search(
        r"\n8 tokens after \d+, \d+\.\d tokens/s, hit ratio 0\.\d{3}, [\d,]+ bytes fetched, device KV 0\.\d{4} GiB\n$",
        result.stdout,
    )


def test_prompt_may_come_from_a_pipe(run_cli: Callable[..., Result], tmp_path: Path) -> None:
    """``--prompt-file -`` reads standard input and gives what the file gives."""
    file = tmp_path / "prompt.txt"
    file.write_text("def café(x):\n", encoding="utf-8")
    rest = ("--max-new-tokens", "4", "--json")
    piped = run_cli("generate", "--prompt-file", "-", *rest, stdin=file.read_text(encoding="utf-8"))
    from_file = run_cli("generate", "--prompt-file", file, *rest)
    assert json.loads(piped.stdout)["text"] == json.loads(from_file.stdout)["text"] != ""


def test_seed_fixes_what_is_sampled(run_cli: Callable[..., Result]) -> None:
    """Equal seeds sample equal text, and another seed another one."""
    texts = [
        json.loads(
            run_cli(
                *("generate", "--prompt", "class Cache:", "--max-new-tokens", "12", "--json"),
                *("--temperature", "0.8", "--seed", seed),
            ).stdout
        )["text"]
        for seed in ("3", "3", "4")
    ]
    assert texts[0] == texts[1] != texts[2]


def test_one_token_is_enough(run_cli: Callable[..., Result]) -> None:
    """A single new token has no decode step: a rate of 0 and no selections, not an error."""
    report = json.loads(run_cli("generate", "--prompt", "x", "--max-new-tokens", "1", "--json").stdout)
    assert (report["new_tokens"], report["tokens_per_second"], report["hit_ratio"]) == (1, 0.0, 0.0)


def test_metrics_address_is_printed(run_cli: Callable[..., Result]) -> None:
    """With a port the address is printed on standard error, and standard output stays clean."""
    result = run_cli("generate", "--prompt", "x", "--max-new-tokens", "2", "--metrics-port", "0", "--json")
    assert re.search(r"metrics while this runs: http://127\.0\.0\.1:\d+/metrics", result.stderr)
    assert json.loads(result.stdout)["new_tokens"] == 2


def test_metrics_are_served_where_the_host_says(run_cli: Callable[..., Result]) -> None:
    """Another loopback address is served on request; one that is not this machine's names the option."""
    common = ("generate", "--prompt", "x", "--max-new-tokens", "1", "--metrics-port", "0", "--metrics-host")
    assert "http://127.0.0.2:" in run_cli(*common, "127.0.0.2").stderr
    result = run_cli(*common, "203.0.113.1")
    assert result.exit_code == 2
    assert "--metrics-host" in result.stderr


def test_model_without_an_indexer_is_refused(run_cli: Callable[..., Result], tmp_path: Path) -> None:
    """A model with plain attention is refused by type and reason, before its weights are looked for."""
    LlamaConfig(num_hidden_layers=1).save_pretrained(tmp_path)
    result = run_cli("generate", "--model", tmp_path, "--prompt", "x")
    assert result.exit_code == 2
    assert "'llama' can't be served from a hot buffer: it has no indexer" in result.stderr


def test_folder_that_is_no_model_is_refused(run_cli: Callable[..., Result], tmp_path: Path) -> None:
    """An empty folder, a broken config and missing weights each have a sentence."""
    empty = run_cli("generate", "--model", tmp_path, "--prompt", "x")
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    broken = run_cli("generate", "--model", tmp_path, "--prompt", "x")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_dsa_path() / name).read_bytes())
    weightless = run_cli("generate", "--model", tmp_path, "--prompt", "x")
    assert [result.exit_code for result in (empty, broken, weightless)] == [2, 2, 2]
    assert "has no config.json" in empty.stderr
    assert "is not a model config" in broken.stderr
    assert "does not load as a model" in weightless.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--prompt", "x", "--prompt-file", "y"), "exactly one of --prompt and --prompt-file, got both"),
        ((), "exactly one of --prompt and --prompt-file, got none"),
        (("--prompt", ""), "the prompt is empty"),
        (("--prompt-file", "/nonexistent"), "cannot be read"),
        (("--prompt", "x", "--model", "/nonexistent"), "model folder /nonexistent does not exist"),
        (("--prompt", "x", "--hot-slots", "127"), "hot_slots is 127, expected at least 128"),
        (("--prompt", "x", "--hot-slots", "-1"), "hot_slots must be a positive whole number, got -1"),
        (("--prompt", "x", "--host-pool", "disk:"), "empty directory name"),
        (("--prompt", "x", "--host-pool", "disk:/proc/pool"), "cannot use /proc/pool for a host pool"),
        (("--prompt", "x", "--dtype", "int7"), "dtype must be auto, float32, bfloat16, float16, got 'int7'"),
        (("--prompt", "x", "--device", "abacus"), "device 'abacus' cannot be used"),
        (("--prompt", "x", "--device", "meta"), "device 'meta' cannot be used"),
        (("--prompt", "x", "--device", "hpu"), "device 'hpu' cannot be used"),
        (("--prompt", "x", "--device", "cuda:99999999999"), "cannot be used"),
        (("--prompt", "caf\udce9"), "the prompt is not UTF-8 text, byte 3 is 0xe9: --prompt"),
        (("--prompt", "x", "--hot-slots", str(10**24)), "expected at most 32,768 (--hot-slots)"),
        (("--prompt", "x", "--max-new-tokens", "40000"), "positions, the model has 32,768"),
    ],
)
def test_bad_input_exits_with_two(run_cli: Callable[..., Result], arguments: tuple[str, ...], sentence: str) -> None:
    """Bad input gives one sentence, exit code 2 and nothing on standard output."""
    result = run_cli("generate", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--seed", "99999999999999999999999"),
        ("--seed", "-1"),
        ("--prefill-chunk", "999999999999999999999999"),
        ("--max-new-tokens", "999999999999999999999999"),
        ("--temperature", "1e-300"),
        ("--temperature", "-1"),
        ("--temperature", "inf"),
        ("--temperature", "nan"),
        ("--metrics-port", "65536"),
    ],
)
def test_numbers_out_of_range_name_their_option(run_cli: Callable[..., Result], option: str, value: str) -> None:
    """Numbers that torch or a kernel could not hold never reach them."""
    result = run_cli("generate", "--prompt", "x", option, value)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert option in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("temperature", ["0.001", "1000"])
def test_ends_of_the_ranges_work(run_cli: Callable[..., Result], temperature: str) -> None:
    """The largest seed and chunk and both ends of the temperature are served."""
    numbers = ("--seed", str(2**64 - 1), "--prefill-chunk", str(2**31 - 1), "--temperature", temperature)
    result = run_cli("generate", "--prompt", "x", "--max-new-tokens", "2", "--json", *numbers)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["new_tokens"] in (1, 2)
