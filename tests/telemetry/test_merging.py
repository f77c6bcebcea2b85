"""Properties of merging and of the plain form, over both containers."""

import json
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.telemetry import HiSparseKVConnectorStats, KVConnectorStats, OffloadingConnectorStats

COUNTS = st.integers(0, 2**40)
# Quarters add up exactly in any order, so equality means equality.
QUARTERS = st.integers(0, 4000).map(lambda quarters: quarters / 4)
LABELS = st.lists(st.sampled_from(["hit", "miss", "", "[", '"', "é"]), min_size=2, max_size=2)


@st.composite
def hisparse_stats(draw: st.DrawFn) -> HiSparseKVConnectorStats:
    """Return statistics of some snapshots, usages and residency times."""
    stats = HiSparseKVConnectorStats()
    for snapshot in draw(st.lists(st.tuples(COUNTS, COUNTS, COUNTS), max_size=4)):
        stats.record_snapshot(*snapshot)
    for usage in draw(st.lists(st.tuples(st.floats(0, 1), COUNTS), max_size=2)):
        stats.record_host_usage(*usage)
    stats.record_residency("host_block_reuse_gap_seconds", draw(st.lists(QUARTERS, max_size=3)))
    return stats


@st.composite
def offload_stats(draw: st.DrawFn) -> OffloadingConnectorStats:
    """Return statistics of each kind, with labels that need care as text."""
    stats = OffloadingConnectorStats()
    for labels, amount in draw(st.lists(st.tuples(LABELS, COUNTS | QUARTERS), max_size=4)):
        stats.increase_counter("loads_total", amount, labels)
    for level in draw(st.lists(st.floats(-1e9, 1e9), max_size=2)):
        stats.set_gauge("level", level)
    for samples in draw(st.lists(st.lists(QUARTERS, max_size=3), max_size=2)):
        stats.observe_histogram("hisparse_hot_gather_seconds", samples)
    if draw(st.booleans()):
        stats.set_info("info", {"top_k": draw(COUNTS)})
    return stats


TRIPLES = st.one_of(
    st.tuples(*[hisparse_stats()] * 3),
    st.tuples(*[offload_stats()] * 3),
)
WIRES = {
    "msgpack": lambda plain: msgspec.msgpack.decode(msgspec.msgpack.encode(plain)),
    "json": lambda plain: json.loads(json.dumps(plain)),
    "pickle": lambda plain: pickle.loads(pickle.dumps(plain)),  # noqa: S301 - the test's own bytes
}


def copy_of(stats: Any) -> Any:
    """Return an independent container with the same content."""
    return type(stats)(stats.to_dict())


@settings(deadline=None)
@given(TRIPLES)
def test_merging_is_associative(triple: tuple[KVConnectorStats, ...]) -> None:
    """Any grouping of a merge gives the same container."""
    first, second, third = triple
    left = copy_of(first).aggregate(second).aggregate(third)
    right = copy_of(first).aggregate(copy_of(second).aggregate(third))
    assert left == right
    assert left.reduce() == right.reduce()


@settings(deadline=None)
@given(st.tuples(hisparse_stats(), hisparse_stats()) | st.tuples(offload_stats(), offload_stats()))
def test_counters_and_histograms_merge_in_any_order(pair: tuple[KVConnectorStats, ...]) -> None:
    """What adds up does so in either order; only levels depend on which came last."""
    first, second = pair
    added = [
        {(name, labels): value for name, kind, labels, value in merged.samples() if kind != "gauge"}
        for merged in (copy_of(first).aggregate(second), copy_of(second).aggregate(first))
    ]
    assert added[0] == added[1]


@settings(deadline=None)
@given(hisparse_stats() | offload_stats())
def test_an_empty_container_is_neutral(stats: KVConnectorStats) -> None:
    """Merging with an empty container on either side gives the same container."""
    assert type(stats)().aggregate(stats) == stats
    assert copy_of(stats).aggregate(type(stats)()) == stats


@pytest.mark.parametrize("wire", list(WIRES))
@settings(deadline=None)
@given(stats=hisparse_stats() | offload_stats())
def test_the_plain_form_survives_every_wire(wire: str, stats: KVConnectorStats) -> None:
    """A container built from what arrives equals the one that was sent, and merges on."""
    arrived = type(stats)(WIRES[wire](stats.to_dict()))
    assert arrived == stats
    assert arrived.errors == {}
    assert arrived.aggregate(stats).reduce() == copy_of(stats).aggregate(stats).reduce()


def test_containers_themselves_pickle() -> None:
    """A container, not only its plain form, survives pickle."""
    stats = OffloadingConnectorStats()
    stats.increase_counter("x", 2, ("a",))
    stats.observe_histogram("y", 3.0)
    assert pickle.loads(pickle.dumps(stats)) == stats  # noqa: S301 - the test's own bytes


def test_containers_of_different_kinds_differ() -> None:
    """Two empty containers of different kinds are not equal, and neither is a key."""
    assert HiSparseKVConnectorStats() != OffloadingConnectorStats()
    with pytest.raises(TypeError, match="unhashable"):
        hash(HiSparseKVConnectorStats())


def test_merging_with_another_kind_counts_and_keeps() -> None:
    """A container merged with one of another kind keeps its data and counts what it cannot read."""
    stats, other = HiSparseKVConnectorStats({"cache_hits": [7]}), OffloadingConnectorStats()
    other.increase_counter("x", 1)
    assert stats.aggregate(other).data["cache_hits"] == [7]
    assert stats.errors == {"unknown_key": 2}
