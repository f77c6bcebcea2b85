"""Bulk samples for histograms of any class."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as PromHistogram

from hisparse.connectors.families import MAX_OBSERVATIONS, add_samples, made_up_samples
from hisparse.telemetry import Histogram

BOUNDS = (1.0, 10.0, 100.0)


def counted(samples: list[float]) -> Histogram:
    """Return a histogram of samples."""
    histogram = Histogram.empty(BOUNDS)
    for sample in samples:
        histogram.observe(sample)
    return histogram


class OnlyObserves:
    """A child of a histogram of some other library."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    def observe(self, value: float) -> None:
        """Keep the sample."""
        self.samples.append(value)


def test_whole_buckets_are_added_at_once() -> None:
    """A million samples reach prometheus_client's histogram without a call for each, counts and sum exact."""
    registry = CollectorRegistry()
    child = PromHistogram("x", "x", ["engine"], buckets=BOUNDS, registry=registry).labels("0")
    child.observe = None  # type: ignore[method-assign]  # a call would raise
    add_samples(child, Histogram(BOUNDS, [1, 999_997, 0, 2], 12.5))
    get = registry.get_sample_value
    assert get("x_bucket", {"engine": "0", "le": "1.0"}) == 1
    assert get("x_bucket", {"engine": "0", "le": "100.0"}) == 999_998
    assert get("x_count", {"engine": "0"}) == 1_000_000
    assert get("x_sum", {"engine": "0"}) == 12.5


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6, width=32), max_size=50))
def test_made_up_samples_keep_buckets_and_sum(samples: list[float]) -> None:
    """A class that can only observe gets the same count in each bucket; and the same sum."""
    histogram, child = counted(samples), OnlyObserves()
    add_samples(child, histogram)
    got = counted(child.samples)
    assert got.counts == histogram.counts
    assert got.sum == pytest.approx(histogram.sum, rel=1e-6, abs=1e-6)


def test_small_samples_beside_a_large_one_keep_their_sum() -> None:
    """A thousand samples of nearly nothing do not move to the middle of their bucket because one other is large."""
    histogram = Histogram((5.0,), [1000, 1], 5.1)
    assert sum(made_up_samples(histogram)) == pytest.approx(5.1)


def test_the_open_bucket_takes_what_is_missing() -> None:
    """Samples beyond the last bound get the sum that the others leave."""
    histogram = counted([5.5, 1000.0, 3000.0])
    assert counted(list(made_up_samples(histogram))).sum == pytest.approx(histogram.sum)


def test_a_huge_count_is_thinned_out() -> None:
    """A count in the billions makes a bounded number of calls, with the proportions of the buckets and the mean."""
    samples = list(made_up_samples(Histogram(BOUNDS, [3 * 2**40, 2**40, 0, 0], 4.0 * 2**40)))
    assert len(samples) <= MAX_OBSERVATIONS + len(BOUNDS) + 1
    assert counted(samples).counts[0] == pytest.approx(3 * counted(samples).counts[1], rel=0.01)
    assert sum(samples) / len(samples) == pytest.approx(1.0, rel=0.01)
