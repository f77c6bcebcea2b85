"""Several connectors as one."""

import logging
from itertools import permutations
from typing import Any

import pytest
from children import Failing, NixlConnector, Recording
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client import Histogram as PromHistogram

from hisparse.connectors import KVConnector, MultiConnector, OffloadingConnectorScheduler, OffloadingWorkerMetadata
from hisparse.errors import MetricError
from hisparse.telemetry import CATALOGUE, Catalogue, CounterMetadata, TelemetryPipeline

USED = "hisparse_host_used_bytes"
USAGE = "vllm:hisparse_host_cache_usage_perc"
BYTES = "vllm:kv_offload_load_bytes"


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """Return a series of engine 0."""
    return registry.get_sample_value(name, {"model_name": "", "engine": "0", **labels})


def pipeline_of(multi: MultiConnector, registry: CollectorRegistry) -> TelemetryPipeline:
    """Return a pipeline for the metrics and the statistics of all children."""
    return TelemetryPipeline(registry=registry, catalogue=CATALOGUE.merged(multi.metrics), build=multi.build)


def loaded(size_bytes: int) -> OffloadingWorkerMetadata:
    """Return a worker's report of one load."""
    metadata = OffloadingWorkerMetadata()
    metadata.transfers.record("load", size_bytes=size_bytes, started=0, ended=1)
    return metadata


def test_children_of_one_class_keep_apart_and_add_up(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """Two offloading children travel under two names, and log and Prometheus show what both moved."""
    caplog.set_level(logging.INFO)
    first, second = OffloadingConnectorScheduler(), OffloadingConnectorScheduler()
    multi = MultiConnector([first, second])
    first.update(loaded(100))
    second.update(loaded(23))
    stats = multi.get_kv_connector_stats()
    assert stats is not None
    assert {name: child.reduce()[BYTES] for name, child in stats.children.items()} == {
        "Offloading#0": 100,
        "Offloading#1": 23,
    }
    with pipeline_of(multi, registry) as pipeline:
        pipeline.publish({multi.name: stats.to_dict()})
        pipeline.flush()
        assert value(registry, f"{BYTES}_total") == 123
    assert "Offload load bytes=123" in caplog.text


def test_names_are_by_object() -> None:
    """A name that occurs once stays; one that repeats is numbered, around names that look so; None is left out."""
    names = ["A", "B", "A", "A#0"]
    multi = MultiConnector([None, *map(Recording, names), None])
    assert list(multi.children) == ["A#1", "B", "A#2", "A#0"]
    assert [child.name for child in multi.children.values()] == names


def test_nothing_recorded_is_none() -> None:
    """Without anything recorded there are no statistics, with children or without."""
    assert MultiConnector([]).get_kv_connector_stats() is None
    assert MultiConnector([Recording(), MultiConnector([Recording()])]).get_kv_connector_stats() is None


def test_levels_of_several_children_combine_by_rule(registry: CollectorRegistry) -> None:
    """Bytes in use are the sum over children, a usage is the highest, whoever speaks last and whoever is silent."""
    first, second = Recording(), Recording()
    multi = MultiConnector([first, second])
    seen = []
    with pipeline_of(multi, registry) as pipeline:
        for used in ((30, 4), (None, 5), (0, None), (None, None)):
            for child, level in zip((first, second), used, strict=True):
                if level is not None:
                    child.stats.set_gauge(USED, level)
                    child.stats.set_gauge(USAGE, level / 100)
            stats = multi.get_kv_connector_stats()
            pipeline.publish({multi.name: stats and stats.to_dict()})
            seen.append((value(registry, USED), value(registry, USAGE)))
    assert seen == [(34, 0.30), (35, 0.30), (5, 0.05), (5, 0.05)]


def test_the_order_of_children_does_not_matter(registry: CollectorRegistry) -> None:
    """Any order of the same children gives the same series."""
    del registry
    results = []
    for order in permutations(range(3)):
        children = [Recording() for _ in order]
        for number, child in zip(order, children, strict=True):
            child.stats.increase_counter(BYTES, 10**number)
            child.stats.set_gauge(USED, 10**number)
        multi, own = MultiConnector(children), CollectorRegistry()
        with pipeline_of(multi, own) as pipeline:
            pipeline.publish({multi.name: multi.get_kv_connector_stats()})
            results.append((value(own, f"{BYTES}_total"), value(own, USED)))
    assert set(results) == {(111, 111)}


def test_info_of_all_children_stands() -> None:
    """Each child's configuration is one mapping of the info, also when they tell it at different times."""
    first, second = Recording(), Recording()
    multi = MultiConnector([first, second])
    first.stats.set_info("hisparse_hot_config_info", {"top_k": 1})
    assert multi.get_kv_connector_stats()
    second.stats.set_info("hisparse_hot_config_info", {"top_k": 2})
    stats = multi.get_kv_connector_stats()
    assert stats is not None
    assert stats.info() == {"hisparse_hot_config_info": [{"top_k": "1"}, {"top_k": "2"}]}
    assert stats.reduce() == {}


def test_a_connector_of_connectors_is_a_child(registry: CollectorRegistry) -> None:
    """Nested children reach Prometheus, through plain data and a builder that knows them all."""
    inner, outer, nixl = Recording(), Recording(), NixlConnector()
    multi = MultiConnector([outer, MultiConnector([inner, nixl])])
    inner.stats.increase_counter(BYTES, 100)
    outer.stats.increase_counter(BYTES, 1)
    nixl.stats.aggregate({"failed_handshakes": 2})
    stats = multi.get_kv_connector_stats()
    assert stats is not None
    with pipeline_of(multi, registry) as pipeline:
        pipeline.publish({multi.name: stats.to_dict()})
        assert value(registry, f"{BYTES}_total") == 101
        assert value(registry, "nixl_failed_transfers_total") == 2


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_child_that_raises_is_alone(
    position: int, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """A child that raises at each drain is counted each time and named once; the others' counts are whole."""
    children: list[KVConnector] = [Recording(), Recording()]
    children.insert(position, Failing("Bad"))
    multi = MultiConnector(children)
    with pipeline_of(multi, registry) as pipeline:
        for _ in range(3):
            for child in children:
                if type(child) is Recording:
                    child.stats.increase_counter(BYTES, 1)
            pipeline.publish({multi.name: multi.get_kv_connector_stats()})
        assert value(registry, f"{BYTES}_total") == 6
        assert value(registry, "hisparse_telemetry_errors_total", reason="internal") == 3
    assert sum("child 'Bad' raised ValueError: no statistics today" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("call", ["flush", "reset_cache", "shutdown"])
def test_every_child_hears(call: str, caplog: pytest.LogCaptureFixture) -> None:
    """A flush, reset or end reaches the children behind one that fails, and the failure is counted and named."""
    children = [Recording(), Failing("Bad"), Recording()]
    multi = MultiConnector(children)
    getattr(multi, call)()
    assert [child.calls for child in children] == [[call], [], [call]]
    assert "child 'Bad' raised ValueError" in caplog.text
    stats = MultiConnector([]).get_kv_connector_stats() or multi.get_kv_connector_stats()
    assert stats is not None
    assert stats.errors == {"internal": 2}


def test_children_that_disagree_on_a_metric_are_refused() -> None:
    """Two children that declare one name differently cannot be in one engine; the message names it."""

    class Other(Recording):
        catalogue = Catalogue({"nixl_failed_transfers_total": CounterMetadata("Something else.")})

    with pytest.raises(MetricError, match="'nixl_failed_transfers_total' is defined twice"):
        MultiConnector([NixlConnector(), Other()])


def test_a_host_creates_each_metric_once(registry: CollectorRegistry) -> None:
    """Two offloading children and a foreign one share one set of a host's metrics, fed by one nested payload."""
    first, second, nixl = OffloadingConnectorScheduler(), OffloadingConnectorScheduler(), NixlConnector()
    multi = MultiConnector([first, second, nixl])
    host = multi.prom_metrics(
        metric_types={Counter: Counter, Gauge: Gauge, PromHistogram: PromHistogram},
        labelnames=["model_name", "engine"],
        per_engine_labelvalues={0: ["", "0"]},
        registry=registry,
    )
    first.update(loaded(100))
    second.update(loaded(23))
    nixl.stats.aggregate({"xfer_seconds": [0.01]})
    stats = multi.get_kv_connector_stats()
    assert stats is not None
    host.observe(stats.to_dict())
    assert value(registry, f"{BYTES}_total") == 123
    assert value(registry, "vllm:kv_offload_total_bytes_total", transfer_type="CPU_to_GPU") == 123
    assert value(registry, "nixl_xfer_seconds_count") == 1


def test_a_child_without_metrics_leaves_the_others(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """A child that reports and declares nothing is ignored with one warning; the other's counts arrive."""
    silent = Recording("Silent")
    multi = MultiConnector([OffloadingConnectorScheduler(), silent])
    host = multi.prom_metrics(
        metric_types={Counter: Counter, Gauge: Gauge, PromHistogram: PromHistogram},
        labelnames=["model_name", "engine"],
        per_engine_labelvalues={0: ["", "0"]},
        registry=registry,
    )
    for _ in range(2):
        silent.stats.increase_counter("mooncake_transfers_total", 1)
        silent.stats.increase_counter(BYTES, 5)
        stats = multi.get_kv_connector_stats()
        host.observe(stats and stats.to_dict())
    assert value(registry, f"{BYTES}_total") == 10
    assert len(caplog.messages) == 1
    assert "mooncake_transfers_total" in caplog.text


def test_a_child_may_hand_out_plain_data(registry: CollectorRegistry) -> None:
    """A child that returns a mapping is read as its statistics; one that returns something else is counted."""

    class Loose(Recording):
        def __init__(self, answer: Any) -> None:
            super().__init__()
            self.answer = answer

        def get_kv_connector_stats(self) -> Any:
            return self.answer

    plain = {"types": {BYTES: "counter"}, "data": {BYTES: {"": 7}}}
    multi = MultiConnector([Loose(plain), Loose(3)])
    with pipeline_of(multi, registry) as pipeline:
        pipeline.publish({multi.name: multi.get_kv_connector_stats()})
        assert value(registry, f"{BYTES}_total") == 7
        assert value(registry, "hisparse_telemetry_errors_total", reason="unknown_connector") == 1


@pytest.mark.parametrize("name", ["children", "shared", "rank", "ranks", "data", "telemetry_errors", ""])
def test_a_child_may_have_any_name(name: str, registry: CollectorRegistry) -> None:
    """No name of a child is mistaken for a part of the payload."""
    child = Recording(name)
    multi = MultiConnector([child])
    child.stats.increase_counter(BYTES, 7)
    stats = multi.get_kv_connector_stats()
    assert stats is not None
    with pipeline_of(multi, registry) as pipeline:
        pipeline.publish({multi.name: stats.to_dict()})
        assert value(registry, f"{BYTES}_total") == 7
