"""No histogram exists that no samples could have made, and none over other bounds takes a declared one's place."""

import math
from typing import Any

import numpy as np
import pytest
from authors import GATHER
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.errors import MetricError
from hisparse.telemetry import Histogram, OffloadingConnectorStats, decode_stats, encode_stats, merge_ranks
from hisparse.telemetry.catalogue import GATHER_BUCKETS

BOUNDS = tuple(map(float, GATHER_BUCKETS))
ONE = [1, *[0] * len(BOUNDS)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((1.0,), [1, 0], math.nan), "finite"),
        (((1.0,), [1, 0], math.inf), "finite"),
        (((1.0,), [1, 0], -1.0), ">= 0"),
        (((1.0,), [1, 0], "1"), "number"),
        (((1.0,), [1, 0], 2.0**60), "2\\*\\*53"),
        (((1.0,), [0, 0], 1e6), "no sample"),
        (((1.0,), [1, 0, 0], 1.0), "one more"),
        (((1.0,), [1], 1.0), "one more"),
        (((1.0,), [1, -1], 1.0), ">= 0"),
        (((1.0,), [1, 0.5], 1.0), "whole"),
        (((1.0,), [1, True], 1.0), "number"),
        (((1.0,), 3, 1.0), "list"),
        (((2.0, 1.0), [1, 0, 0], 1.0), "increase"),
        (((), [1], 1.0), "increase"),
        (((math.nan,), [1, 0], 1.0), "finite"),
        (((math.inf,), [1, 0], 1.0), "finite"),
        ((([1],), [1, 0], 1.0), "number"),
        ((7, [1, 0], 1.0), "numbers"),
    ],
)
def test_what_no_samples_could_give_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    """A histogram is valid from its making on."""
    with pytest.raises(MetricError, match=message):
        Histogram(*arguments)


def test_numbers_of_numpy_become_plain() -> None:
    """A histogram made of arrays travels as one made of lists."""
    made = Histogram(np.array([1, 2]), np.array([1, 0, 2]), np.float64(7.5))
    assert made == Histogram((1.0, 2.0), [1, 0, 2], 7.5)
    assert [type(made.sum), *map(type, made.bounds)] == [float] * 3


@pytest.mark.parametrize(
    "spoiled",
    [
        Histogram.of_lanes(BOUNDS, 1, math.nan),
        Histogram.of_lanes(BOUNDS, 1, -1.0),
        Histogram.of_lanes(BOUNDS, 1 << 64 * (len(BOUNDS) + 1), 1.0),
        Histogram.of_lanes(BOUNDS, -1, 1.0),
        Histogram.of_lanes(BOUNDS, 1, np.float64(1.0)),
        Histogram.of_lanes(list(BOUNDS), 1, 1.0),  # type: ignore[arg-type]  # the point
        Histogram((1.0,), [1, 0], 1.0),
    ],
)
def test_a_spoiled_histogram_is_counted_and_the_next_one_fits(spoiled: Histogram) -> None:
    """What somebody made of a histogram, or over other bounds than are declared, leaves nothing in its place."""
    stats = OffloadingConnectorStats()
    stats.merge_histogram(GATHER, spoiled)
    assert sum(stats.errors.values()) == 1
    stats.merge_histogram(GATHER, Histogram(BOUNDS, ONE, 1e-6))
    decoded = decode_stats(encode_stats(stats))
    assert decoded is not None
    assert decoded.reduce() == {f"{GATHER}_count": 1, f"{GATHER}_sum": 1e-6}


@pytest.mark.parametrize("as_bytes", [False, True])
def test_other_bounds_of_one_rank_do_not_refuse_the_others(*, as_bytes: bool) -> None:
    """A rank of another version, first or last, loses its own histogram alone."""
    good, odd = OffloadingConnectorStats(), OffloadingConnectorStats(catalogue={})  # type: ignore[arg-type]  # declares nothing
    good.merge_histogram(GATHER, Histogram(BOUNDS, ONE, 1e-6))
    odd.merge_histogram(GATHER, Histogram((1.0,), [1, 0], 0.5))
    said = [encode_stats(stats) if as_bytes else stats.to_dict() for stats in (odd, good)]
    for order in (said, said[::-1]):
        merged = merge_ranks(order)
        assert merged.reduce() == {f"{GATHER}_count": 1, f"{GATHER}_sum": 1e-6}
        assert merged.errors == {"bucket_mismatch": 1}


@settings(deadline=None)
@given(st.lists(st.floats(), min_size=1), st.lists(st.integers() | st.floats()), st.floats() | st.integers())
def test_any_arguments_make_a_valid_histogram_or_none(bounds: Any, counts: Any, total: Any) -> None:
    """Whatever it is made of, a histogram that exists reads back from its plain form."""
    try:
        made = Histogram(bounds, counts, total)
    except MetricError:
        return
    assert Histogram.from_dict(made.to_dict()) == made
