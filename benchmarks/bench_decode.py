"""Milliseconds of one decode step of the shipped model, by context, from four caches in the same run.

The stock cache expands every row of the context in every step; the resident cache keeps all rows on the device
and attends to the selected ones without expanding any, which is the fair baseline; HiSparse keeps them in host
memory and reads them through hot buffers of two sizes. A context is a real prompt, repeated with noise to the
length: step times depend on its length, and on its contents only through the hit ratio, which is printed.
"""

import inspect
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging

import harness
from hisparse.data import long_documents, tiny_dsa_path
from hisparse.integrations.transformers import HiSparseCache, ResidentCache, enable

PROMPT_TOKENS = 2048
CONTEXTS = (2048, 8192, 32768)
SMALL, LARGE = 2, 16
NOISE = 1e-3
WARM_UP_STEPS = 12
SPEEDUP_GOALS = {8192: 8.0, 32768: 25.0}


def prefilled(model: Any, tokens: torch.Tensor) -> DynamicCache:
    """Return a stock cache after `tokens` ``[1, T]``."""
    cache = DynamicCache(config=model.config)
    for chunk in tokens.split(512, dim=1):
        run_step(model, chunk, cache)
    return cache


def run_step(model: Any, tokens: torch.Tensor, cache: Any) -> None:
    """Run `tokens` ``[1, T]`` through the model and `cache`."""
    # transformers renamed the argument in 5.24
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    model(input_ids=tokens, use_cache=True, **{name: cache})


def repeated(model: Any, prompt: DynamicCache, context: int) -> DynamicCache:
    """Return a stock cache with the contents of `prompt` repeated to `context` tokens, no two rows equal."""

    def repeat(values: torch.Tensor) -> torch.Tensor:
        times = [1] * values.ndim
        times[-2] = -(-context // values.shape[-2])
        longer = values.repeat(times)[..., :context, :]
        return longer + NOISE * values.std() * torch.randn_like(longer)

    cache = DynamicCache(config=model.config)
    for layer, source in enumerate(prompt.layers):
        cache.update(repeat(source.keys), repeat(source.values), layer)
        cache.update_indexer(repeat(source.indexer_keys), layer)
    return cache


def taken_over(cache: Any, stock: DynamicCache) -> Any:
    """Return `cache` holding what `stock` holds."""
    cache.take_over(stock)
    return cache


def contenders(model: Any, stock: DynamicCache, steps: int) -> dict[str, Any]:
    """Return the caches by name, all holding what `stock` holds."""
    config, limit = model.config, stock.get_seq_length() + steps + 1
    small, large = SMALL * config.index_topk, LARGE * config.index_topk
    return {
        "stock": stock,
        "resident absorbed": taken_over(ResidentCache(config), stock),
        f"hisparse {SMALL}x": taken_over(HiSparseCache(config, hot_slots=small, max_positions=limit), stock),
        f"hisparse {LARGE}x": taken_over(HiSparseCache(config, hot_slots=large, max_positions=limit), stock),
    }


def decode_seconds(
    model: Any, caches: dict[str, Any], tokens: torch.Tensor, stock_steps: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Decode `tokens` with each cache in turn; return median seconds a step and hit ratios after the warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in caches}
    warm: dict[str, dict[str, int]] = {}
    for i, token in enumerate(tokens):
        for name, cache in caches.items():
            if name == "stock" and i >= stock_steps:
                continue
            started = time.thread_time()
            run_step(model, token.view(1, 1), cache)
            seconds[name].append(time.thread_time() - started)
            if i == WARM_UP_STEPS and isinstance(cache, HiSparseCache):
                warm[name] = cache.stats()["selections"]
    ratios = {}
    for name, before in warm.items():
        after = caches[name].stats()["selections"]
        hit, miss = (after[key] - before[key] for key in ("hit", "miss"))
        ratios[name] = hit / (hit + miss)
    skip = {name: 1 if name == "stock" else WARM_UP_STEPS for name in caches}
    return {name: statistics.median(values[skip[name] :]) for name, values in seconds.items()}, ratios


def report(model: Any, prompt: DynamicCache, tokens: torch.Tensor, contexts: Sequence[int]) -> harness.Report:
    """Measure every context."""
    rows, goals = [], []
    for context in contexts:
        caches = contenders(model, repeated(model, prompt, context), len(tokens))
        seconds, ratios = decode_seconds(model, caches, tokens, stock_steps=8 if context < CONTEXTS[-1] else 4)
        resident = seconds["resident absorbed"]
        for name, value in seconds.items():
            cells = (seconds["stock"] / value, value / resident, ratios.get(name))
            rows.append([f"{context} {name}", value * 1e3, *cells])
        if context in SPEEDUP_GOALS:
            claim = f"stock / hisparse {SMALL}x at {context}"
            goals.append(harness.goal(claim, seconds["stock"] / seconds[f"hisparse {SMALL}x"], SPEEDUP_GOALS[context]))
        large = f"hisparse {LARGE}x"
        claim = f"{large} / resident at {context}, hit ratio {ratios[large]:.2f}"
        goals.append(harness.goal(claim, seconds[large] / resident, 1.05, at_most=True))
        for cache in caches.values():
            if isinstance(cache, HiSparseCache):
                cache.check()
                cache.close()
    return harness.Report(
        "decode step of tiny-dsa, float32, batch 1",
        ["", "ms", "stock / this", "this / resident", "hit ratio"],
        rows,
        goals,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    asked = harness.options(__doc__ or "", argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.disable_progress_bar()
    encode: Callable[[str], Any] = AutoTokenizer.from_pretrained(tiny_dsa_path())
    text = long_documents(1)[0].text
    tokens = torch.tensor(encode(text)["input_ids"])
    steps = 40 if asked.quick else 120
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(tiny_dsa_path(), dtype=torch.float32).eval()
        prompt = prefilled(model, tokens[None, :PROMPT_TOKENS])
        enable(model)
        following = tokens[PROMPT_TOKENS : PROMPT_TOKENS + steps]
        table = report(model, prompt, following, CONTEXTS[:2] if asked.quick else CONTEXTS)
    return harness.emit([table], as_json=asked.json)


if __name__ == "__main__":
    harness.use_one_thread()
    sys.exit(main())
