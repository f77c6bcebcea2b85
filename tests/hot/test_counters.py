"""Counters of an index group add up, or say where they do not."""

import numpy as np
import pytest

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
    counters.record_selection(np.array([0], np.int32), np.array([[4, 0, 0, 0]], np.int64), 4)
    assert copy.selections.tolist() == [2, 4, 1, 5]
    assert (copy.loaded_bytes.tolist(), copy.fetches.count, copy.selected) == ([0], 0, 12)
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
