"""Payloads that nobody should send."""

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from hisparse.telemetry import (
    CATALOGUE,
    HiSparseConnectorStats,
    HiSparseKVConnectorStats,
    OffloadingConnectorStats,
    TelemetryPipeline,
    decode_stats,
    encode_stats,
    merge_ranks,
    merge_step,
)
from hisparse.telemetry.hisparse_stats import DELTAS, LEVELS, RESIDENCY

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=4)
    | st.sampled_from([float("nan"), float("inf"), -1, -0.0, 2**63, 10**400, "\ud800", "[", '["a"]', 1j])
)
KEYS = (
    st.sampled_from(["types", "data", "info", "telemetry_errors", "bounds", "counts", "sum", "count", "", "x"])
    | st.sampled_from([*DELTAS, *LEVELS, *RESIDENCY, *CATALOGUE])
    | st.text(max_size=4)
    | st.integers()
    | st.none()
    | st.tuples(st.text(max_size=3), st.text(max_size=3))
)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
HISPARSE = st.dictionaries(
    st.sampled_from([*DELTAS, *LEVELS, *RESIDENCY, "telemetry_errors", "odd"]), st.lists(LEAVES, max_size=4) | ANYTHING
)
NAMES = st.sampled_from([*CATALOGUE, "undeclared_total", "bad name", ""])
KINDS = st.sampled_from(["counter", "gauge", "histogram", "summary", None, 3])
SERIES = st.dictionaries(st.sampled_from(["", '["hit","0"]', '["a"]', "[", "a"]), LEAVES | st.lists(LEAVES) | ANYTHING)
OFFLOAD = st.fixed_dictionaries(
    {"types": st.dictionaries(NAMES, KINDS), "data": st.dictionaries(NAMES, SERIES | ANYTHING, max_size=4)},
    optional={"info": st.dictionaries(NAMES, ANYTHING, max_size=2), "newer": ANYTHING},
)
RANKED = st.fixed_dictionaries(
    {
        "rank": LEAVES | st.integers(0, 3),
        "ranks": st.dictionaries(st.sampled_from(["0", "1", "", "x", 2]), HISPARSE | OFFLOAD, max_size=3) | ANYTHING,
    }
)
PAYLOADS = (
    ANYTHING
    | HISPARSE
    | OFFLOAD
    | st.tuples(HISPARSE | OFFLOAD, RANKED).map(lambda parts: parts[0] | parts[1])
    | st.binary(max_size=16)
)


def exported(registry: CollectorRegistry) -> list[Any]:
    """Return all samples of a registry whose exposition can be written."""
    assert generate_latest(registry)
    return [sample for family in registry.collect() for sample in family.samples]


@settings(deadline=None, max_examples=300)
@given(st.lists(PAYLOADS, max_size=3))
def test_nothing_makes_aggregate_raise(payloads: list[Any]) -> None:
    """Any payload merges into either container without raising, and the result can be sent and read again."""
    for kind in (HiSparseKVConnectorStats, HiSparseConnectorStats, OffloadingConnectorStats):
        stats = kind()
        for payload in payloads:
            assert stats.aggregate(payload) is stats
        assert "internal" not in stats.errors
        for again in (kind(stats.to_dict()), decode_stats(encode_stats(kind().aggregate(stats)))):
            assert type(again) is not kind or again == stats
        assert all(math.isfinite(value) for value in stats.reduce().values())
    merged = merge_step(merge_ranks(payloads), payloads[0] if payloads else None)
    assert merged is None or "internal" not in merged.errors


@settings(deadline=None, max_examples=300)
@given(st.lists(st.dictionaries(st.text(max_size=3), PAYLOADS, max_size=3) | ANYTHING, max_size=3), LEAVES)
def test_nothing_poisons_the_registry(payloads: list[Any], engine: Any) -> None:
    """Any payload for any engine leaves finite values, and no counter, bucket or sum below 0."""
    registry = CollectorRegistry()
    pipeline = TelemetryPipeline(model_name="m", registry=registry)
    for payload in payloads:
        pipeline.publish(payload)
        pipeline.publish(payload, engine=engine)
    pipeline.flush()
    counting = ("_total", "_bucket", "_count", "_sum")
    for sample in exported(registry):
        assert math.isfinite(sample.value)
        assert sample.value >= 0 or not sample.name.endswith(counting)
    internal = [sample for sample in exported(registry) if sample.labels.get("reason") == "internal"]
    assert [sample.value for sample in internal if sample.value] == []
    pipeline.close()


BAD = {
    "negative": st.integers(-(2**50), -1) | st.floats(-1e9, -1e-9),
    "not_finite": st.sampled_from([math.nan, math.inf, -math.inf]),
    "out_of_range": st.integers(2**53 + 1, 2**70),
    "wrong_type": st.none() | st.booleans() | st.text(max_size=3) | st.lists(st.none(), max_size=1),
}


@settings(deadline=None)
@given(st.lists(st.sampled_from([*BAD, "good"]), max_size=12), st.data())
def test_every_skip_is_counted(kinds: list[str], data: st.DataObject) -> None:
    """Among good increments each bad one is counted under its reason, and the sum is that of the good ones."""
    items = [data.draw(BAD[kind]) if kind in BAD else 5 for kind in kinds]
    registry = CollectorRegistry()
    pipeline = TelemetryPipeline(model_name="m", registry=registry)
    pipeline.publish({"HiSparse": {"cache_hits": items}})
    labels = {"model_name": "m", "engine": "0"}
    assert registry.get_sample_value("vllm:hisparse_cache_hits_total", labels) == 5 * kinds.count("good")
    for reason in BAD:
        counted = registry.get_sample_value("hisparse_telemetry_errors_total", {**labels, "reason": reason})
        assert counted == kinds.count(reason)
