"""The one table of resolver problems: agreement tests and benchmarks take their shapes and traces from here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hisparse.kernels.residency import Residency

_FLIPPED_PAGES_RATIO = 0.1


class Step(NamedTuple):
    """Arguments of one resolve: int32 ``[B]``, int32 ``[B, K]``, int32 ``[R, pages]`` or None."""

    requests: NDArray[np.int32]
    topk: NDArray[np.int32]
    resident_pages: NDArray[np.int32] | None


@dataclass(frozen=True, slots=True)
class Case:
    """A shape and a drifting selection.

    Attributes:
        name: Name of the case in test ids and tables.
        requests: Requests (R), all of them in a step unless idle.
        top_k: Positions in a row (K).
        hot_slots: Slots of a request (H).
        max_positions: Positions a request can have.
        rows: Rows of a request in one step; above 1 as in speculative verification.
        union_rows: Different positions a request selects in one step, `top_k` where 0; at most H.
        kept_ratio: Share of a step's union that the next step selects again; the rest was not selected for
            as long as the context allows, so it is also the hit ratio of a buffer of two unions.
        page_rows: Rows in a device page.
        padding_ratio: Share of places in `topk` that are -1.
        resident_ratio: Share of pages that are resident; some of them change in each step.
        idle_ratio: Share of requests that a step answers as padding rows.
    """

    name: str
    requests: int
    top_k: int
    hot_slots: int
    max_positions: int
    rows: int = 1
    union_rows: int = 0
    kept_ratio: float = 0.9
    page_rows: int = 64
    padding_ratio: float = 0.0
    resident_ratio: float = 0.0
    idle_ratio: float = 0.0

    @property
    def selections(self) -> int:
        """Selected positions in one step, B x K."""
        return self.requests * self.rows * self.top_k

    def residency(self, backend: str, order: str) -> Residency:
        """Return a fresh residency of this shape."""
        return Residency(
            max_requests=self.requests,
            hot_slots=self.hot_slots,
            max_positions=self.max_positions,
            top_k=self.top_k,
            page_rows=self.page_rows,
            order=order,
            backend=backend,
        )


def drifting_steps(case: Case, steps: int, seed: int) -> Iterator[Step]:
    """Yield `steps` steps of a selection that drifts over the context.

    Args:
        case: Shape and drift.
        steps: Number of steps.
        seed: Seed of the trace; the same seed gives the same trace.
    """
    rng = np.random.default_rng(seed)
    unions = [_drifting_union(case, rng) for _ in range(case.requests)]
    pages = _resident_pages(case, rng) if case.resident_ratio else None
    for _ in range(steps):
        topk = np.stack([_rows(next(union), case, rng) for union in unions]).reshape(-1, case.top_k)
        topk[rng.random(topk.shape) < case.padding_ratio] = -1
        requests = np.arange(case.requests, dtype=np.int32)
        requests[rng.random(case.requests) < case.idle_ratio] = -1
        if pages is not None:
            flipped = rng.random(pages.shape) < _FLIPPED_PAGES_RATIO
            pages = np.where(flipped, _resident_pages(case, rng), pages)
        yield Step(np.repeat(requests, case.rows), topk, pages)


def _drifting_union(case: Case, rng: np.random.Generator) -> Iterator[NDArray[np.int32]]:
    """Yield the positions one request selects, step by step, walking once through a shuffled context."""
    context = rng.permutation(case.max_positions).astype(np.int32)
    size = case.union_rows or case.top_k
    num_kept = round(case.kept_ratio * size)
    union, end = context[:size], size
    while True:
        yield union
        kept = rng.permutation(union)[:num_kept]
        # walk on, over what is kept: a union never repeats a position
        ahead = np.take(context, np.arange(end, end + 2 * size), mode="wrap")
        fresh = ahead[~np.isin(ahead, kept)][: size - num_kept]
        end += int(np.flatnonzero(ahead == fresh[-1])[0]) + 1 if fresh.size else 0
        union = rng.permutation(np.concatenate([kept, fresh]))


def _rows(union: NDArray[np.int32], case: Case, rng: np.random.Generator) -> NDArray[np.int32]:
    """Return int32 ``[rows, K]``, rows that each select K positions of the union."""
    if case.rows == 1:
        return union[None, : case.top_k].copy()
    return np.stack([rng.choice(union, case.top_k, replace=False) for _ in range(case.rows)])


def _resident_pages(case: Case, rng: np.random.Generator) -> NDArray[np.int32]:
    """Return int32 ``[R, pages]`` of random device pages, -1 where not resident."""
    shape = (case.requests, -(-case.max_positions // case.page_rows))
    pages = rng.integers(0, 10_000, shape).astype(np.int32)
    return np.where(rng.random(shape) < case.resident_ratio, pages, np.int32(-1))


CASES = (
    Case("decode", 8, 2048, 4096, 131_072),
    Case("decode-all-miss", 4, 2048, 4096, 131_072, kept_ratio=0.0),
    Case("decode-half", 4, 2048, 4096, 65_536, kept_ratio=0.5, padding_ratio=0.02),
    Case("tight-buffer", 4, 2048, 2048, 32_768, kept_ratio=0.8),
    Case("resident", 4, 1024, 1536, 32_768, resident_ratio=0.4, padding_ratio=0.05),
    Case("odd-pages", 3, 300, 512, 9_999, page_rows=48, resident_ratio=0.3, idle_ratio=0.2),
    Case("speculative", 4, 512, 2048, 32_768, rows=4, union_rows=900, resident_ratio=0.2),
    Case("disjoint-rows", 2, 128, 2048, 16_384, rows=8, union_rows=2048, kept_ratio=0.3),
    Case("full-union", 2, 64, 256, 1_024, rows=8, union_rows=256, padding_ratio=0.1),
    Case("small-context", 5, 16, 24, 40, kept_ratio=0.5, idle_ratio=0.3, padding_ratio=0.1),
    Case("one-position", 3, 1, 2, 5, kept_ratio=0.0, page_rows=1, resident_ratio=0.3),
    Case("largest-buffer", 1, 2048, 32_768, 163_840, kept_ratio=0.0),
    Case("largest-union", 1, 2048, 32_768, 163_840, rows=20, union_rows=32_768, kept_ratio=0.2),
)
"""Shapes on which every backend must agree, in both orders."""


def decode_case(hit_ratio: float) -> Case:
    """Return the benchmark's shape: 8 requests, 2048 of 131072 positions, 4096 slots, at this hit ratio."""
    return Case(f"hit {hit_ratio:.0%}", 8, 2048, 4096, 131_072, kept_ratio=hit_ratio)
