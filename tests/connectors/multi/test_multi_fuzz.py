"""Whatever arrives in place of several connectors' statistics."""

import math
from typing import Any

from children import NixlConnector
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from hisparse.connectors import StatsBuilder
from hisparse.telemetry import CATALOGUE, TelemetryPipeline

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=8)
    | st.sampled_from(["counter", "gauge", "histogram"])
)
KEYS = st.sampled_from(
    [
        *("children", "shared", "types", "data", "info", "metrics", "rank", "ranks", "telemetry_errors", "", "0"),
        *("Offloading#0", "HiSparse", "Nixl", "NixlConnector", "Unknown", "xfer_seconds", "failed_transfers"),
        *("cache_hits", "host_cache_usage_perc", "vllm:kv_offload_load_bytes", "hisparse_host_used_bytes"),
    ]
)
PAYLOADS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=25
)


@settings(deadline=None, max_examples=100)
@given(st.lists(PAYLOADS, min_size=1, max_size=3))
def test_nothing_raises_and_what_is_left_out_is_counted(payloads: list[Any]) -> None:
    """Nothing leaves the pipeline but usable numbers, and a payload that is no mapping is counted."""
    registry = CollectorRegistry()
    build = StatsBuilder([NixlConnector])
    catalogue = CATALOGUE.merged(NixlConnector.catalogue)
    with TelemetryPipeline(registry=registry, catalogue=catalogue, build=build) as pipeline:
        for data in payloads:
            pipeline.publish({"Multi": data})
            pipeline.publish({"Multi": {"children": data}})
        pipeline.flush()
        samples = [sample for family in registry.collect() for sample in family.samples]
    assert all(math.isfinite(sample.value) for sample in samples)
    assert all(sample.value >= 0 for sample in samples if sample.name.endswith(("_total", "_count", "_bucket")))
    errors = sum(sample.value for sample in samples if sample.name == "hisparse_telemetry_errors_total")
    assert errors >= sum(not isinstance(data, dict) for data in payloads if data is not None)
