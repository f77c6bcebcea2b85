"""Counters of an index group add up, or say where they do not."""

from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.errors import AccountingError
from hisparse.hot import GroupCounters


def counted() -> GroupCounters:
    """Return counters after one step of two requests and a padding row."""
    counters = GroupCounters(requests=2, layers=1)
    outcome = np.array([[2, 1, 0, 1], [0, 3, 1, 0], [0, 0, 0, 4]], np.int64)
    counters.record_selection(np.array([0, 1, -1], np.int32), outcome, 12)
    return counters


def test_outcomes_add_up_to_the_selections() -> None:
    """Hit + miss + resident + padding is what was selected, padding rows included."""
    counters = counted()
    counters.check()
    assert counters.selections.tolist() == [2, 4, 1, 5]
    assert counters.by_request.tolist() == [[2, 1, 0, 1], [0, 3, 1, 0]]


def test_a_lost_selection_is_found() -> None:
    """A selection that was counted under no outcome is reported with both sides of the sum."""
    counters = counted()
    counters.selected += 1
    with pytest.raises(AccountingError, match=r"hit 2 \+ miss 4 \+ resident 1 \+ padding 5 != 13 selections"):
        counters.check()


def test_a_copy_counts_on_its_own() -> None:
    """What a copy counts is not counted by the original, and the other way round."""
    counters = counted()
    copy = counters.copy()
    counters.record_load(0, 64, 0.1)
    counters.record_store(0, 32)
    counters.record_selection(np.array([0], np.int32), np.array([[4, 0, 0, 0]], np.int64), 4)
    assert copy.selections.tolist() == [2, 4, 1, 5]
    assert (copy.loaded_bytes.tolist(), copy.fetches.count, copy.selected) == ([0], 0, 12)
    assert (copy.stored_bytes.tolist(), counters.copy().stored_bytes.tolist()) == ([0], [32])
    copy.check()


def test_room_for_more_requests_keeps_the_counts() -> None:
    """Growing the batch keeps every count; shrinking it does not lose one either."""
    counters = counted()
    counters.grow_requests(5)
    counters.grow_requests(1)
    assert counters.by_request.tolist() == [[2, 1, 0, 1], [0, 3, 1, 0], [0] * 4, [0] * 4, [0] * 4]
    assert counters.selections.tolist() == [2, 4, 1, 5]
    counters.check()


def test_loads_are_counted_by_layer_and_duration() -> None:
    """Bytes go to their layer and durations to their bucket, without loss."""
    counters = GroupCounters(requests=1, layers=2)
    counters.record_load(1, 640, 3e-5)
    counters.record_load(1, 64, 100.0)
    assert counters.loaded_bytes.tolist() == [0, 704]
    assert counters.fetches.count == 2
    assert counters.fetches.counts[-1] == 1
    assert counters.fetches.sum == pytest.approx(100.00003)


def test_misses_are_counted_by_request_and_step() -> None:
    """Rows of one request count together, steps apart, and padding rows are nobody's."""
    counters = GroupCounters(requests=3, layers=1)
    rows = np.array([[0, 3, 0, 1], [1, 2, 0, 1], [4, 0, 0, 0], [0, 0, 0, 4]], np.int64)
    counters.record_selection(np.array([1, 1, 2, -1], np.int32), rows, 16)
    counters.record_selection(np.array([2], np.int32), np.array([[0, 4, 0, 0]], np.int64), 4)
    misses = counters.request_misses
    assert (misses.count, misses.sum) == (3, 9)
    assert [misses.counts[misses.bounds.index(bound)] for bound in (0.0, 5.0)] == [1, 2]
    assert counters.copy().request_misses.to_dict() == misses.to_dict()
    counters.check()


def test_lost_misses_of_requests_are_found() -> None:
    """Misses that no request had are reported with both sides of the sum."""
    counters = counted()
    counters.request_misses.observe(7)
    with pytest.raises(AccountingError, match=r"misses of the requests 11\.0 != miss 4"):
        counters.check()


def test_a_reused_array_of_requests_counts_as_it_was() -> None:
    """The caller may write to its array of requests after the call, as engines do with their buffers."""
    counters, requests = GroupCounters(requests=2, layers=1), np.array([0], np.int32)
    for request in (0, 1):
        requests[:] = request
        counters.record_selection(requests, np.array([[1, 3, 0, 0]], np.int64), 4)
    assert counters.by_request.tolist() == [[1, 3, 0, 0], [1, 3, 0, 0]]


@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(st.lists(st.integers(-1, 4), max_size=70), max_size=150),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_steps_add_up(steps: list[list[int]], seed: int) -> None:
    """However many steps of however many rows come, every request's sums and the histogram are exact."""
    generator = np.random.default_rng(seed)
    counters, expected, misses = GroupCounters(requests=5, layers=1), np.zeros((6, 4), np.int64), []
    for step in steps:
        counts = generator.integers(0, 9000, (len(step), 4))
        counters.record_selection(np.array(step, np.int32), counts.copy(), int(counts.sum()))
        neighbours = groupby(zip(step, counts, strict=True), key=lambda row: row[0])
        for request, rows in neighbours:
            outcome = sum((row[1] for row in rows), np.zeros(4, np.int64))
            expected[request] += outcome
            misses += [outcome[1]] if request >= 0 else []
    assert counters.by_request.tolist() == expected[:5].tolist()
    assert counters.selections.tolist() == expected.sum(axis=0).tolist()
    bounds = (*counters.request_misses.bounds, np.inf)
    assert counters.request_misses.counts == [
        sum(low < n <= high for n in misses) for low, high in pairwise((-1, *bounds))
    ]
