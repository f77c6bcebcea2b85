"""The collector in a registry that others use, clear and break."""

import logging
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric

from hisparse.errors import MetricError
from hisparse.telemetry import (
    CATALOGUE,
    Catalogue,
    CounterMetadata,
    HiSparseKVConnectorStats,
    KVConnectorPrometheus,
    TelemetryPipeline,
    start_metrics_server,
)

Parse = Callable[[str], dict[tuple[str, frozenset[tuple[str, str]]], float]]
HITS = "vllm:hisparse_cache_hits_total"


def hits(count: int) -> dict[str, HiSparseKVConnectorStats]:
    """Return a payload of some hits."""
    stats = HiSparseKVConnectorStats()
    stats.record_snapshot(count, 0, 0)
    return {"HiSparse": stats}


def value_of(registry: CollectorRegistry, model: str = "m") -> float | None:
    """Return the hits of a model's engine 0."""
    return registry.get_sample_value(HITS, {"model_name": model, "engine": "0"})


def clear_engine_metrics(registry: CollectorRegistry) -> None:
    """Drop every collector that an engine takes for its own when it is made again: those with vllm in their name."""
    for collector in list(registry._collector_to_names):
        if "vllm" in getattr(collector, "_name", ""):
            registry.unregister(collector)


@pytest.fixture
def drop_all(registry: CollectorRegistry) -> Callable[[], None]:
    """Return a function that drops every collector of the registry."""

    def drop() -> None:
        for collector in list(registry._collector_to_names):
            registry.unregister(collector)

    return drop


def test_an_engine_that_clears_its_metrics_leaves_the_collector(registry: CollectorRegistry) -> None:
    """When an engine drops everything named after it, its own metrics go and the collector's stay, for any pipeline."""
    Gauge("vllm:num_requests_running", "The engine's.", registry=registry)
    with TelemetryPipeline(model_name="m", registry=registry) as first:
        first.publish(hits(5))
        clear_engine_metrics(registry)
        assert value_of(registry) == 5
        assert "vllm:num_requests_running" not in generate_latest(registry).decode()
        Gauge("vllm:num_requests_running", "The engine's.", registry=registry)
        with TelemetryPipeline(model_name="n", registry=registry) as second:
            second.publish(hits(7))
            first.publish(hits(1))
            assert (value_of(registry), value_of(registry, "n")) == (6, 7)


def test_a_dropped_collector_registers_again(
    registry: CollectorRegistry, drop_all: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A collector that somebody dropped is back, totals and all, at the next interval; the log says so once."""
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        pipeline.publish(hits(5))
        drop_all()
        assert value_of(registry) is None
        pipeline.publish(hits(1))
        for _ in range(3):
            pipeline.flush()
        assert value_of(registry) == 6
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert warnings == ["the metrics had been dropped from their registry; they are registered again"]


@pytest.mark.parametrize("foreign", [True, False])
def test_a_collector_that_cannot_come_back_says_why(
    registry: CollectorRegistry, drop_all: Callable[[], None], caplog: pytest.LogCaptureFixture, *, foreign: bool
) -> None:
    """Where a later pipeline or a foreign metric took the names, publishing goes on and the log says so."""
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        drop_all()
        if foreign:
            Counter("vllm:hisparse_cache_hits", "somebody else's", registry=registry)
        else:
            TelemetryPipeline(model_name="n", registry=registry)
        pipeline.publish(hits(1))
        pipeline.flush()
        assert ("others have taken" if foreign else "a later pipeline has taken") in caplog.text


def test_a_failing_neighbour_does_not_stop_a_pipeline(registry: CollectorRegistry) -> None:
    """A foreign collector that raises at every scrape does not keep a second pipeline from joining the first."""

    class Failing:
        def describe(self) -> list[Metric]:
            return []

        def collect(self) -> Iterator[Metric]:
            raise RuntimeError

    registry.register(Failing())
    with TelemetryPipeline(model_name="m", registry=registry) as first:
        first.publish(hits(2))
        with TelemetryPipeline(model_name="m", registry=registry) as second:
            second.publish(hits(3))
            second.flush()
            restricted = registry.restricted_registry([HITS])
            samples = [sample for family in restricted.collect() for sample in family.samples]
    assert [sample.value for sample in samples] == [5]


def test_a_restricted_registry_has_only_what_was_asked_for(registry: CollectorRegistry) -> None:
    """The client's own choice of series by name works on the collector's families."""
    with TelemetryPipeline(model_name="m", engines=(0, 1), registry=registry):
        text = generate_latest(registry.restricted_registry([HITS, "hisparse_hot_gather_seconds_sum"])).decode()
    names = [line.split("{")[0] for line in text.splitlines() if not line.startswith("#")]
    assert sorted(names) == [*["hisparse_hot_gather_seconds_sum"] * 2, *[HITS] * 2]


def test_names_added_later_belong_to_the_collector(registry: CollectorRegistry, parse: Parse) -> None:
    """A wider catalogue that joins claims its names: a foreign metric of such a name is refused, before and after."""
    mine = {"mine_failures_total": CounterMetadata("x")}
    wider = CATALOGUE.exported("0.1.0").merged(mine)
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        pipeline.publish(hits(1))
        foreign = Counter("mine_failures", "somebody else's", registry=registry)
        with pytest.raises(MetricError, match=r"give another registry.*mine_failures"):
            TelemetryPipeline(model_name="m", registry=registry, catalogue=wider)
        assert parse(generate_latest(registry).decode())
        registry.unregister(foreign)
        with TelemetryPipeline(model_name="m", registry=registry, catalogue=wider):
            with pytest.raises(ValueError, match="Duplicated timeseries"):
                Counter("mine_failures", "somebody else's", registry=registry)
            assert value_of(registry) == 1
            assert parse(generate_latest(registry).decode())


def test_no_scrape_misses_series_while_metrics_are_added(registry: CollectorRegistry) -> None:
    """While pipelines with metrics of their own join, every scrape has the first one's series, each once."""
    found: list[int] = []
    done = Event()

    def read() -> None:
        while not done.is_set():
            found.append([family.name for family in registry.collect()].count(HITS.removesuffix("_total")))

    reader = Thread(target=read)
    interval = sys.getswitchinterval()
    with TelemetryPipeline(model_name="m", registry=registry):
        sys.setswitchinterval(1e-5)
        reader.start()
        try:
            for number in range(100):
                mine = Catalogue({f"mine{number}_failures_total": CounterMetadata("x")})
                TelemetryPipeline(model_name="m", registry=registry, catalogue=mine).close()
        finally:
            sys.setswitchinterval(interval)
            done.set()
            reader.join()
    assert set(found) == {1}


def test_pipelines_that_start_at_once_share_one_collector(registry: CollectorRegistry) -> None:
    """Threads that make the first pipelines of a registry together all find one collector, with all their metrics."""
    start = Barrier(8)
    interval = sys.getswitchinterval()

    def make(number: int) -> TelemetryPipeline:
        mine = Catalogue({f"mine{number}_failures_total": CounterMetadata("x")})
        start.wait()
        return TelemetryPipeline(model_name=f"m{number}", registry=registry, catalogue=mine)

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            pipelines = list(pool.map(make, range(8)))
    finally:
        sys.setswitchinterval(interval)
    found = [family.name for family in registry.collect()]
    assert len(set(found)) == len(found)
    assert {f"mine{number}_failures" for number in range(8)} <= set(found)
    for pipeline in pipelines:
        pipeline.close()


def test_a_collector_that_grew_can_be_dropped_whole(registry: CollectorRegistry) -> None:
    """Metrics that joined later leave the registry with the others, and their names are free again."""
    mine = Catalogue({"mine_failures_total": CounterMetadata("x")})
    with (
        TelemetryPipeline(model_name="m", registry=registry),
        TelemetryPipeline(model_name="m", registry=registry, catalogue=mine),
    ):
        (collector,) = registry._collector_to_names
        registry.unregister(collector)
        assert registry._names_to_collectors == {}
        registry.register(collector)
        with pytest.raises(ValueError, match="Duplicated timeseries"):
            Counter("mine_failures", "somebody else's", registry=registry)


def test_the_exporter_of_two_connectors_is_one(registry: CollectorRegistry) -> None:
    """Two exporters with the same definitions on one registry are one object, with one series for each engine."""
    first = KVConnectorPrometheus.attach(registry, CATALOGUE)
    assert KVConnectorPrometheus.attach(registry, CATALOGUE) is first
    for _ in range(3):
        first.acquire("m", 0)
        first.release("m", 0)
    assert value_of(registry) is None


def test_several_engines_and_models_in_one_scrape(
    registry: CollectorRegistry, scrape: Callable[[str], str], parse: Parse
) -> None:
    """Three models with four engines each have twelve series of a counter, each with its own total, and no other."""
    pipelines = [TelemetryPipeline(model_name=name, engines=range(4), registry=registry) for name in "abc"]
    for number, pipeline in enumerate(pipelines):
        for engine in range(4):
            pipeline.publish(hits(10 * number + engine), engine=engine)
    registry.register(Foreign())
    with start_metrics_server(registry) as server:
        series = parse(scrape(server.url))
    found = {
        (dict(labels)["model_name"], dict(labels)["engine"]): value
        for (name, labels), value in series.items()
        if name == HITS
    }
    assert found == {("abc"[n], str(e)): 10 * n + e for n in range(3) for e in range(4)}
    assert series["foreign_total", frozenset()] == 1
    for pipeline in pipelines:
        pipeline.close()


class Foreign:
    """A collector without names of its own."""

    def collect(self) -> Iterator[Metric]:
        """Yield one counter."""
        yield CounterMetricFamily("foreign", "x", value=1)
