"""Growth between two totals, however the counters behind them moved."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from faking import GROUPS, Device
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.connectors import CounterTotals


def totals_of(*steps: tuple[int, int], epoch: int = 0) -> CounterTotals:
    """Return totals after steps of hits and misses in the first group."""
    device = Device()
    for hits, misses in steps:
        device.count(hits, misses)
    return replace(device.totals, epoch=epoch)


def numbers(totals: CounterTotals) -> list[Any]:
    """Return everything counted, for comparison."""
    histograms = [(h.counts, pytest.approx(h.sum)) for h in (totals.fetches, totals.request_misses)]
    return [totals.selections.tolist(), totals.loaded_bytes.tolist(), *histograms]


steps_of = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=6)


@settings(deadline=None, max_examples=100)
@given(before=steps_of, after=steps_of)
def test_growth_is_what_came_after(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> None:
    """Totals minus earlier totals are the totals of the steps in between."""
    grown = totals_of(*before, *after).since(totals_of(*before))
    assert numbers(grown) == numbers(totals_of(*after))
    assert grown.is_zero == (not after)


def test_a_new_epoch_begins_at_zero() -> None:
    """Counters that were set to zero have counted all they show since, also where they show more than before."""
    grown = totals_of((7, 7), epoch=1).since(totals_of((5, 5)))
    assert numbers(grown) == numbers(totals_of((7, 7)))


def test_a_count_that_fell_tells_a_reset() -> None:
    """If any one counter fell, all were set to zero, also those that have passed their old value since."""
    grown = totals_of((7, 3)).since(totals_of((5, 100)))
    assert numbers(grown) == numbers(totals_of((7, 3)))
    fetches_only = replace(
        totals_of((5, 100)), selections=np.zeros((2, 4), np.int64), loaded_bytes=np.zeros(3, np.int64)
    )
    assert numbers(totals_of((7, 3)).since(fetches_only))[0] == [[7, 3, 0, 0], [0, 0, 0, 0]]


def test_a_counter_that_wraps_has_not_fallen() -> None:
    """64 bits that run over count on from where they were."""
    before, after = totals_of((1, 1)), totals_of((1, 1), (1, 1))
    before.selections[0, 0] = np.iinfo(np.int64).max
    after.selections[0, 0] = np.iinfo(np.int64).min + 4
    assert after.since(before).selections[0].tolist() == [5, 1, 0, 0]


def test_bytes_to_the_host_grow_like_those_to_the_device() -> None:
    """What was stored alone is something counted, its growth is a difference, and its fall tells a reset."""
    before, after = (replace(totals_of(), stored_bytes=np.array([stored, 0, 1])) for stored in (64, 80))
    assert not before.is_zero
    assert after.since(before).stored_bytes.tolist() == [16, 0, 0]
    assert before.since(after).stored_bytes.tolist() == [64, 0, 1]
    assert totals_of((1, 1)).stored_bytes.tolist() == [0, 0, 0]


def test_other_groups_are_other_counters() -> None:
    """Totals of another model have nothing in common with those before."""
    other = CounterTotals.zero(((0,),))
    other.selections[0] += 3
    assert other.since(totals_of((1, 1))) is other
    assert CounterTotals.zero(GROUPS).is_zero
