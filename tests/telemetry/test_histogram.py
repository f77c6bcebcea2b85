"""Histograms as bucket counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.telemetry import Histogram
from hisparse.telemetry.histogram import observe_each, plus
from hisparse.telemetry.values import ItemError

BOUNDS = (0.5, 1.0, 2.0, 8.0)
# Eighths add up exactly in any order, so equality means equality.
SAMPLES = st.lists(st.integers(0, 80).map(lambda eighths: eighths / 8), max_size=30)


def filled(samples: list[float]) -> Histogram:
    """Return a histogram of samples."""
    histogram = Histogram.empty(BOUNDS)
    assert observe_each(histogram, samples, "x") == []
    return histogram


@settings(deadline=None)
@given(SAMPLES)
def test_buckets_include_their_upper_bound(samples: list[float]) -> None:
    """Cumulative counts are the samples at or below each bound; count and sum lose nothing."""
    histogram = filled(samples)
    below = [sum(sample <= bound for sample in samples) for bound in BOUNDS]
    assert np.cumsum(histogram.counts).tolist() == [*below, len(samples)]
    assert (histogram.count, histogram.sum) == (len(samples), sum(samples))


@settings(deadline=None)
@given(SAMPLES, SAMPLES)
def test_merging_is_observing_both(first: list[float], second: list[float]) -> None:
    """Two histograms merge into that of all samples, and the plain form reads back equal."""
    merged = filled(first)
    merged.merge(filled(second))
    assert merged == filled(first + second)
    assert Histogram.from_dict(merged.to_dict()) == merged


def test_a_copy_is_independent() -> None:
    """A copy keeps its samples when the original goes on."""
    histogram = filled([1.0])
    copy = histogram.copy()
    histogram.observe(1.0)
    assert (copy.count, histogram.count) == (1, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"count": 7},
        {"counts": [1]},
        {"counts": [1, -1, 0, 0, 0]},
        {"counts": [0.5, 0.5, 0, 0, 0]},
        {"counts": "11111"},
        {"bounds": [2, 1, 3, 4]},
        {"bounds": [1, 1, 2, 3]},
        {"bounds": []},
        {"sum": float("nan")},
        {"sum": -1},
        {"sum": None},
    ],
)
def test_a_payload_that_does_not_add_up_is_refused(change: dict[str, object]) -> None:
    """A histogram whose parts contradict each other is not read."""
    with pytest.raises(ItemError):
        Histogram.from_dict({**filled([1.0]).to_dict(), **change})


def test_a_missing_part_is_refused() -> None:
    """A histogram without its counts is not read."""
    with pytest.raises(ItemError, match="counts"):
        Histogram.from_dict({"bounds": [1], "sum": 0, "count": 0})


def test_histograms_and_numbers_do_not_add() -> None:
    """Adding a number to a histogram, or other bounds, changes nothing and is refused."""
    histogram = filled([1.0])
    for other in (3, Histogram.empty((1.0,))):
        with pytest.raises(ItemError):
            plus(histogram, other)
    assert histogram == filled([1.0])


def test_bad_samples_are_left_out_one_by_one() -> None:
    """A bad sample among good ones loses only itself."""
    histogram = Histogram.empty(BOUNDS)
    wrong = observe_each(histogram, [1.0, -1, float("nan"), "a", 2], "x")
    assert [error.reason for error in wrong] == ["negative", "not_finite", "wrong_type"]
    assert (histogram.count, histogram.sum) == (2, 3.0)
