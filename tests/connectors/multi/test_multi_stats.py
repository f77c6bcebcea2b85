"""Statistics of several connectors: merging, plain form, foreign payloads."""

import json
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from children import NixlConnector, NixlStats
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.connectors import MultiConnector, MultiKVConnectorStats, OffloadingConnectorScheduler, StatsBuilder
from hisparse.connectors.multi.foreign import usable
from hisparse.connectors.multi.stats import MAX_CHILDREN
from hisparse.telemetry import HiSparseConnectorStats, Histogram, OffloadingConnectorStats, Sample
from hisparse.telemetry.stats import RankedSample

BUILDER = StatsBuilder([NixlConnector, OffloadingConnectorScheduler])
WIRES: dict[str, Callable[[Any], Any]] = {
    "msgpack": lambda plain: msgspec.msgpack.decode(msgspec.msgpack.encode(plain)),
    "json": lambda plain: json.loads(json.dumps(plain)),
    "pickle": lambda plain: pickle.loads(pickle.dumps(plain)),  # noqa: S301 - the test's own bytes
}


def multi(data: Any = None) -> MultiKVConnectorStats:
    """Return statistics whose children the builder of these tests knows."""
    return MultiKVConnectorStats(data, build=BUILDER.child)


def offload(size_bytes: int = 100) -> dict[str, Any]:
    """Return the plain form of an offloading child."""
    return {"types": {"loads": "counter"}, "data": {"loads": {"": size_bytes}}}


@st.composite
def statistics(draw: st.DrawFn) -> MultiKVConnectorStats:
    """Return statistics of some children of three classes, one of them nested."""
    stats = multi()
    for number in draw(st.lists(st.integers(0, 2), max_size=3)):
        stats.add(f"Offloading#{number}", offload(draw(st.integers(0, 2**30))))
    if draw(st.booleans()):
        stats.add("Nixl", {"failed_transfers": draw(st.integers(0, 9)), "xfer_seconds": []})
    if draw(st.booleans()):
        stats.add("Multi", {"children": {"Offloading": offload(draw(st.integers(0, 2**30)))}})
    if draw(st.booleans()):
        stats.add("Unknown", {"what": 3})
    return stats


@settings(deadline=None)
@given(st.tuples(*[statistics()] * 3), st.sampled_from(["plain", "built"]))
def test_merging_is_associative_and_commutative(triple: tuple[MultiKVConnectorStats, ...], form: str) -> None:
    """Any grouping and order of a merge gives the same children, built or plain."""
    parts: list[Any] = [stats.to_dict() if form == "plain" else stats for stats in triple]
    left = multi(multi(parts[0]).aggregate(parts[1])).aggregate(parts[2])
    right = multi(parts[2]).aggregate(multi(parts[1]).aggregate(parts[0]))
    assert left.to_dict() == right.to_dict()
    assert left == right


def test_merging_leaves_the_other_alone() -> None:
    """What was merged is not changed by what happens to the sum."""
    other = multi({"Offloading": offload()})
    total = multi(other).aggregate(other)
    assert total.reduce() == {"Offloading: loads": 200}
    assert other.reduce() == {"Offloading: loads": 100}


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_nested_payloads_are_rebuilt_by_name(wire: Callable[[Any], Any]) -> None:
    """Each child comes back in the class it had, at every depth, and merges with a live container."""
    stats = multi({"Offloading#0": offload(), "Nixl": {"xfer_seconds": [0.5]}, "HiSparse": {"cache_hits": [3]}})
    stats.add("Multi", {"children": {"Nixl#1": {"xfer_seconds": [0.25]}}})
    rebuilt = BUILDER(wire(stats.to_dict()))
    assert isinstance(rebuilt, MultiKVConnectorStats)
    assert {name: type(child) for name, child in rebuilt.children.items()} == {
        "Offloading#0": OffloadingConnectorStats,
        "Nixl": NixlStats,
        "HiSparse": HiSparseConnectorStats,
        "Multi": MultiKVConnectorStats,
    }
    assert rebuilt == stats
    assert rebuilt.aggregate(stats).reduce()["Multi: Nixl#1: Num transfers"] == 2


def test_a_class_that_cannot_be_made_empty_merges_too() -> None:
    """A container whose constructor needs more than data is copied as a whole, and the original stays as it was."""

    class Particular(NixlStats):
        def __init__(self, data: Any, unit: str) -> None:
            self.unit = unit
            super().__init__(data)

    first = MultiKVConnectorStats({"P": Particular({"failed_transfers": 1}, "s")}, build=StatsBuilder().child)
    total = multi(first).aggregate(first)
    assert total.reduce()["P: Num failed transfers"] == 2
    assert first.reduce()["P: Num failed transfers"] == 1
    assert total.errors == {}


def test_an_engine_that_keys_by_class_is_read() -> None:
    """A mapping by class name, plain or wrapped as a dataclass, with empty and absent children, is statistics."""
    stats = BUILDER(
        {
            "NixlConnector": {"data": {"xfer_seconds": [0.5]}},
            "OffloadingConnector": offload(),
            "HiSparseConnector": {"cache_hits": [3]},
            "MooncakeConnector": None,
            "SimpleConnector": {},
        }
    )
    assert isinstance(stats, MultiKVConnectorStats)
    assert stats.errors == {}
    assert stats.reduce() == {
        "NixlConnector: Num transfers": 1,
        "NixlConnector: Num failed transfers": 0,
        "OffloadingConnector: loads": 100,
        "HiSparseConnector: HiSparse hot-buffer hits": 3,
        "HiSparseConnector: HiSparse hot-buffer misses": 0,
        "HiSparseConnector: HiSparse host-to-device bytes": 0,
    }


def test_an_unknown_child_is_counted_and_the_others_stay() -> None:
    """A child that nobody knows, or that breaks its own class, costs only itself."""
    stats = multi({"Unknown": {"what": 3}, "NixlConnector": {"xfer_seconds": 3}, "Offloading": offload(), 7: offload()})
    assert stats.errors == {"unknown_connector": 1, "internal": 1, "wrong_type": 1}
    assert stats.reduce()["Offloading: loads"] == 100


def test_built_containers_are_kept() -> None:
    """A container of a class that nobody can rebuild is taken as it is."""
    nixl = NixlStats({"xfer_seconds": [0.5]})
    stats = MultiKVConnectorStats({"Somebody": nixl}, build=StatsBuilder().child)
    assert stats.children["Somebody"] is nixl


def test_types_must_match() -> None:
    """One child in two classes is a conflict: the first stays, the second is counted, nothing is raised."""
    stats = multi({"Child": OffloadingConnectorStats(offload())})
    assert stats.aggregate({"children": {"Child": NixlStats({"xfer_seconds": [0.5]})}}) is stats
    assert stats.errors == {"type_conflict": 1}
    assert stats.reduce() == {"Child: loads": 100}


def test_levels_without_a_combination_combine_here() -> None:
    """Of an engine that does not combine, two children's levels become one sample by the metric's rule."""
    level = {"types": {"hisparse_host_used_bytes": "gauge"}, "data": {"hisparse_host_used_bytes": {"": 3}}}
    stats = multi({"OffloadingConnector": level, "OtherConnector": level})
    assert [(sample.name, sample.value) for sample in stats.samples()] == [("hisparse_host_used_bytes", 6)]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (3, "wrong_type"),
        ({"children": 3}, "wrong_type"),
        ({"children": {}, "newer": 1}, "unknown_key"),
        ({"children": {}, "shared": 3}, "wrong_type"),
        ({"children": {"x" * 300: offload()}}, "out_of_range"),
    ],
)
def test_a_foreign_payload_is_read_as_far_as_it_goes(data: Any, reason: str) -> None:
    """What another version sends is skipped and counted, never raised."""
    assert multi(data).errors == {reason: 1}


def test_children_and_depth_are_bounded() -> None:
    """Ever new children are cut off and counted; a payload nested without end is counted."""
    stats = multi({f"Offloading#{number}": offload() for number in range(MAX_CHILDREN + 5)})
    assert len(stats.children) == MAX_CHILDREN
    assert stats.errors == {"too_many_series": 5}
    deep: dict[str, Any] = {"x": offload()}
    for _ in range(100_000):
        deep = {"children": {"x": deep}}
    assert sum(multi(deep).errors.values()) >= 1


def test_a_childs_errors_are_reported_once() -> None:
    """What a child skipped is in the errors of the whole, and no more in the child's own."""
    stats = multi({"Offloading": {**offload(), "telemetry_errors": {"negative": 2}}})
    assert stats.errors == {"negative": 2}
    assert BUILDER(stats.to_dict()) == stats


def test_a_child_whose_samples_fail_leaves_the_others() -> None:
    """A child that cannot say what it means is counted, and the others' samples, summary and plain form are there."""
    broken = NixlStats()
    broken.data = {"xfer_seconds": 3}
    stats = MultiKVConnectorStats({"Bad": broken, "Offloading": offload()}, build=BUILDER.child)
    assert [(name, labels, value) for name, _, labels, value in stats.samples()] == [
        ("hisparse_telemetry_errors_total", ("internal",), 1),
        ("loads", (), 100),
    ]
    assert stats.reduce() == {"Offloading: loads": 100}
    assert not stats.is_empty()
    assert stats.to_dict() == {"children": {"Offloading": offload()}, "telemetry_errors": {"internal": 1}}


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (Sample("x", "counter", (), -1), "negative"),
        (Sample("x", "counter", (), float("nan")), "not_finite"),
        (Sample("x", "gauge", (), float("inf")), "not_finite"),
        (Sample("x", "gauge", (), None), "wrong_type"),  # type: ignore[arg-type]  # the point
        (Sample("x", "histogram", (), Histogram.of_lanes((1.0,), 1, float("inf"))), "not_finite"),
        (Sample("x", "histogram", (), Histogram.of_lanes((1.0,), -1, 1.0)), "bucket_mismatch"),
        (Sample("x", "counter", 7, np.int64(3)), "label_mismatch"),  # type: ignore[arg-type]  # the point
    ],
)
def test_a_sample_of_a_foreign_class_is_held_to_the_rules(sample: Sample, reason: str) -> None:
    """What another class let in and no sink can take is counted in place of it."""
    assert list(usable([sample])) == [("hisparse_telemetry_errors_total", "counter", (reason,), 1)]


def test_numbers_of_arrays_become_plain() -> None:
    """A scalar of numpy leaves as a number, of the rank that said it, and labels as a tuple."""
    said = RankedSample.of(Sample("x", "counter", ["a"], np.int64(3)), 1)  # type: ignore[arg-type]  # the point
    (read,) = usable([said])
    assert read == ("x", "counter", ("a",), 3)
    assert (type(read.value), read.rank) == (int, 1)


def test_nothing_builds_empty_statistics() -> None:
    """None builds an empty container, and an empty child makes none."""
    stats = MultiConnector.build_kv_connector_stats(None)
    assert stats is not None
    assert stats.is_empty()
    assert multi({"Offloading": {}, "Nixl": None}).is_empty()
