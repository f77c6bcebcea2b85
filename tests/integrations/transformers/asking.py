"""Questions about one document, and what the stock cache answers to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import zoo
from transformers import DynamicCache

PAGE_ROWS = 16
ANSWER = 24


def document(case: zoo.ModelCase, batch: int = 1, *, seed: int = 1, length: int = 200) -> torch.Tensor:
    """Return int64[batch, length], the same text for every request."""
    return zoo.prompt(case, 1, length=length, seed=seed).ids.repeat(batch, 1)


def ask(case: zoo.ModelCase, text: torch.Tensor, *, seed: int, length: int = 21) -> torch.Tensor:
    """Return the document followed by a question of each request's own, int64[B, T]."""
    generator = torch.Generator().manual_seed(case.seed * 1000 + seed)
    return torch.cat([text, torch.randint(1, zoo.VOCABULARY, (len(text), length), generator=generator)], dim=1)


def answer(model: Any, ids: torch.Tensor, cache: Any, **options: Any) -> torch.Tensor:
    """Generate `ANSWER` greedy tokens after `ids`."""
    given = zoo.Prompt(ids, torch.ones_like(ids))
    return zoo.generate(model, given, cache=cache, **{"max_new_tokens": ANSWER, **options})


def stock_answer(stock: Any, before: torch.Tensor, restored: int, ids: torch.Tensor) -> torch.Tensor:
    """Return what the stock cache generates after `ids` when it kept `restored` tokens of the earlier `before`.

    Rows depend on how many tokens a forward pass has, by rounding, so the reference computes the kept ones in the
    same pass.
    """
    cache = DynamicCache(config=stock.config)
    with torch.no_grad():
        stock(input_ids=before, use_cache=True, **zoo.cache_argument(stock, cache))
    cache.crop(restored - before.shape[1])
    return answer(stock, ids, cache)


@contextmanager
def forward_tokens(model: Any) -> Iterator[list[int]]:
    """Collect the tokens of every forward pass of `model` while the block runs, over all requests."""
    passes: list[int] = []
    embeddings = model.get_input_embeddings()
    hook = embeddings.register_forward_hook(lambda _module, args, _output: passes.append(args[0].numel()))
    try:
        yield passes
    finally:
        hook.remove()
