"""Statistics as bytes between processes, of this version and of others."""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.telemetry import (
    HiSparseConnectorStats,
    HiSparseKVConnectorStats,
    OffloadingConnectorStats,
    decode_stats,
    encode_stats,
    merge_ranks,
)
from hisparse.telemetry.values import MAX_RANK, MAX_SERIES
from hisparse.telemetry.wire import pack_bounds

RANKS = st.none() | st.integers(0, MAX_RANK)
LABELS = st.lists(st.sampled_from(["hit", "miss", "", "[", '"', "é"]), min_size=2, max_size=2)
NAMES = st.sampled_from(["hisparse_hot_selections_total", "hisparse_hot_copied_bytes_total", "x_total"])


@st.composite
def recorded(draw: st.DrawFn) -> OffloadingConnectorStats:
    """Return statistics of any rank, of every kind and merge rule."""
    stats = OffloadingConnectorStats(rank=draw(RANKS))
    for name, labels, amount in draw(st.lists(st.tuples(NAMES, LABELS, st.integers(0, 2**40)), max_size=4)):
        stats.increase_counter(name, amount, labels)
    for level in draw(st.lists(st.floats(-1e9, 1e9), max_size=1)):
        stats.set_gauge("hisparse_host_used_bytes", level)
    for name in ("hisparse_hot_gather_seconds", "hisparse_hot_request_misses_rows"):
        stats.observe_histogram(name, draw(st.lists(st.floats(0, 100), max_size=3)))
    if draw(st.booleans()):
        stats.set_info("info", {"top_k": draw(st.integers(0, 9))})
    stats.increase_counter("y", draw(st.sampled_from([1, -1])))
    return stats


@settings(deadline=None)
@given(st.lists(recorded(), max_size=3))
def test_bytes_carry_everything(stats: list[OffloadingConnectorStats]) -> None:
    """Statistics merged from any ranks come back from their bytes as they were, skips and ranks included."""
    merged = merge_ranks(stats)
    assert decode_stats(encode_stats(merged)) == merged
    plain = decode_stats(msgspec.msgpack.encode(merged.to_dict()))
    assert plain == merged


@settings(deadline=None)
@given(recorded(), recorded(), recorded())
def test_merging_ranks_is_associative_and_for_other_ranks_commutative(
    first: OffloadingConnectorStats, second: OffloadingConnectorStats, third: OffloadingConnectorStats
) -> None:
    """Any grouping reduces alike; so does any order of different ranks."""

    def merged(*parts: OffloadingConnectorStats) -> OffloadingConnectorStats:
        total = OffloadingConnectorStats()
        for part in parts:
            total.aggregate(part)
        return total

    def near(one: dict[str, Any], other: dict[str, Any]) -> bool:
        return one.keys() == other.keys() and all(math.isclose(one[key], other[key]) for key in one)

    assert near(merged(merged(first, second), third).reduce(), merged(first, merged(second, third)).reduce())
    first.rank, second.rank, third.rank = 0, 1, 2
    orders = [merged(third, first, second), merged(second, third, first), merge_ranks([first, second, third])]
    assert all(near(order.reduce(), merged(first, second, third).reduce()) for order in orders)


@pytest.mark.parametrize("make", [HiSparseKVConnectorStats, HiSparseConnectorStats])
def test_other_containers_travel_in_their_plain_form(make: Callable[..., Any]) -> None:
    """Hot buffer statistics come back from their bytes as they were."""
    stats = make(rank=3)
    stats.record_snapshot(12, 4, 64)
    if isinstance(stats, HiSparseConnectorStats):
        stats.increase_counter("hisparse_hot_selections_total", 12, ("hit", "0"))
    decoded = decode_stats(encode_stats(stats))
    assert decoded is not None
    assert decoded.to_dict() == stats.to_dict()


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_foreign_bytes_are_counted_and_never_raise(payload: bytes) -> None:
    """Whatever arrives is statistics, or unknown, and bytes that are no msgpack count as one skipped item."""
    stats = decode_stats(payload)
    if stats is not None:
        assert stats.to_dict() == type(stats)(stats.to_dict()).to_dict()


def message(**parts: Any) -> bytes:
    """Return a message of this version with some parts replaced."""
    return msgspec.msgpack.encode({"series_version": 1, **parts})


BOUNDS = pack_bounds((1.0, 2.0))


@pytest.mark.parametrize(
    ("parts", "errors"),
    [
        ({"counters": {"x": -1, "y": 5}}, {"negative": 1}),
        ({"counters": {"x": math.nan, "y": 5}}, {"not_finite": 1}),
        ({"counters": {"x": "a", "y": 5}}, {"wrong_type": 1}),
        ({"counters": {"x": 2**60, "y": 5}}, {"out_of_range": 1}),
        ({"counters": {"bad name": 1, "y": 5}}, {"wrong_type": 1}),
        ({"counters": {"x[1": 1, "y": 5}}, {}),
        ({"counters": {"y": 5}, "gauges": {"x": math.inf}}, {"not_finite": 1}),
        ({"counters": {"y": 5}, "gauges": {"y": 1}}, {"type_conflict": 1}),
        ({"counters": {"y": 5}, "histograms": {"h": [b"", b"", 1.0]}}, {"wrong_type": 1}),
        ({"counters": {"y": 5}, "histograms": {"h": [BOUNDS, b"\1" * 25, 1.0]}}, {"wrong_type": 1}),
        ({"counters": {"y": 5}, "histograms": {"h": [BOUNDS, b"\xff" * 8, 1.0]}}, {"wrong_type": 1}),
        ({"counters": {"y": 5}, "histograms": {"h": [BOUNDS, b"\1", math.nan]}}, {"wrong_type": 1}),
        ({"counters": {"y": 5}, "rank": -1}, {"unknown_rank": 1}),
        ({"counters": {"y": 5}, "ranks": {"x": {"gauges": {"g": 1}}}}, {"unknown_rank": 1}),
        ({"counters": {"y": 5}, "ranks": {"1": 7}}, {"wrong_type": 1}),
        ({"counters": {"y": 5}, "newer": 1}, {"unknown_key": 1}),
        ({"counters": {"y": 5}, "rank_counters": 3}, {"wrong_type": 1}),
        ({"counters": {"y": 5}, "info": {"x": {3: 4}}}, {"wrong_type": 1}),
    ],
)
def test_one_bad_part_costs_only_itself(parts: dict[str, Any], errors: dict[str, int]) -> None:
    """A part that cannot be used is counted by reason, and its neighbour is read."""
    stats = decode_stats(message(**parts))
    assert stats is not None
    assert stats.errors == errors
    assert stats.reduce()["y"] == 5


def test_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    """A message of a later version is read item by item, what is new in it counted."""
    stats = decode_stats(msgspec.msgpack.encode({"series_version": 2, "counters": {"y": 5}, "sketches": {}}))
    assert stats is not None
    assert stats.reduce() == {"y": 5}
    assert stats.errors == {"unknown_key": 1}


def test_series_of_a_message_are_bounded() -> None:
    """A message of more series than are kept is cut off at the bound and counted."""
    counters = {f'x["{i}"]': 1 for i in range(MAX_SERIES + 10)}
    stats = decode_stats(message(counters=counters))
    assert stats is not None
    assert stats.errors == {"too_many_series": 10}


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x81\x00", b"junk"])
def test_no_msgpack_counts_as_one_item(payload: bytes) -> None:
    """Bytes that cannot be decoded are one skipped item."""
    stats = decode_stats(payload)
    assert stats is None or (sum(stats.errors.values()) == 1 and stats.reduce() == {})
