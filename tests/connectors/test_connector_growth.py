"""What a histogram grew by."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.connectors.growth import grown
from hisparse.telemetry import Histogram

BOUNDS = (1.0, 10.0)
SAMPLES = st.lists(st.integers(0, 100), max_size=8)


def counted(samples: list[int]) -> Histogram:
    """Return a histogram of samples."""
    histogram = Histogram.empty(BOUNDS)
    for sample in samples:
        histogram.observe(sample)
    return histogram


@settings(deadline=None)
@given(SAMPLES, SAMPLES)
def test_growth_is_what_came_after(before: list[int], after: list[int]) -> None:
    """Samples counted after others are the growth, buckets and sum; and without them there is none back."""
    assert grown(counted(before + after), counted(before)) == counted(after)
    assert (grown(counted(before), counted(before + after)) is None) == bool(after)


def test_other_buckets_are_another_histogram() -> None:
    """Everything is new where the bounds are."""
    now = counted([5])
    assert grown(now, Histogram((2.0,), [7, 7], 50.0)) is now


def test_rounding_makes_no_sum_below_zero() -> None:
    """A sum that fell by a rounding error grew by nothing."""
    grew = grown(Histogram(BOUNDS, [2, 0, 0], 0.3), Histogram(BOUNDS, [1, 0, 0], 0.30000000000000004))
    assert grew == Histogram(BOUNDS, [1, 0, 0], 0.0)
