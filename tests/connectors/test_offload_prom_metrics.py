"""Declared metrics in a host's own Prometheus classes."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from unreadable import UnreadableError

from hisparse.connectors import OffloadingConnectorScheduler, OffloadPromMetrics
from hisparse.errors import MetricError
from hisparse.telemetry import (
    CounterMetadata,
    GaugeMetadata,
    HistogramMetadata,
    MetricMetadata,
    OffloadingConnectorStats,
    encode_stats,
)

TYPES = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
MINE: dict[str, MetricMetadata] = {
    "mine_drops_total": CounterMetadata("Drops.", labelnames=("why",)),
    "mine_level": GaugeMetadata("Level."),
    "mine_wait": HistogramMetadata("Wait.", buckets=(1, 2)),
    "mine_config": GaugeMetadata("Tiers.", unit="info", labelnames=("tier", "size")),
}
ERRORS = "hisparse_telemetry_errors_total"
Observe = Callable[..., None]


def metrics(registry: CollectorRegistry, definitions: dict[str, MetricMetadata] | None = None) -> OffloadPromMetrics:
    """Return the metrics of two engines, as a host creates them."""
    return OffloadPromMetrics(
        MINE if definitions is None else definitions,
        metric_types=TYPES,
        labelnames=["model_name", "engine"],
        per_engine_labelvalues={0: ["m", "0"], 1: ["m", "1"]},
        registry=registry,
    )


def operator_metrics(registry: CollectorRegistry) -> OffloadPromMetrics:
    """Return the metrics that the offloading connector declares."""
    return metrics(registry, dict(OffloadingConnectorScheduler.catalogue))


def payload(name: str, kind: str, value: Any, labels: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the plain form of one series, keyed by a tuple as an engine's own containers do."""
    return {"types": {name: kind}, "data": {name: {labels: value}}}


def series(registry: CollectorRegistry) -> dict[tuple[str, str, tuple[str, ...]], float]:
    """Return every sample by name, engine and the values of the other labels, without times of creation."""
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                labels = {k: v for k, v in sample.labels.items() if k not in {"model_name", "engine"}}
                found[sample.name, sample.labels["engine"], tuple(labels.values())] = sample.value
    return found


def test_children_are_bound_when_an_engine_speaks(registry: CollectorRegistry) -> None:
    """Observing engine 1 makes series of engine 1 and none of engine 0."""
    host = metrics(registry)
    assert series(registry) == {}
    host.observe(payload("mine_drops_total", "counter", 2, ("full",)), 1)
    host.observe(payload("mine_drops_total", "counter", 1, ("full",)), 1)
    host.observe(payload("mine_level", "gauge", 5), engine_idx=1)
    assert series(registry) == {("mine_drops_total", "1", ("full",)): 3, ("mine_level", "1", ()): 5}


def test_the_old_names_show_the_same_datum(registry: CollectorRegistry) -> None:
    """A load of 100 bytes is 100 under the new name and under the old one with its direction; so is a store."""
    host = operator_metrics(registry)
    host.observe(payload("vllm:kv_offload_load_bytes", "counter", 100))
    host.observe(payload("vllm:kv_offload_store_time", "counter", 2.5))
    host.observe(payload("vllm:kv_offload_store_size", "histogram", [7]))
    found = series(registry)
    assert found["vllm:kv_offload_load_bytes_total", "0", ()] == 100
    assert found["vllm:kv_offload_total_bytes_total", "0", ("CPU_to_GPU",)] == 100
    assert found["vllm:kv_offload_store_time_total", "0", ()] == 2.5
    assert found["vllm:kv_offload_total_time_total", "0", ("GPU_to_CPU",)] == 2.5
    assert found["vllm:kv_offload_size_sum", "0", ("GPU_to_CPU",)] == 7
    assert found["vllm:kv_offload_store_size_sum", "0", ()] == 7


def test_old_and_new_names_agree_at_every_step(registry: CollectorRegistry) -> None:
    """Through 10,000 observations each old series equals its new one."""
    host = operator_metrics(registry)
    total = {"load": 0, "store": 0}

    def value(name: str, *labels: str) -> float:
        # A scrape at each step would take minutes.
        child = host._families._children.get((name, ("m", "0", *labels)))
        return float(child._value.get()) if child else 0

    for step in range(10_000):
        direction = "load" if step % 3 else "store"
        total[direction] += step
        host.observe(payload(f"vllm:kv_offload_{direction}_bytes", "counter", step))
        way = "CPU_to_GPU" if direction == "load" else "GPU_to_CPU"
        old, new = value("vllm:kv_offload_total_bytes", way), value(f"vllm:kv_offload_{direction}_bytes")
        assert old == new == total[direction]


@pytest.mark.parametrize(
    ("data", "reason", "said"),
    [
        (payload("mine_drops_total", "counter", 1, ()), "label_mismatch", "expects 1 labels"),
        (payload("mine_other_total", "counter", 1), "undeclared_metric", "is not declared"),
        (payload("mine_drops_total", "counter", [1], ("full",)), "wrong_type", "must be a number"),
        (payload("mine_level", "counter", 1), "type_conflict", "is declared as a gauge, got a counter"),
        (payload("mine_level", "gauge", float("nan")), "not_finite", "must be finite"),
        (payload("mine_drops_total", "counter", -1, ("full",)), "negative", "must be >= 0"),
        (payload("mine_wait", "histogram", [-1]), "negative", "must be >= 0"),
        ({"newer": {}}, "unknown_key", "unknown section"),
        (7, "wrong_type", "must be a mapping"),
    ],
)
def test_what_cannot_be_used_is_counted_and_named_once(
    data: Any, reason: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A bad item reaches no series, raises nothing, counts each time and makes one warning."""
    registry = CollectorRegistry()
    host = metrics(registry)
    for _ in range(3):
        host.observe(data)
    found = series(registry)
    assert {key: value for key, value in found.items() if key[0].startswith("mine_") and value} == {}
    assert found[ERRORS, "0", (reason,)] == 3
    assert len(caplog.records) == 1
    assert said in caplog.text


@pytest.mark.parametrize("engine", [2, -1, None, [0]])
def test_an_unknown_engine_is_counted(
    engine: Any, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """Statistics of an engine that was not announced are left out, counted at the first engine and named."""
    host = metrics(registry)
    host.observe(payload("mine_level", "gauge", 1), engine)
    host.observe(payload("mine_level", "gauge", 1), 0)
    assert series(registry)[ERRORS, "0", ("unknown_engine",)] == 1
    assert "unknown_engine" in caplog.text


def test_a_series_that_the_host_refuses_leaves_the_others(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception of a host's class is counted and named, and what it refused is offered again with the next value."""

    class Refusing(Counter):
        def inc(self, amount: float = 1, exemplar: Any = None) -> None:
            if amount < 3 and self._name == "mine_drops":
                raise RuntimeError("host is busy")
            super().inc(amount, exemplar)

    host = OffloadPromMetrics(
        {"mine_drops_total": CounterMetadata("Drops."), "mine_level": GaugeMetadata("Level.")},
        metric_types={**TYPES, Counter: Refusing},
        labelnames=["engine"],
        per_engine_labelvalues={0: ["0"]},
        registry=registry,
    )
    host.observe(payload("mine_drops_total", "counter", 1))
    host.observe(payload("mine_level", "gauge", 1))
    # Counting one reason makes the series of every reason.
    found = {key: value for key, value in series(registry).items() if value or key[0] != ERRORS}
    assert found == {
        ("mine_drops_total", "0", ()): 0,
        ("mine_level", "0", ()): 1,
        (ERRORS, "0", ("internal",)): 1,
    }
    assert "RuntimeError: host is busy" in caplog.text
    host.observe(payload("mine_drops_total", "counter", 2))
    assert series(registry)["mine_drops_total", "0", ()] == 3


def test_info_is_one_for_each_mapping(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    """A missing label reads as empty, an undeclared one is dropped with one warning, a mapping gone shows 0."""
    host = metrics(registry)
    tiers = [{"tier": "cpu", "size": "3", "speed": "7"}, {"tier": "file"}]
    host.observe({"info": {"mine_config": tiers}})
    host.observe({"info": {"mine_config": tiers}})
    found = series(registry)
    assert found["mine_config", "0", ("cpu", "3")] == found["mine_config", "0", ("file", "")] == 1
    assert len(caplog.records) == 1
    assert "'speed' is not declared" in caplog.text
    host.observe({"info": {"mine_config": [{"tier": "file"}]}})
    assert series(registry)["mine_config", "0", ("cpu", "3")] == 0


def test_bytes_and_containers_are_taken_as_they_are(registry: CollectorRegistry) -> None:
    """A container and what it encodes to add the same; bytes that are nothing are counted."""
    host = metrics(registry)
    stats = OffloadingConnectorStats(payload("mine_drops_total", "counter", 2, ("full",)))
    for data in (stats, encode_stats(stats), bytearray(encode_stats(stats)), b"\xc1"):
        host.observe(data)
    found = series(registry)
    assert found["mine_drops_total", "0", ("full",)] == 6
    assert found[ERRORS, "0", ("wrong_type",)] == 1


def test_two_children_of_one_class_share_their_series(registry: CollectorRegistry) -> None:
    """The same definitions twice in one registry raise nothing, and both objects add to the same counter."""
    for host in (metrics(registry), metrics(registry)):
        host.observe(payload("mine_drops_total", "counter", 2, ("full",)))
    assert series(registry)["mine_drops_total", "0", ("full",)] == 4


def test_another_metric_of_the_name_is_refused(registry: CollectorRegistry) -> None:
    """A registry that holds something else under a declared name is refused at creation, by name."""
    Counter("mine_drops_total", "Somebody else's.", registry=registry)
    with pytest.raises(MetricError, match="another metric 'mine_drops_total'"):
        metrics(registry)


def test_a_missing_class_is_refused(registry: CollectorRegistry) -> None:
    """A host that offers no class for a declared kind is told which one."""
    with pytest.raises(MetricError, match="no class for a histogram"):
        OffloadPromMetrics(
            MINE,
            metric_types={Counter: Counter, Gauge: Gauge},
            labelnames=["engine"],
            per_engine_labelvalues={0: ["0"]},
            registry=registry,
        )


def test_the_call_of_an_engine_creates_the_connector_metrics(registry: CollectorRegistry) -> None:
    """The class method takes an engine's four arguments and returns what observes."""
    types: dict[Any, Any] = {
        kind: lambda made=kind, **given: made(registry=registry, **given) for kind in (Counter, Gauge, Histogram)
    }
    host = OffloadingConnectorScheduler.build_prom_metrics(None, types, ["model_name", "engine"], {0: ["m", "0"]})
    host.observe(payload("vllm:kv_offload_stores_skipped", "counter", 3))
    assert series(registry)["vllm:kv_offload_stores_skipped_total", "0", ()] == 3


NUMBERS = st.floats() | st.integers() | st.sampled_from([2**53, -(2**53), True, "1", None])
VALUES = NUMBERS | st.lists(NUMBERS, max_size=3) | st.dictionaries(st.text(max_size=3), NUMBERS, max_size=2)
NAMES = st.sampled_from([*MINE, "other", ""])
PAYLOADS = st.fixed_dictionaries(
    {},
    optional={
        "types": st.dictionaries(NAMES, st.sampled_from(["counter", "gauge", "histogram", "info", 3])),
        "data": st.dictionaries(NAMES, st.dictionaries(st.sampled_from(["", "full", '["a","b"]']), VALUES)),
        "info": st.dictionaries(NAMES, VALUES),
    },
)


@settings(deadline=None, max_examples=200)
@given(st.lists(PAYLOADS | VALUES, max_size=4))
def test_nothing_raises_and_no_counter_falls(payloads: list[Any]) -> None:
    """Whatever arrives, observing returns, and no series becomes negative (gauges aside) or no number."""
    registry = CollectorRegistry()
    host = metrics(registry)
    for data in payloads:
        host.observe(data)
        for (name, _, _), value in series(registry).items():
            assert value == value  # noqa: PLR0124 - false for what is no number
            assert value >= 0 or name == "mine_level"


def test_an_error_without_text_ends_no_step(registry: CollectorRegistry) -> None:
    """A builder or a host's class whose error says nothing costs its part; what follows arrives."""

    class Refusing(Counter):
        def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:
            if "mine" in self._name:
                raise UnreadableError
            super().inc(amount, exemplar)

    def build(data: Any, _: Any) -> OffloadingConnectorStats:
        if data == "raise":
            raise UnreadableError
        return OffloadingConnectorStats(data)

    prom = OffloadPromMetrics(
        MINE,
        metric_types={**TYPES, Counter: Refusing},
        labelnames=["engine"],
        per_engine_labelvalues={0: ["0"]},
        registry=registry,
        build=build,
    )
    prom.observe("raise")
    prom.observe(payload("mine_drops_total", "counter", 1, ("full",)))
    prom.observe(payload("mine_level", "gauge", 3))
    assert registry.get_sample_value("mine_level", {"engine": "0"}) == 3
    failed = registry.get_sample_value(ERRORS, {"engine": "0", "reason": "internal"})
    assert failed is not None
    assert failed >= 2
