"""From a counter to what a client of the endpoint reads."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from hisparse.telemetry import (
    HiSparseKVConnectorStats,
    OffloadingConnectorStats,
    TelemetryPipeline,
    start_metrics_server,
)

Read = Callable[[], dict[str, float]]
PER_STEP = {"hit": 12, "miss": 4, "resident": 3, "padding": 1}
STEP_BYTES = 64


class Engine:
    """A producer that counts a known step and hands over every few steps."""

    def __init__(self, pipeline: TelemetryPipeline, every: int) -> None:
        """Publish to `pipeline` after each `every` steps."""
        self.pipeline = pipeline
        self.every = every
        self.steps = 0
        self.stats = HiSparseKVConnectorStats()
        self.rows = OffloadingConnectorStats()

    def step(self) -> None:
        """Count one step of known selections and bytes."""
        self.steps += 1
        self.stats.record_snapshot(PER_STEP["hit"], PER_STEP["miss"], STEP_BYTES)
        self.stats.record_host_usage(0.5, self.steps % 3)
        for outcome, count in PER_STEP.items():
            self.rows.increase_counter("hisparse_hot_selections_total", count, (outcome, 0))
        self.rows.increase_counter("hisparse_hot_copied_bytes_total", STEP_BYTES, ("host_to_device", 5))
        self.rows.observe_histogram("hisparse_hot_gather_seconds", 0.25)
        if self.steps % self.every == 0:
            self.hand_over()

    def hand_over(self) -> None:
        """Send everything since the last time over a wire."""
        payload = {"HiSparse": self.stats.take(), "rows": self.rows.take()}
        self.pipeline.publish(msgspec.msgpack.decode(msgspec.msgpack.encode(payload)), engine=0)


@pytest.fixture
def pipeline(registry: CollectorRegistry) -> Iterator[TelemetryPipeline]:
    """Return a pipeline of model `m`."""
    with TelemetryPipeline(model_name="m", registry=registry) as running:
        yield running


@pytest.fixture
def read(
    registry: CollectorRegistry,
    scrape: Callable[[str], str],
    parse: Callable[[str], dict[tuple[str, frozenset[tuple[str, str]]], float]],
) -> Iterator[Read]:
    """Return a reader of the endpoint: values by name and labels other than model, engine and bucket."""
    with start_metrics_server(registry) as server:

        def values() -> dict[str, float]:
            found = {}
            for (name, labels), value in parse(scrape(server.url)).items():
                own = sorted(f"{key}={text}" for key, text in labels if key not in {"model_name", "engine"})
                found[",".join([name, *own])] = value
            return found

        yield values


def expected(steps: int) -> dict[str, float]:
    """Return what a scrape must show after `steps` steps."""
    outcomes = {
        f"hisparse_hot_selections_total,group=0,outcome={outcome}": count * steps for outcome, count in PER_STEP.items()
    }
    return outcomes | {
        "vllm:hisparse_cache_hits_total": 12 * steps,
        "vllm:hisparse_cache_misses_total": 4 * steps,
        "vllm:hisparse_host_to_device_bytes_total": STEP_BYTES * steps,
        "hisparse_hot_copied_bytes_total,direction=host_to_device,layer=5": STEP_BYTES * steps,
        "hisparse_hot_gather_seconds_count": steps,
        "hisparse_hot_gather_seconds_sum": 0.25 * steps,
        "vllm:hisparse_host_cache_usage_perc": 0.5,
        "vllm:hisparse_pending_page_transfers": steps % 3,
    }


@pytest.mark.parametrize("every", [1, 7, 10_000])
@pytest.mark.parametrize("steps", [1, 1999, 2001])
def test_a_scrape_shows_exactly_what_was_counted(
    pipeline: TelemetryPipeline, read: Read, steps: int, every: int
) -> None:
    """Known selections and bytes are what the endpoint shows, however often the engine hands over."""
    engine = Engine(pipeline, every)
    for _ in range(steps):
        engine.step()
    engine.hand_over()
    found = read()
    assert {key: found[key] for key in expected(steps)} == expected(steps)
    assert sum(value for key, value in found.items() if key.startswith("hisparse_telemetry_errors")) == 0


def test_reset_flush_and_an_empty_hand_over_keep_the_totals(pipeline: TelemetryPipeline, read: Read) -> None:
    """Handing over nothing, resetting the producer and flushing change no total."""
    engine = Engine(pipeline, every=1)
    engine.step()
    for change in (engine.hand_over, engine.stats.reset, engine.rows.reset, pipeline.flush, pipeline.flush):
        change()
        found = read()
        assert {key: found[key] for key in expected(1)} == expected(1)
    engine.step()
    found = read()
    assert {key: found[key] for key in expected(2)} == expected(2)


def test_counters_never_fall_between_scrapes(pipeline: TelemetryPipeline, read: Read) -> None:
    """From scrape to scrape every counter and bucket stays or grows."""
    engine = Engine(pipeline, every=3)
    scrapes = []
    for _ in range(10):
        engine.step()
        scrapes.append(read())
    counting = ("_total", "_bucket", "_count", "_sum")
    for before, after in pairwise(scrapes):
        for key, value in before.items():
            if key.split(",")[0].endswith(counting):
                assert after[key] >= value
