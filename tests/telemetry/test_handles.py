"""Handles outlive drains of any number, and count what a refused one is given."""

import numpy as np
import pytest
from authors import GATHER, MOVED

from hisparse.telemetry import OffloadingConnectorStats
from hisparse.telemetry.values import MAX_SERIES

COPIED = "hisparse_hot_copied_bytes_total"


def test_a_metric_with_a_handle_records_through_any_number_of_drains() -> None:
    """Series recorded beside a handle's are admitted anew after every drain, however many there were."""
    stats = OffloadingConnectorStats()
    handle = stats.counter(COPIED, ("host_to_device", "0"))
    for _ in range(MAX_SERIES + 4):
        handle.add(1)
        stats.increase_counter(COPIED, 2, ("host_to_device", "1"))
        taken = stats.take()
    assert stats.errors == {}
    assert sorted(taken["data"][COPIED].values()) == [1, 2]


def test_handles_and_series_share_one_bound() -> None:
    """A metric has at most so many series, handles counted, and what is beyond is counted."""
    stats = OffloadingConnectorStats()
    for layer in range(MAX_SERIES):
        stats.counter(COPIED, ("host_to_device", layer))
    for _ in range(2):
        stats.increase_counter(COPIED, 1, ("host_to_device", MAX_SERIES))
        stats.increase_counter(COPIED, 1, ("host_to_device", 0))
        assert stats.errors == {"too_many_series": 1}
        assert len(stats.take()["data"][COPIED]) == 1


@pytest.mark.parametrize(("name", "labels"), [("no name", ()), (["a"], ()), (COPIED, {"direction", "layer"})])
def test_what_a_refused_counter_is_given_is_counted(name: str, labels: tuple[str, ...]) -> None:
    """Each add to a counter that could not be made is one skipped item, and so is its making."""
    stats = OffloadingConnectorStats()
    handle = stats.counter(name, labels)
    for _ in range(3):
        handle.add(5)
    assert sum(stats.errors.values()) == 4
    assert stats.to_dict()["data"] == {}


def test_what_a_refused_histogram_is_given_is_counted() -> None:
    """Each sample for a histogram that could not be made is one skipped item, and so is its making."""
    stats = OffloadingConnectorStats()
    handle = stats.histogram(GATHER, {"a": "b"})  # type: ignore[arg-type]  # the point
    handle.observe([1.0, 2.0])
    handle.observe(np.ones(3))
    handle.observe(1.0)  # type: ignore[arg-type]  # one sample alone
    assert stats.errors == {"label_mismatch": 7}


def test_a_handle_of_another_type_is_refused() -> None:
    """A counter's name gives no histogram handle, and the counter goes on."""
    stats = OffloadingConnectorStats()
    counter = stats.counter(MOVED)
    stats.histogram(MOVED).observe([1.0])
    counter.add(3)
    assert stats.errors == {"type_conflict": 2}
    assert stats.reduce() == {MOVED: 3}
