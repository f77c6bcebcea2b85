"""Timing of tokens and counting of queries."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.cli.decoding import Sizes, StepClock, median


def test_clock_leaves_the_prompt_out() -> None:
    """The prompt is not a token; every later one is handed on, each with its time."""
    seen: list[int] = []
    clock = StepClock(seen.append)
    clock.put(torch.tensor([[5, 6, 7]]))
    clock.put(torch.tensor([11]))
    clock.put(torch.tensor([12]))
    clock.end()
    assert clock.tokens == seen == [11, 12]
    assert len(clock.seconds) == 2
    assert all(seconds >= 0.0 for seconds in clock.seconds)


@pytest.mark.parametrize(
    ("context", "chunk", "slots", "queries"),
    [
        (512, 512, 256, 9),  # one chunk: only decoded tokens
        (1024, 512, 256, 9),  # a second chunk too large for the hot buffer
        (1025, 512, 256, 10),  # a last chunk of one query
        (1026, 512, 256, 11),  # two queries fit twice top-k slots
        (1027, 512, 256, 9),  # three do not
        (6, 2, 256, 13),  # chunks so small that all but the first select
        (1, 512, 256, 9),
    ],
)
def test_queries_are_counted_from_sizes(context: int, chunk: int, slots: int, queries: int) -> None:
    """Ten new tokens are nine queries, and so is every query of a later chunk that fits the hot buffer."""
    counted = Sizes(10, chunk, slots, 128).selecting_queries(context)
    assert counted == queries


def test_a_first_chunk_after_restored_rows_selects() -> None:
    """Where rows are held already, the first chunk that fits the hot buffer is read through it too."""
    sizes = Sizes(10, 512, 256, 128)
    assert sizes.selecting_queries(130, held_tokens=128) == 11
    assert sizes.selecting_queries(160, held_tokens=128) == 9


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_median_is_one_of_the_values(values: list[float]) -> None:
    """At least half of the values are on each side of the median, which is one of them."""
    middle = median(values)
    assert middle in values
    assert sum(value <= middle for value in values) * 2 >= len(values)
    assert sum(value >= middle for value in values) * 2 >= len(values)


def test_median_of_nothing_is_zero() -> None:
    """A run of a single token has no steps, and a median of 0."""
    assert median([]) == 0.0
