"""Recording and merging take anything: what cannot be used is counted, and nothing raises."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from authors import GATHER, HITS, MOVED, UnspeakableError, fails
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.telemetry import (
    HiSparseConnectorStats,
    HiSparseKVConnectorStats,
    OffloadingConnectorStats,
    merge_ranks,
    merge_step,
)

COPIED = "hisparse_hot_copied_bytes_total"
Record = Callable[[Any], None]


class Scalar:
    """A tensor without axes, as far as a reader sees."""

    ndim = 0

    def __init__(self, value: Any) -> None:
        """Hold the number."""
        self._value = value

    def item(self) -> Any:
        """Return the number."""
        return self._value

    def __iter__(self) -> Any:
        """Refuse, as tensors do."""
        raise TypeError("iteration over a 0-d tensor")


class Speechless:
    """A value of somebody else's class that has no text."""

    def __str__(self) -> str:
        """Raise."""
        raise UnspeakableError

    __repr__ = __str__


ODD: list[Any] = [
    *(None, True, "a", b"abc", ["a"], {"a": 1}, {1.0}, object(), Speechless(), Scalar("a"), Scalar(fails)),
    *(np.array([0, 1]), np.array(["a"]), Fraction(10**400, 3), 10**5000, 10**1000, float("nan"), -1, 1j),
    *(range(2), Ellipsis, UnspeakableError, ("host_to_device", 10**1000), ("\ud800", "a")),
]


def recordings(stats: Any) -> list[Record]:
    """Return every way to record in `stats`, of one argument each."""
    ways: list[Record] = [
        lambda odd: stats.increase_counter(odd, 1),
        lambda odd: stats.increase_counter(MOVED, odd),
        lambda odd: stats.increase_counter(COPIED, 1, odd),
        lambda odd: stats.set_gauge(odd, 1),
        lambda odd: stats.set_gauge("hisparse_host_used_bytes", odd),
        lambda odd: stats.set_gauge("hisparse_host_used_bytes", 1, odd),
        lambda odd: stats.merge_histogram(odd, odd),
        lambda odd: stats.merge_histogram(GATHER, odd),
        lambda odd: stats.set_info(odd, odd),
        lambda odd: stats.set_info("hisparse_hot_config_info", {"top_k": odd}),
        stats.aggregate,
        lambda odd: stats.aggregate({"types": odd, "data": odd, "info": odd, "rank": odd, "ranks": odd}),
        lambda odd: stats.aggregate_as({"ranks": {"1": odd}, "telemetry_errors": odd}, odd),
    ]
    if isinstance(stats, OffloadingConnectorStats):
        ways += [
            lambda odd: stats.observe_histogram(odd, 1.0),
            lambda odd: stats.observe_histogram(GATHER, odd),
            lambda odd: stats.observe_histogram(GATHER, 1.0, odd),
            lambda odd: stats.counter(odd, odd).add(odd),
            lambda odd: stats.counter(MOVED).add(odd),
            lambda odd: stats.histogram(odd, odd).observe(odd),
            lambda odd: stats.histogram(GATHER).observe(odd),
        ]
    else:
        ways += [
            lambda odd: stats.record_snapshot(odd, odd, odd),
            lambda odd: stats.record_host_usage(odd, odd),
            lambda odd: stats.record_residency(odd, odd),
            lambda odd: stats.record_residency("host_block_lifetime_seconds", odd),
        ]
    return ways


@pytest.mark.parametrize("kind", [OffloadingConnectorStats, HiSparseConnectorStats])
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_recording_takes_anything(kind: Callable[..., Any], odd: Any) -> None:
    """Every call with any value returns, and what is recorded afterwards still travels."""
    stats = kind()
    for record in recordings(stats):
        record(odd)
    stats.increase_counter("hisparse_hot_selections_total", 5, ("hit", "0"))
    plain = kind(stats.take()).to_dict()
    assert plain.get("metrics", plain)["data"]["hisparse_hot_selections_total"] == {'["hit","0"]': 5}


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_merging_takes_anything(odd: Any) -> None:
    """Any value among what ranks say, and as a rank, costs itself alone."""
    good = HiSparseKVConnectorStats({"host_to_device_bytes": [7]})
    merged = merge_ranks([odd, good, OffloadingConnectorStats(rank=odd), HiSparseKVConnectorStats(rank=odd)])
    assert {sample.name: sample.value for sample in merged.samples() if sample.name == MOVED} == {MOVED: 7}
    step = merge_step(odd, good)
    assert step is not None
    assert {sample.name: sample.value for sample in step.samples() if sample.name == MOVED} == {MOVED: 7}


@pytest.mark.parametrize(
    "labels", [{"host_to_device": 1, "0": 2}, {"host_to_device", "0"}, b"ab", np.array(["a", "b"]), 7]
)
def test_labels_in_no_order_are_refused(labels: Any) -> None:
    """A dict, a set, bytes or an array is no tuple of label values: it is counted, not recorded under what it holds."""
    stats = OffloadingConnectorStats()
    stats.increase_counter(COPIED, 1, labels)
    assert stats.errors == {"label_mismatch": 1}
    assert stats.to_dict()["data"] == {}


@pytest.mark.parametrize("digits", [17, 1000, 5000])
def test_a_label_that_is_a_long_number_is_refused(digits: int) -> None:
    """A whole number becomes a label value where it is one that a payload may hold."""
    stats = OffloadingConnectorStats()
    stats.increase_counter(COPIED, 1, ("host_to_device", 10**digits))
    assert stats.errors == {"out_of_range": 1}


@pytest.mark.parametrize(
    "sample", [np.array(0.5), np.float32(0.5), Scalar(0.5), [Scalar(0.5)], np.array([0.5]), (0.5,)]
)
def test_a_sample_without_axes_is_a_number(sample: Any) -> None:
    """Arrays and tensors of no dimension are read as the number in them."""
    stats = OffloadingConnectorStats()
    stats.observe_histogram(GATHER, sample)
    stats.histogram(GATHER).observe(sample)
    assert stats.reduce() == {f"{GATHER}_count": 2, f"{GATHER}_sum": 1.0}
    stats.set_gauge("hisparse_host_used_bytes", sample[0] if isinstance(sample, list | tuple) else sample)
    assert stats.errors == ({"wrong_type": 1} if isinstance(sample, np.ndarray) and sample.ndim else {})


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 19), st.sampled_from(ODD)), max_size=12))
def test_no_sequence_of_odd_calls_raises(calls: list[tuple[int, Any]]) -> None:
    """Odd values one after the other leave a container that still counts."""
    stats = OffloadingConnectorStats()
    ways = recordings(stats)
    for way, odd in calls:
        ways[way % len(ways)](odd)
    stats.increase_counter(HITS, 3)
    assert OffloadingConnectorStats(stats.take()).to_dict()["data"][HITS][""] >= 3
