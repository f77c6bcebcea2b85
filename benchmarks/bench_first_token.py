"""Milliseconds to the first token of a second question about a 4,096-token document, by what is computed for it.

The document was asked about before, and its rows are in the host pool: in memory, and in a file. Restored, only the
question is computed; recomputed, all of it, by the same cache with an empty pool and by the stock cache. A second
table has what it costs to leave the rows there: publishing once at the end, noting the tokens at every step.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging

import harness
from bench_decode import run_step
from hisparse.data import long_documents, tiny_dsa_path
from hisparse.integrations.transformers import HiSparseCache, enable
from hisparse.integrations.transformers.tokens import SeenTokens, TokenRecord

DOCUMENT_TOKENS, QUESTION_TOKENS, CHUNK = 4096, 24, 512
GOAL = 10.0
STEPS = 200


def prefill(model: Any, cache: Any, prompt: torch.Tensor) -> None:
    """Run what `cache` does not hold of `prompt` ``[1, T]``: the first token is known afterwards."""
    for chunk in prompt[:, cache.get_seq_length() :].split(CHUNK, dim=1):
        run_step(model, chunk, cache)


def asked_before(model: Any, prompt: torch.Tensor, host_pool: str) -> tuple[HiSparseCache, float]:
    """Return an empty cache whose pool has the pages of `prompt`, and the seconds it took to publish them."""
    cache = HiSparseCache(model.config, host_pool=host_pool, max_positions=2 * DOCUMENT_TOKENS)
    prefill(model, cache, prompt)
    started = time.thread_time()
    cache.publish()
    seconds = time.thread_time() - started
    cache.reset()
    return cache, seconds


def contenders(model: Any, caches: dict[str, HiSparseCache], question: torch.Tensor) -> dict[str, Any]:
    """Return what is measured by name: each call ends with the first token of the answer known."""
    config, limit = model.config, 2 * DOCUMENT_TOKENS

    def restored(cache: HiSparseCache) -> None:
        tokens = cache.adopt_prefix(question)
        if tokens != DOCUMENT_TOKENS:
            raise RuntimeError(f"{tokens} tokens were restored, expected {DOCUMENT_TOKENS}")
        prefill(model, cache, question)

    def with_cache(cache: HiSparseCache) -> Callable[[int], harness.Call]:
        def prepare(_call: int) -> harness.Call:
            cache.reset()
            return lambda: restored(cache)

        return prepare

    return {
        "stock, recomputed": lambda _: lambda: prefill(model, DynamicCache(config=config), question),
        "hisparse, recomputed": lambda _: lambda: prefill(model, HiSparseCache(config, max_positions=limit), question),
        **{f"hisparse, restored from {place}": with_cache(cache) for place, cache in caches.items()},
    }


def note_seconds(question: torch.Tensor) -> float:
    """Return the median seconds in which one decode step's token is noted, after a long prompt."""
    record = TokenRecord()
    mask = torch.ones(1, DOCUMENT_TOKENS + STEPS, dtype=torch.int64)
    record.append(0, SeenTokens(question[:, :DOCUMENT_TOKENS], mask[:, :DOCUMENT_TOKENS], None))
    times = []
    for step in range(DOCUMENT_TOKENS, DOCUMENT_TOKENS + STEPS):
        seen = SeenTokens(question[:, :1], mask[:, : step + 1], torch.tensor([[step]]))
        started = time.thread_time()
        record.append(step, seen)
        times.append(time.thread_time() - started)
    return statistics.median(times)


def report(model: Any, first: torch.Tensor, second: torch.Tensor, rounds: int) -> list[harness.Report]:
    """Measure all ways to the first token, and what publishing costs."""
    with tempfile.TemporaryDirectory() as folder:
        places = {"memory": "ram", "a file": f"disk:{folder}"}
        asked = {place: asked_before(model, first, host_pool) for place, host_pool in places.items()}
        caches = {place: cache for place, (cache, _) in asked.items()}
        seconds = harness.median_seconds(contenders(model, caches, second), rounds=rounds, calls=1)
        for cache in caches.values():
            cache.check()
            cache.close()
    base = seconds["hisparse, recomputed"]
    goals = [
        harness.goal(f"hisparse, recomputed / {name}", base / value, GOAL)
        for name, value in seconds.items()
        if "restored" in name
    ]
    ways = [[name, value * 1e3, base / value] for name, value in seconds.items()]
    title = f"first token of {second.shape[1]} tokens, tiny-dsa, float32, {CHUNK} tokens a chunk"
    costs: list[list[str | float | None]] = [
        [f"publish {DOCUMENT_TOKENS} tokens to {place}, once", value * 1e3] for place, (_, value) in asked.items()
    ]
    costs.append(["note the token of one step", note_seconds(second) * 1e3])
    return [
        harness.Report(title, ["", "ms", "recomputed / this"], ways, goals),
        harness.Report("what it costs to leave the rows", ["", "ms"], costs),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    asked = harness.options(__doc__ or "", argv)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    encode = AutoTokenizer.from_pretrained(tiny_dsa_path())
    tokens = torch.tensor(encode(long_documents(1)[0].text)["input_ids"])[None]
    document = tokens[:, :DOCUMENT_TOKENS]
    first, second = (
        torch.cat([document, tokens[:, start : start + QUESTION_TOKENS]], dim=1)
        for start in (100, DOCUMENT_TOKENS + 50)
    )
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(tiny_dsa_path(), dtype=torch.float32).eval()
        enable(model)
        tables = report(model, first, second, rounds=2 if asked.quick else 5)
    return harness.emit(tables, as_json=asked.json)


if __name__ == "__main__":
    harness.use_one_thread()
    sys.exit(main())
