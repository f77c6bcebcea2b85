"""The text of own families, held to prometheus_client's, byte for byte."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Info, generate_latest
from prometheus_client.utils import floatToGoString

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
from hisparse.telemetry.exposition import number_text
from hisparse.telemetry.prometheus import registry_text

OLD: dict[str, Any] = {"labelnames": ("way", "tier"), "labelvalues": {"way": ("in",)}}
MINE = Catalogue(
    {
        "mine_total": CounterMetadata('A "quoted" \\ one\non two lines', labelnames=("tier", "zone")),
        "mine_level": GaugeMetadata("A level.", labelnames=("tier",)),
        "mine_wait": HistogramMetadata("Waits.", labelnames=("a", "z"), buckets=(0.001, 1, 1e6, 2e6)),
        "mine_new_total": CounterMetadata("New.", labelnames=("tier",)),
        "mine_old_total": CounterMetadata(
            "Old.", deprecation=Deprecation(since="0.1", replacement={"in": "mine_new_total"}, label="way"), **OLD
        ),
    }
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['"', "\\", "\n", '\\"\n', "ü€漢", "a b", "\\n", "{}", "\x00\x7f", ""]
)
NUMBERS = (
    st.integers(0, 2**53) | st.floats(0, 2.0**53) | st.sampled_from([0, 1, 999_999, 10**6, 10**15, 2**53, 1e-9, 0.1])
)


@settings(deadline=None)
@given(st.integers(-(2**60), 2**60) | st.floats() | NUMBERS)
@example(1_000_000)
@example(2**53)
@example(-0.0)
def test_a_number_reads_as_the_client_writes_it(value: float) -> None:
    """Any number has the client's text."""
    assert number_text(value) == floatToGoString(value)  # type: ignore[no-untyped-call]  # the client leaves it untyped


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(TEXTS, TEXTS, NUMBERS, st.floats(-1e300, 1e300)), max_size=6), TEXTS)
def test_own_text_is_the_clients(rows: list[tuple[str, str, Any, float]], model_name: str) -> None:
    """For any labels and values the text is what the client writes, at the first scrape and at later ones."""
    registry = CollectorRegistry()
    with TelemetryPipeline(model_name=model_name, engines=(0, 11), registry=registry, catalogue=MINE) as pipeline:
        for engine, (one, other, number, level) in enumerate(rows):
            stats = OffloadingConnectorStats(catalogue=MINE)
            stats.increase_counter("mine_total", number, (one, other))
            stats.set_gauge("mine_level", level, (one,))
            stats.observe_histogram("mine_wait", [number, 1, 0], (other, one))
            stats.increase_counter("mine_new_total", number, (one,))
            pipeline.publish({"mine": stats}, engine=engine % 2)
            assert registry_text(registry) == generate_latest(registry)
        assert registry_text(registry) == generate_latest(registry)


def test_the_whole_catalogue_with_foreign_metrics_around(registry: CollectorRegistry) -> None:
    """All families of this version, between metrics of others, read as the client writes them, in its order."""
    Counter("before", "Before.", ["x"], registry=registry).labels('"').inc()
    catalogue = CATALOGUE.exported("0.1.0", gates=frozenset(["kv_cache_metrics"]))
    with TelemetryPipeline(model_name="m", engines=(0, 1), registry=registry, catalogue=catalogue) as pipeline:
        Info("after", "After.", registry=registry).info({"a": "b"})
        stats = OffloadingConnectorStats()
        stats.observe_histogram("hisparse_hot_gather_seconds", [0.1] * 50)
        stats.set_info("hisparse_hot_config_info", {"top_k": 64, "host_pool": 'disk:/a "b"'})
        pipeline.publish({"rows": stats}, engine=1)
        text = registry_text(registry)
        assert text == generate_latest(registry)
    assert text.index(b"before_total") < text.index(b"hisparse_hot_gather_seconds") < text.index(b"after_info")
    assert registry_text(registry) == generate_latest(registry)


@pytest.mark.parametrize("levels", [(0.0, -0.0), (-0.0, 0.0), (1, 1.0), (2.5, 2.5)])
def test_a_level_is_written_as_it_is_now(registry: CollectorRegistry, levels: tuple[float, float]) -> None:
    """Equal levels of different text are not confused between two scrapes."""
    with TelemetryPipeline(model_name="m", registry=registry, catalogue=MINE) as pipeline:
        for level in levels:
            stats = OffloadingConnectorStats(catalogue=MINE)
            stats.set_gauge("mine_level", level, ("ram",))
            pipeline.publish({"mine": stats})
            assert registry_text(registry) == generate_latest(registry)


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("mine_level", ("\ud800",), 1.0),
        ("mine_level", (7,), 1.0),
        ("mine_level", ("disk",), "much"),
        ("mine_new_total", (None,), 1),
        ("mine_wait", ("a", "b"), "long"),
    ],
)
def test_a_series_that_cannot_be_written_costs_itself_alone(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture, *, name: str, labels: Any, value: Any
) -> None:
    """Whatever is wrong with one series, the others are in every scrape; the fault is counted and named once."""
    with TelemetryPipeline(model_name="m", registry=registry, catalogue=MINE) as pipeline:
        stats = OffloadingConnectorStats(catalogue=MINE)
        stats.set_gauge("mine_level", 5, ("ram",))
        stats.increase_counter("mine_new_total", 3, ("ram",))
        stats.observe_histogram("mine_wait", [1], ("c", "d"))
        pipeline.publish({"mine": stats})
        whole = registry_text(registry).decode().splitlines()
        pipeline._stores[0]._values[name][labels] = value
        registry_text(registry)
        broken = registry_text(registry).decode().splitlines()
        del pipeline._stores[0]._values[name][labels]
        errors = 'hisparse_telemetry_errors_total{engine="0",model_name="m",reason="internal"}'
        count = registry.get_sample_value(
            "hisparse_telemetry_errors_total", {"model_name": "m", "engine": "0", "reason": "internal"}
        )
    assert [line for line in broken if errors not in line] == [line for line in whole if errors not in line]
    assert count is not None
    assert count >= 2
    warnings = [record.getMessage() for record in caplog.records if "cannot be written" in record.getMessage()]
    assert len(warnings) == len(set(warnings))
    assert f"series of {name.removesuffix('_total')} cannot be written and are left out" in warnings[0]


def test_scrapes_at_once_while_steps_are_published(
    registry: CollectorRegistry, parse: Callable[[str], dict[tuple[str, frozenset[tuple[str, str]]], float]]
) -> None:
    """Three scrapers beside a publisher, with engines that come and go, read whole text in which counters only grow."""
    pipeline = TelemetryPipeline(model_name="m", registry=registry, catalogue=MINE)
    stats = OffloadingConnectorStats(catalogue=MINE)
    stats.increase_counter("mine_new_total", 1, ("disk",))
    stats.observe_histogram("mine_wait", [1, 2], ("a", "b"))
    key = ("mine_new_total", frozenset({"model_name": "m", "engine": "0", "tier": "disk"}.items()))
    done = Event()

    def read(_: int) -> list[float]:
        found = []
        while not done.is_set():
            found.append(parse(registry_text(registry).decode()).get(key, 0))
        return found

    with ThreadPoolExecutor(3) as pool:
        reading = [pool.submit(read, number) for number in range(3)]
        for number in range(150):
            pipeline.publish({"mine": stats})
            with TelemetryPipeline(model_name=f"short {number % 2}", registry=registry, catalogue=MINE) as short:
                short.publish({"mine": stats})
        done.set()
        seen = [scraper.result() for scraper in reading]
    assert all(values == sorted(values) for values in seen)
    assert parse(registry_text(registry).decode())[key] == 150
    assert registry_text(registry) == generate_latest(registry)


def test_an_engine_that_ends_and_begins_again_is_written_anew(registry: CollectorRegistry) -> None:
    """Nothing kept of a closed engine's text appears in that of its successor."""
    for name in ("disk", "ram"):
        with TelemetryPipeline(model_name="m", registry=registry, catalogue=MINE) as pipeline:
            stats = OffloadingConnectorStats(catalogue=MINE)
            stats.increase_counter("mine_new_total", 3, (name,))
            pipeline.publish({"mine": stats})
            text = registry_text(registry)
            assert text == generate_latest(registry)
            assert text.count(b'tier="') == 2
