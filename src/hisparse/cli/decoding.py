"""Decoding one request with one cache, timed token by token."""

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Decoded:
    """What one request produced and how long it took.

    Attributes:
        tokens: New tokens, the prompt's not among them.
        prefill_seconds: From the start to the first new token.
        step_seconds: From each new token to the next.
    """

    tokens: tuple[int, ...]
    prefill_seconds: float
    step_seconds: tuple[float, ...]


class StepClock:
    """A streamer for ``generate``: notes when each token came, and passes it on."""

    def __init__(self, on_token: Callable[[int], None] | None = None) -> None:
        """Start the clock; `on_token` is called with every new token, and its own time is not counted."""
        self._on_token = on_token
        self._resumed_at = time.perf_counter()
        self._is_prompt = True
        self.tokens: list[int] = []
        self.seconds: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt (the first call) or the next token, int64 ``[1]`` or ``[1, S]``."""
        if self._is_prompt:
            self._is_prompt = False
            return
        self.seconds.append(time.perf_counter() - self._resumed_at)
        for token in value.flatten().tolist():
            self.tokens.append(token)
            if self._on_token is not None:
                self._on_token(token)
        self._resumed_at = time.perf_counter()

    def end(self) -> None:
        """Nothing is held back, so nothing is left to do."""


def decode(
    model: Any,
    cache: Any,
    prompt: Sequence[int],
    *,
    on_token: Callable[[int], None] | None = None,
    **settings: Any,
) -> Decoded:
    """Generate from one prompt with `cache`, which keeps what was decoded.

    Args:
        model: A transformers causal language model.
        cache: A cache that is empty, or holds all of the prompt but a tail.
        prompt: Token ids, all of them also where the cache holds a part.
        on_token: Called with every new token between steps.
        settings: Go to ``generate``.
    """
    clock = StepClock(on_token)
    ids = torch.tensor([list(prompt)], device=model.device)
    # The argument was renamed in transformers 5.24; the old name warns there, the new one is unknown before.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with torch.inference_mode():
        model.generate(ids, attention_mask=torch.ones_like(ids), streamer=clock, **{name: cache}, **settings)
    return Decoded(tuple(clock.tokens), clock.seconds[0], tuple(clock.seconds[1:]))


def decode_greedily(
    model: Any,
    cache: Any,
    prompt: Sequence[int],
    *,
    new_tokens: int,
    prefill_chunk: int | None,
) -> Decoded:
    """Exactly `new_tokens` greedy tokens, with `decode`; an end token does not end it."""
    return decode(
        model,
        cache,
        prompt,
        do_sample=False,
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        prefill_chunk_size=prefill_chunk,
    )


@dataclass(frozen=True)
class Sizes:
    """How much a run decodes, and how much is hot.

    Attributes:
        new_tokens: Tokens to decode for each request.
        prefill_chunk: Prompt tokens in one forward pass.
        hot_slots: Hot slots of one request and layer.
        top_k: Positions one query selects.
    """

    new_tokens: int
    prefill_chunk: int
    hot_slots: int
    top_k: int

    def selecting_queries(self, context_tokens: int, *, held_tokens: int = 0) -> int:
        """Queries whose rows are read through the hot buffer, counted from the sizes alone.

        Every decoded token but the last is a query. A prompt chunk that finds rows held is also read that way if the
        selections of all its queries fit the hot buffer; larger chunks read the whole history.
        """
        starts = range(held_tokens, context_tokens, self.prefill_chunk)
        chunks = [min(self.prefill_chunk, context_tokens - start) for start in starts]
        later = chunks if held_tokens else chunks[1:]
        return self.new_tokens - 1 + sum(chunk for chunk in later if chunk * self.top_k <= self.hot_slots)


def median(values: Sequence[float]) -> float:
    """The middle value, or the lower of the two in the middle; 0.0 of none."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0.0


def tensor_bytes(cache: Any) -> int:
    """Bytes of the tensors that a stock cache's layers hold."""
    return sum(
        value.nbytes for layer in cache.layers for value in vars(layer).values() if isinstance(value, torch.Tensor)
    )
