"""Old names: derived from the new ones, read as the new ones, never counted twice."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from hisparse.errors import MetricError
from hisparse.telemetry import (
    CATALOGUE,
    Catalogue,
    CounterMetadata,
    Deprecation,
    GaugeMetadata,
    HistogramMetadata,
    OffloadingConnectorStats,
    TelemetryPipeline,
)

Parse = Callable[[str], dict[tuple[str, frozenset[tuple[str, str]]], float]]
WAYS = {"load": "CPU_to_GPU", "store": "GPU_to_CPU"}
TRIO = ("vllm:kv_offload_total_bytes", "vllm:kv_offload_total_time", "vllm:kv_offload_size")
OLD = "mine_used_total"
RENAMED = Catalogue(
    {
        OLD: CounterMetadata(
            "Used.", labelnames=("tier",), deprecation=Deprecation(since="0.1", replacement="mine_taken_total")
        ),
        "mine_taken_total": CounterMetadata("Taken.", labelnames=("tier",)),
    }
)


def value_of(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """Return one series of model `m`, engine 0 unless told otherwise."""
    return registry.get_sample_value(name, {"model_name": "m", "engine": "0", **labels})


def transfer(direction: str, nbytes: int, seconds: float) -> OffloadingConnectorStats:
    """Return what one transfer records."""
    stats = OffloadingConnectorStats()
    stats.increase_counter(f"vllm:kv_offload_{direction}_bytes", nbytes)
    stats.increase_counter(f"vllm:kv_offload_{direction}_time", seconds)
    stats.observe_histogram(f"vllm:kv_offload_{direction}_size", nbytes)
    return stats


def test_each_direction_is_written_under_its_old_name(registry: CollectorRegistry) -> None:
    """A load and a store are in the deprecated trio with their transfer type; the other engine's stay at 0."""
    with TelemetryPipeline(model_name="m", engines=(0, 1), registry=registry) as pipeline:
        pipeline.publish({"a": transfer("load", 100, 0.5)}, engine=1)
        pipeline.publish({"a": transfer("store", 7_000_000, 2.0)}, engine=1)
        for way, nbytes, seconds in (("CPU_to_GPU", 100, 0.5), ("GPU_to_CPU", 7_000_000, 2.0)):
            labels = {"engine": "1", "transfer_type": way}
            assert value_of(registry, "vllm:kv_offload_total_bytes_total", **labels) == nbytes
            assert value_of(registry, "vllm:kv_offload_total_time_total", **labels) == seconds
            assert value_of(registry, "vllm:kv_offload_size_count", **labels) == 1
            assert value_of(registry, "vllm:kv_offload_size_sum", **labels) == nbytes
            assert value_of(registry, "vllm:kv_offload_total_bytes_total", transfer_type=way) == 0
        buckets = {
            way: value_of(registry, "vllm:kv_offload_size_bucket", engine="1", transfer_type=way, le="5e+06")
            for way in WAYS.values()
        }
    assert buckets == {"CPU_to_GPU": 1, "GPU_to_CPU": 0}


def test_old_and_new_name_agree_after_any_transfer(registry: CollectorRegistry) -> None:
    """Through 300 random transfers every series of an old name equals that of its replacement."""
    generator = random.Random(5)
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        for _ in range(300):
            pipeline.publish({"a": transfer(generator.choice(list(WAYS)), generator.randrange(10**9), 0.125)})
            series = {
                (sample.name, sample.labels.get("transfer_type"), sample.labels.get("le")): sample.value
                for family in registry.collect()
                if "kv_offload" in family.name
                for sample in family.samples
            }
            for direction, way in WAYS.items():
                for old, new in (("total_bytes", "bytes"), ("total_time", "time")):
                    stem = f"vllm:kv_offload_{direction}_{new}_total"
                    assert series[f"vllm:kv_offload_{old}_total", way, None] == series[stem, None, None]
                for (name, label, le), value in series.items():
                    if label == way and name.startswith("vllm:kv_offload_size"):
                        assert value == series[name.replace("offload_", f"offload_{direction}_"), None, le]


def test_a_deprecated_metric_says_so_and_what_to_use(registry: CollectorRegistry) -> None:
    """HELP of an old name begins with DEPRECATED and names both replacements."""
    with TelemetryPipeline(model_name="m", registry=registry):
        lines = generate_latest(registry).decode().splitlines()
    helps = [line for line in lines if line.startswith("# HELP vllm:kv_offload_size ")]
    assert len(helps) == 1
    assert "DEPRECATED since 0.1, use vllm:kv_offload_load_size and vllm:kv_offload_store_size:" in helps[0]


@pytest.mark.parametrize(
    ("version", "shown", "exported"),
    [
        ("0.1.0", None, True),
        ("0.1.9", None, True),
        ("0.2.0", None, False),
        ("0.2.0", "0.1", True),
        ("0.2.0", "0.0", False),
        ("0.3.0", "0.1", False),
        ("0.10.0", "0.9", False),
        ("1.0.0", "0.1", False),
    ],
)
def test_the_window_of_the_trio(version: str, shown: str | None, *, exported: bool) -> None:
    """The trio is exported beside its replacements in 0.1, on request in 0.2, and never later."""
    catalogue = CATALOGUE.exported(version, show_hidden_metrics_for_version=shown)
    assert [name in catalogue for name in TRIO] == [exported] * 3
    assert {"vllm:kv_offload_load_bytes", "vllm:kv_offload_store_size"} <= set(catalogue)


@pytest.mark.parametrize(("shown", "present"), [(None, False), ("0.1", True), ("0.0", False)])
def test_a_pipeline_shows_hidden_metrics_on_request(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch, shown: str | None, *, present: bool
) -> None:
    """One minor version later the old series exist only where `show_hidden_metrics_for_version` asks for them."""
    monkeypatch.setattr("hisparse.telemetry.pipeline.__version__", "0.2.3")
    with TelemetryPipeline(model_name="m", registry=registry, show_hidden_metrics_for_version=shown) as pipeline:
        pipeline.publish({"a": transfer("load", 100, 0.5)})
        found = value_of(registry, "vllm:kv_offload_total_bytes_total", transfer_type="CPU_to_GPU")
        assert value_of(registry, "vllm:kv_offload_load_bytes_total") == 100
    assert found == (100 if present else None)


def test_a_renamed_metric_is_exported_under_both_names(registry: CollectorRegistry) -> None:
    """One old name for one new name: equal series, the same labels."""
    catalogue = CATALOGUE.exported("0.1.0").merged(RENAMED)
    stats = OffloadingConnectorStats(catalogue=catalogue)
    stats.increase_counter("mine_taken_total", 4, ("disk",))
    with TelemetryPipeline(model_name="m", registry=registry, catalogue=catalogue) as pipeline:
        pipeline.publish({"mine": stats})
        assert value_of(registry, "mine_taken_total", tier="disk") == 4
        assert value_of(registry, OLD, tier="disk") == 4


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "0.3.0"])
def test_an_older_sender_is_read_under_the_new_name(registry: CollectorRegistry, version: str) -> None:
    """A payload that knows only the old names counts as the new ones, whether or not the old are exported still."""
    catalogue = Catalogue({**CATALOGUE, **RENAMED}).exported(version)
    stats = OffloadingConnectorStats(catalogue=catalogue)
    stats.increase_counter(OLD, 4, ("disk",))
    stats.increase_counter("vllm:kv_offload_total_bytes", 100, ("GPU_to_CPU",))
    with TelemetryPipeline(model_name="m", registry=registry, catalogue=catalogue) as pipeline:
        pipeline.publish({"mine": stats.take()})
        assert value_of(registry, "mine_taken_total", tier="disk") == 4
        assert value_of(registry, "vllm:kv_offload_store_bytes_total") == 100
        assert value_of(registry, "vllm:kv_offload_load_bytes_total") == 0
        assert value_of(registry, "hisparse_telemetry_errors_total", reason="deprecated_name") == 0


def test_a_sender_that_writes_both_names_is_counted_once(registry: CollectorRegistry, parse: Parse) -> None:
    """An old name beside its replacement in one payload is skipped and counted; nothing doubles."""
    stats = transfer("load", 100, 0.5)
    stats.increase_counter("vllm:kv_offload_total_bytes", 100, ("CPU_to_GPU",))
    stats.increase_counter("vllm:kv_offload_total_time", 0.5, ("CPU_to_GPU",))
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        pipeline.publish({"a": stats})
        assert value_of(registry, "vllm:kv_offload_load_bytes_total") == 100
        assert value_of(registry, "vllm:kv_offload_total_bytes_total", transfer_type="CPU_to_GPU") == 100
        assert value_of(registry, "vllm:kv_offload_total_time_total", transfer_type="CPU_to_GPU") == 0.5
        assert value_of(registry, "hisparse_telemetry_errors_total", reason="deprecated_name") == 2
        assert len(parse(generate_latest(registry).decode()))


@pytest.mark.parametrize("labels", [("GPU_to_disk",), (), ("CPU_to_GPU", "x")])
def test_an_old_name_with_unknown_labels_is_counted_as_skipped(
    registry: CollectorRegistry, labels: tuple[str, ...]
) -> None:
    """A transfer type that names no replacement, or the wrong number of labels, changes no total."""
    stats = OffloadingConnectorStats()
    stats.increase_counter("vllm:kv_offload_total_bytes", 100, labels)
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        pipeline.publish({"a": stats})
        errors = [
            value_of(registry, "hisparse_telemetry_errors_total", reason=reason)
            for reason in ("deprecated_name", "label_mismatch")
        ]
        assert sum(filter(None, errors)) == 1
        assert value_of(registry, "vllm:kv_offload_load_bytes_total") == 0


NEW = HistogramMetadata("New.", unit="bytes", buckets=(1, 2))
LEVEL = GaugeMetadata("New.", unit="bytes", multiprocess_mode="livesum")
SPLIT: dict[str, Any] = {"since": "0.1", "label": "way", "replacement": {"in": "new_bytes", "out": "new_bytes"}}
WAY: dict[str, Any] = {"labelnames": ("way",), "labelvalues": {"way": ("in", "out")}}


@pytest.mark.parametrize(
    ("new", "old", "message"),
    [
        (NEW, HistogramMetadata("x", unit="bytes", buckets=(1, 3)), "its buckets must be"),
        (NEW, HistogramMetadata("x", unit="rows", buckets=(1, 2)), "its unit must be 'bytes', got 'rows'"),
        (NEW, GaugeMetadata("x", unit="bytes"), "its kind must be 'histogram', got 'gauge'"),
        (NEW, HistogramMetadata("x", unit="bytes", buckets=(1, 2), labelnames=("a",)), "its labelnames must be"),
        (NEW, HistogramMetadata("x", unit="bytes", buckets=(1, 2), across_ranks="once"), "its across_ranks must be"),
        (NEW, HistogramMetadata("x", unit="bytes", buckets=(1, 2), gate="g"), "its gate must be"),
        (LEVEL, GaugeMetadata("x", unit="bytes"), "its multiprocess_mode must be 'livesum'"),
    ],
)
def test_a_wrong_derivation_cannot_be_declared(new: Any, old: Any, message: str) -> None:
    """A deprecated metric of another kind, unit, buckets, labels or merge rule than its replacement is refused."""
    renamed = Deprecation(since="0.1", replacement="new_bytes")
    object.__setattr__(old, "deprecation", renamed)
    with pytest.raises(MetricError, match=message):
        Catalogue({"new_bytes": new, "old_bytes": old})


def test_the_label_of_a_split_must_be_declared_with_its_values() -> None:
    """A metric derived from several carries their label first, with exactly the values that name them."""
    split = Deprecation(**SPLIT)
    shape: dict[str, Any] = {"unit": "bytes", "buckets": (1, 2), "deprecation": split}
    assert len(Catalogue({"new_bytes": NEW, "old_bytes": HistogramMetadata("x", **shape, **WAY)})) == 2
    with pytest.raises(MetricError, match="its labelnames must be"):
        Catalogue({"new_bytes": NEW, "old_bytes": HistogramMetadata("x", **shape)})
    with pytest.raises(MetricError, match="its labelvalues must be"):
        Catalogue({"new_bytes": NEW, "old_bytes": HistogramMetadata("x", **shape, labelnames=("way",))})


def test_a_derived_metric_is_no_source() -> None:
    """A name cannot be derived from one that is derived itself."""
    first = CounterMetadata("x", deprecation=Deprecation(since="0.1", replacement="b_total"))
    second = CounterMetadata("x", deprecation=Deprecation(since="0.1", replacement="c_total"))
    with pytest.raises(MetricError, match="which is derived itself"):
        Catalogue({"a_total": first, "b_total": second, "c_total": CounterMetadata("x")})


def test_another_kind_can_replace_a_metric_that_is_still_recorded(registry: CollectorRegistry) -> None:
    """A gauge may give way to a counter: both are recorded by their producers until the gauge has run out."""
    gone = Deprecation(since="0.1", replacement="speed_total", derived=False)
    catalogue = Catalogue({"speed_now": GaugeMetadata("x", deprecation=gone), "speed_total": CounterMetadata("y")})
    stats = OffloadingConnectorStats(catalogue=catalogue)
    stats.set_gauge("speed_now", 5)
    stats.increase_counter("speed_total", 2)
    with TelemetryPipeline(model_name="m", registry=registry, catalogue=catalogue) as pipeline:
        pipeline.publish({"mine": stats})
        assert value_of(registry, "speed_now") == 5
        assert value_of(registry, "speed_total") == 2
    assert "speed_now" not in catalogue.exported("0.2")


@pytest.mark.parametrize(
    ("replacement", "label"), [("new_total", "way"), ({"in": "new_total"}, ""), ({}, "way"), ({"in": ""}, "way")]
)
def test_a_label_comes_with_a_replacement_for_each_value(replacement: Any, label: str) -> None:
    """A label without a mapping, a mapping without a label, and an empty replacement are refused."""
    with pytest.raises(MetricError, match=r"exactly when its replacement is a mapping|must name its replacement"):
        Deprecation(since="0.4", replacement=replacement, label=label)
