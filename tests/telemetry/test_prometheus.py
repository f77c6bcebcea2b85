"""The collector: which series exist, whose they are, and what happens when pipelines share a registry."""

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from hisparse.errors import MetricError, SettingError
from hisparse.telemetry import (
    CATALOGUE,
    Catalogue,
    CounterMetadata,
    HiSparseKVConnectorStats,
    OffloadingConnectorStats,
    SkipReason,
    TelemetryPipeline,
)

Parse = Callable[[str], dict[tuple[str, frozenset[tuple[str, str]]], float]]
HITS = "vllm:hisparse_cache_hits_total"


def hits(count: int) -> dict[str, HiSparseKVConnectorStats]:
    """Return a payload of some hits."""
    stats = HiSparseKVConnectorStats()
    stats.record_snapshot(count, 0, 0)
    return {"HiSparse": stats}


def value_of(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """Return one series of model `m`, engine 0 unless told otherwise."""
    return registry.get_sample_value(name, {"model_name": "m", "engine": "0", **labels})


def test_every_known_series_exists_before_the_first_step(registry: CollectorRegistry, parse: Parse) -> None:
    """A scrape before any step shows each metric without open labels at 0, for every engine."""
    with TelemetryPipeline(model_name="m", engines=(0, 1), registry=registry):
        series = parse(generate_latest(registry).decode())
    assert set(series.values()) == {0.0}
    for engine in ("0", "1"):
        mine = {name for name, labels in series if ("engine", engine) in labels}
        for name, metadata in CATALOGUE.exported("0.1.0").items():
            if set(metadata.labelnames) == set(metadata.labelvalues):
                expected = {"counter": f"{name.removesuffix('_total')}_total", "histogram": f"{name}_bucket"}
                assert expected.get(metadata.kind, name) in mine
    reasons = {dict(labels).get("reason") for name, labels in series if name == "hisparse_telemetry_errors_total"}
    assert reasons == set(SkipReason)


def test_observing_one_engine_leaves_the_other(registry: CollectorRegistry) -> None:
    """Statistics of engine 1 change only the series of engine 1."""
    with TelemetryPipeline(model_name="m", engines=(0, 1), registry=registry) as pipeline:
        pipeline.publish(hits(5), engine=1)
        assert value_of(registry, HITS) == 0
        assert value_of(registry, HITS, engine="1") == 5


def test_siblings_of_an_open_label_appear_together(registry: CollectorRegistry) -> None:
    """The first outcome counted for a group brings the group's other outcomes at 0."""
    stats = OffloadingConnectorStats()
    stats.increase_counter("hisparse_hot_selections_total", 12, ("hit", 3))
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        pipeline.publish({"rows": stats})
        found = {
            outcome: value_of(registry, "hisparse_hot_selections_total", outcome=outcome, group="3")
            for outcome in ("hit", "miss", "resident", "padding")
        }
    assert found == {"hit": 12, "miss": 0, "resident": 0, "padding": 0}


def test_a_value_newer_than_the_catalogue_is_kept(registry: CollectorRegistry) -> None:
    """A value of a known label that this version does not list becomes a series of its own."""
    stats = OffloadingConnectorStats()
    stats.increase_counter("hisparse_hot_selections_total", 2, ("prefetched", 0))
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        pipeline.publish({"rows": stats})
        labels = {"outcome": "prefetched", "group": "0"}
        assert value_of(registry, "hisparse_hot_selections_total", **labels) == 2


def test_histograms_are_cumulative(registry: CollectorRegistry) -> None:
    """Buckets of the scrape count samples at or below their bound, and the last one all."""
    stats = OffloadingConnectorStats()
    stats.observe_histogram("hisparse_hot_gather_seconds", [0.01, 0.015, 7])
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        pipeline.publish({"rows": stats})
        buckets = [
            value_of(registry, "hisparse_hot_gather_seconds_bucket", le=le) for le in ("0.005", "0.01", "0.02", "+Inf")
        ]
        assert buckets == [0, 1, 2, 3]
        assert value_of(registry, "hisparse_hot_gather_seconds_count") == 3
        assert value_of(registry, "hisparse_hot_gather_seconds_sum") == pytest.approx(7.025)


def test_info_shows_the_latest_labels(registry: CollectorRegistry) -> None:
    """An info gauge is 1 under the latest labels; missing ones are empty, undeclared ones counted."""
    name = "hisparse_hot_config_info"
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        for labels in ({"top_k": 64}, {"top_k": 128, "order": "stack", "colour": "red"}):
            stats = OffloadingConnectorStats()
            stats.set_info(name, labels)
            pipeline.publish({"rows": stats})
        samples = [sample for family in registry.collect() if family.name == name for sample in family.samples]
        assert value_of(registry, "hisparse_telemetry_errors_total", reason="label_mismatch") == 1
    assert [(sample.labels["top_k"], sample.labels["order"], sample.value) for sample in samples] == [
        ("128", "stack", 1)
    ]
    assert samples[0].labels["backend"] == ""


def test_an_unknown_setting_is_an_empty_label(registry: CollectorRegistry) -> None:
    """A setting that is None, because nobody computed it yet, is not shown as the text None."""
    stats = OffloadingConnectorStats()
    stats.set_info("hisparse_hot_config_info", {"top_k": 64, "hot_slots": None})
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        pipeline.publish({"rows": stats.take()})
        text = generate_latest(registry).decode()
    assert 'hot_slots=""' in text
    assert "None" not in text


def test_pipelines_of_one_registry_share_one_collector(registry: CollectorRegistry, parse: Parse) -> None:
    """Two models and two engines on one registry give one family with a series each."""
    with (
        TelemetryPipeline(model_name="m", registry=registry) as first,
        TelemetryPipeline(model_name="n", registry=registry) as second,
    ):
        first.publish(hits(1))
        second.publish(hits(2))
        series = parse(generate_latest(registry).decode())
    found = {dict(labels)["model_name"]: value for (name, labels), value in series.items() if name == HITS}
    assert found == {"m": 1, "n": 2}


def test_making_a_pipeline_again_continues_or_restarts(registry: CollectorRegistry) -> None:
    """A second pipeline of the same engine continues the counters; after the last close they start anew."""
    first = TelemetryPipeline(model_name="m", registry=registry)
    first.publish(hits(5))
    second = TelemetryPipeline(model_name="m", registry=registry)
    second.publish(hits(1))
    assert value_of(registry, HITS) == 6
    first.close()
    first.close()
    assert value_of(registry, HITS) == 6
    second.close()
    assert value_of(registry, HITS) is None
    for _ in range(3):
        with TelemetryPipeline(model_name="m", registry=registry) as again:
            again.publish(hits(2))
            assert value_of(registry, HITS) == 2


def test_a_wider_catalogue_joins_a_registry(registry: CollectorRegistry) -> None:
    """A pipeline with a connector's own metrics adds them to a registry that others use already."""
    mine = CATALOGUE.exported("0.1.0").merged({"mine_failures_total": CounterMetadata("x", labelnames=("tier",))})
    stats = OffloadingConnectorStats(catalogue=mine)
    stats.increase_counter("mine_failures_total", 2, ("disk",))
    with (
        TelemetryPipeline(model_name="m", registry=registry) as first,
        TelemetryPipeline(model_name="m", registry=registry, catalogue=mine) as second,
    ):
        first.publish(hits(3))
        second.publish({"mine": stats})
        assert value_of(registry, "mine_failures_total", tier="disk") == 2
        assert value_of(registry, HITS) == 3
        other = Catalogue({"mine_failures_total": CounterMetadata("something else")})
        with pytest.raises(MetricError, match="is defined twice"):
            TelemetryPipeline(model_name="m", registry=registry, catalogue=other)


def test_foreign_metrics_of_the_same_name_are_an_error(registry: CollectorRegistry) -> None:
    """A registry in which somebody else has our names is refused with a sentence."""
    Counter("vllm:hisparse_cache_hits", "somebody else's", registry=registry)
    with pytest.raises(MetricError, match="give another registry"):
        TelemetryPipeline(registry=registry)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_name": None}, "model_name must be text, got None"),
        ({"model_name": b"m"}, "model_name must be text, got b'm'"),
        ({"model_name": "\ud800"}, "model_name must be valid UTF-8"),
        ({"engines": ("0",)}, "an engine must be a whole number, got '0'"),
        ({"engines": (0.5,)}, "an engine must be a whole number, got 0.5"),
    ],
)
def test_a_label_that_cannot_be_written_is_refused_when_the_pipeline_is_made(
    registry: CollectorRegistry, settings: dict[str, Any], message: str
) -> None:
    """What every series would carry is text, and the next pipeline and scrape know nothing of the refused one."""
    with pytest.raises(SettingError, match=message):
        TelemetryPipeline(registry=registry, **settings)
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        pipeline.publish(hits(1))
        assert value_of(registry, HITS) == 1


ODD_HISTOGRAM = {"bounds": [1], "counts": [1, 0], "sum": 1, "count": 1}


@pytest.mark.parametrize(
    ("name", "kind", "series", "reason"),
    [
        ("vllm:nothing", "counter", {"": 1}, "undeclared_metric"),
        ("vllm:hisparse_cache_hits", "gauge", {"": 1}, "type_conflict"),
        ("vllm:hisparse_cache_hits", "counter", {"a": 1}, "label_mismatch"),
        ("hisparse_hot_selections_total", "counter", {"hit": 1}, "label_mismatch"),
        ("hisparse_hot_gather_seconds", "histogram", {"": ODD_HISTOGRAM}, "bucket_mismatch"),
    ],
)
def test_what_does_not_fit_the_catalogue_is_counted(
    name: str, kind: str, series: dict[str, object], reason: str
) -> None:
    """An item that contradicts the catalogue is skipped and counted, and its neighbours get through."""
    registry = CollectorRegistry()
    payload = {
        "types": {name: kind, "hisparse_host_used_bytes": "gauge"},
        "data": {name: series, "hisparse_host_used_bytes": {"": 7}},
    }
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        pipeline.publish({"rows": payload})
        assert value_of(registry, "hisparse_telemetry_errors_total", reason=reason) == 1
        assert value_of(registry, "hisparse_host_used_bytes") == 7
        assert value_of(registry, HITS) == 0


def test_what_is_switched_off_is_no_error(registry: CollectorRegistry) -> None:
    """Samples of a metric whose option is off are left out without being counted as errors."""
    stats = HiSparseKVConnectorStats()
    stats.record_residency("host_block_lifetime_seconds", [1.0])
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        pipeline.publish({"HiSparse": stats})
        assert value_of(registry, "vllm:hisparse_host_block_lifetime_seconds_count") is None
        errors = [value_of(registry, "hisparse_telemetry_errors_total", reason=reason) for reason in SkipReason]
    assert set(errors) == {0}


@pytest.mark.parametrize("way", ["gate", "option", "both"])
def test_host_block_histograms_appear_with_their_option(registry: CollectorRegistry, way: str) -> None:
    """With kv-cache metrics on, by the pipeline's option or in its catalogue, residency times reach their buckets."""
    stats = HiSparseKVConnectorStats()
    stats.record_residency("host_block_lifetime_seconds", [1.0, 3000.0])
    settings: dict[str, Any] = {
        "gate": {"catalogue": CATALOGUE.exported("0.1.0", gates=frozenset(["kv_cache_metrics"]))},
        "option": {"kv_cache_metrics": True},
        "both": {"kv_cache_metrics": True, "catalogue": CATALOGUE.exported("0.1.0")},
    }
    with TelemetryPipeline(model_name="m", registry=registry, **settings[way]) as pipeline:
        pipeline.publish({"HiSparse": stats.to_dict()})
        buckets = [
            value_of(registry, "vllm:hisparse_host_block_lifetime_seconds_bucket", le=le)
            for le in ("0.5", "1.0", "1800.0", "+Inf")
        ]
    assert buckets == [0, 1, 1, 2]
