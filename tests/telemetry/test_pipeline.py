"""From a payload to the sinks."""

import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from hisparse.errors import SettingError
from hisparse.telemetry import (
    Catalogue,
    HiSparseConnectorStats,
    HiSparseKVConnectorStats,
    KVConnectorStats,
    OffloadingConnectorStats,
    TelemetryPipeline,
    build_kv_connector_stats,
)

HITS = "vllm:hisparse_cache_hits_total"
ERRORS = "hisparse_telemetry_errors_total"
LABELS = {"model_name": "m", "engine": "0"}


@pytest.fixture
def pipeline(registry: CollectorRegistry) -> TelemetryPipeline:
    """Return a pipeline of model `m`, engine 0."""
    return TelemetryPipeline(model_name="m", registry=registry, wall_clock=lambda: 1234.5)


def errors(registry: CollectorRegistry) -> dict[str, float]:
    """Return the reasons counted for engine 0."""
    samples = [sample for family in registry.collect() for sample in family.samples if sample.name == ERRORS]
    return {sample.labels["reason"]: sample.value for sample in samples if sample.value}


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (HiSparseKVConnectorStats().to_dict(), HiSparseConnectorStats),
        ({"cache_hits": [1]}, HiSparseConnectorStats),
        (OffloadingConnectorStats().to_dict(), OffloadingConnectorStats),
        ({"info": {"x": {"a": "b"}}}, OffloadingConnectorStats),
    ],
)
def test_the_plain_form_tells_its_container(data: dict[str, Any], kind: type[KVConnectorStats]) -> None:
    """A container is rebuilt from plain data without being named."""
    assert type(build_kv_connector_stats(data)) is kind


def test_several_children_of_one_kind_add_up(registry: CollectorRegistry, pipeline: TelemetryPipeline) -> None:
    """Two children of the same kind in one payload both count."""
    pipeline.publish({"first": {"cache_hits": [5, 1]}, "second": {"cache_hits": [2]}, "idle": None})
    assert registry.get_sample_value(HITS, LABELS) == 8


def test_the_time_of_the_last_sample_is_shown(registry: CollectorRegistry, pipeline: TelemetryPipeline) -> None:
    """The timestamp is 0 before statistics arrive, also after an idle tick, and then their time."""
    name = "hisparse_telemetry_last_sample_timestamp_seconds"
    pipeline.publish({})
    assert registry.get_sample_value(name, LABELS) == 0
    pipeline.publish({"HiSparse": {"cache_hits": [5]}})
    assert registry.get_sample_value(name, LABELS) == 1234.5


def test_publishing_leaves_the_payload_alone(pipeline: TelemetryPipeline) -> None:
    """A payload is only read."""
    payload = {"HiSparse": {"cache_hits": [5], "host_cache_usage_perc": [0.5, 0.75]}}
    pipeline.publish(payload)
    assert payload == {"HiSparse": {"cache_hits": [5], "host_cache_usage_perc": [0.5, 0.75]}}


def test_an_unknown_child_is_counted_and_its_neighbours_are_kept(
    registry: CollectorRegistry, pipeline: TelemetryPipeline
) -> None:
    """A child whose payload has no known form does not disturb the others."""
    pipeline.publish({"unknown": {"whatever": 1}, "odd": 3, "HiSparse": {"cache_hits": [5]}})
    assert registry.get_sample_value(HITS, LABELS) == 5
    assert errors(registry) == {"unknown_connector": 2}


@pytest.mark.parametrize("engine", [-1, 10**9, "0", None, 1.5])
def test_an_impossible_engine_is_counted(registry: CollectorRegistry, pipeline: TelemetryPipeline, engine: Any) -> None:
    """Statistics of an engine that cannot be are skipped and counted."""
    pipeline.publish({"HiSparse": {"cache_hits": [5]}}, engine=engine)
    assert errors(registry) == {"unknown_engine": 1}
    assert registry.get_sample_value(HITS, LABELS) == 0


def test_a_new_engine_gets_its_series(registry: CollectorRegistry, pipeline: TelemetryPipeline) -> None:
    """An engine that was not announced is added when it publishes."""
    pipeline.publish({"HiSparse": {"cache_hits": [5]}}, engine=3)
    assert registry.get_sample_value(HITS, {**LABELS, "engine": "3"}) == 5


def test_a_reason_warns_once(pipeline: TelemetryPipeline, caplog: pytest.LogCaptureFixture) -> None:
    """The first item skipped for a reason is named in a warning; later ones are silent."""
    for _ in range(5):
        pipeline.publish({"HiSparse": {"cache_hits": [-1], "odd": [3]}})
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert any("cache_hits must be >= 0, got -1" in warning for warning in warnings)


def test_a_fault_in_a_builder_is_counted(registry: CollectorRegistry) -> None:
    """A connector whose own code raises is counted as an internal fault, and publishing returns."""

    def build(data: Any, catalogue: Catalogue) -> KVConnectorStats:
        raise RuntimeError(f"{len(catalogue)} {data}")

    pipeline = TelemetryPipeline(model_name="m", registry=registry, build=build)
    pipeline.publish({"HiSparse": {}})
    assert errors(registry) == {"internal": 1}


def test_a_container_may_define_its_own_metrics(registry: CollectorRegistry) -> None:
    """A connector's own container reaches Prometheus by its samples alone."""

    class Mine(OffloadingConnectorStats):
        def samples(self) -> Any:
            yield from ()
            yield from OffloadingConnectorStats(
                {"types": {"vllm:hisparse_cache_hits": "counter"}, "data": {"vllm:hisparse_cache_hits": {"": 2}}}
            ).samples()

    pipeline = TelemetryPipeline(model_name="m", registry=registry)
    pipeline.publish({"mine": Mine()})
    assert registry.get_sample_value(HITS, LABELS) == 2


def test_publishing_after_close_does_nothing(registry: CollectorRegistry, pipeline: TelemetryPipeline) -> None:
    """A closed pipeline takes nothing and raises nothing."""
    pipeline.close()
    pipeline.publish({"HiSparse": {"cache_hits": [5]}})
    pipeline.flush()
    assert registry.get_sample_value(HITS, LABELS) is None


def test_bad_settings_are_sentences(registry: CollectorRegistry) -> None:
    """An interval of nothing and a pipeline of no engine are refused."""
    with pytest.raises(SettingError, match="log_interval_seconds must be > 0, got 0"):
        TelemetryPipeline(registry=registry, log_interval_seconds=0)
    with pytest.raises(SettingError, match="at least one engine"):
        TelemetryPipeline(registry=registry, engines=())


@pytest.mark.parametrize(
    ("recorded", "meant"),
    [
        ("vllm:kv_offload_load_bytes_total", "vllm:kv_offload_load_bytes"),
        ("vllm_kv_offload_load_bytes", "vllm:kv_offload_load_bytes"),
        ("vllm_kv_offload_load_bytes_total", "vllm:kv_offload_load_bytes"),
        ("hisparse_hot_selections", "hisparse_hot_selections_total"),
    ],
)
def test_a_counter_by_its_other_spelling_is_recognized(
    pipeline: TelemetryPipeline, caplog: pytest.LogCaptureFixture, recorded: str, meant: str
) -> None:
    """Who records the name of queries, or queries the recorded one, is told the other; nothing is guessed."""
    stats = OffloadingConnectorStats()
    stats.increase_counter(recorded, 1)
    pipeline.publish({"mine": stats})
    assert f"{recorded}: is not declared: did you mean {meant!r}?" in caplog.text


def test_an_unknown_name_says_where_to_declare_it(
    pipeline: TelemetryPipeline, caplog: pytest.LogCaptureFixture
) -> None:
    """A name like no other is to be declared, and plain data of an unknown class to be given a builder."""
    stats = OffloadingConnectorStats()
    stats.increase_counter("mine_reads_total", 1)
    pipeline.publish({"mine": stats, "other": {"reads": 1}})
    assert "mine_reads_total: is not declared: add it to the pipeline's catalogue" in caplog.text
    assert "'other' sent {'reads': 1}: give build=StatsBuilder([...])" in caplog.text
