"""From a counter to what a real Prometheus stores."""

from collections.abc import Iterator
from itertools import pairwise
from threading import Event, Thread

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from hisparse.telemetry import (
    HiSparseKVConnectorStats,
    OffloadingConnectorStats,
    TelemetryPipeline,
    start_metrics_server,
)
from live_prometheus import LivePrometheus, labels

PER_STEP = {"hit": 12, "miss": 4, "resident": 3, "padding": 1}
STEP_BYTES = 64


class Engine:
    """A producer that counts known steps and hands over what it counted as bytes."""

    def __init__(self, pipeline: TelemetryPipeline, engine: int = 0) -> None:
        """Publish to `pipeline` as `engine`."""
        self.pipeline = pipeline
        self.engine = engine
        self.stats = HiSparseKVConnectorStats()
        self.rows = OffloadingConnectorStats()

    def count(self, steps: int) -> None:
        """Count known selections and bytes of `steps` steps, one by one."""
        for _ in range(steps):
            self.stats.record_snapshot(PER_STEP["hit"], PER_STEP["miss"], STEP_BYTES)
            for outcome, count in PER_STEP.items():
                self.rows.increase_counter("hisparse_hot_selections_total", count, (outcome, 0))
            self.rows.increase_counter("hisparse_hot_copied_bytes_total", STEP_BYTES, ("host_to_device", 5))
            self.rows.observe_histogram("hisparse_hot_gather_seconds", 0.25)

    def hand_over(self) -> None:
        """Send everything since the last time over a wire."""
        payload = {"HiSparse": self.stats.take(), "rows": self.rows.take()}
        self.pipeline.publish(msgspec.msgpack.decode(msgspec.msgpack.encode(payload)), engine=self.engine)


def expected(steps: int) -> dict[str, float]:
    """Return what must be stored after `steps` steps of one engine."""
    outcomes = {
        f"hisparse_hot_selections_total,group=0,outcome={outcome}": count * steps for outcome, count in PER_STEP.items()
    }
    return outcomes | {
        "vllm:hisparse_cache_hits_total": 12 * steps,
        "vllm:hisparse_cache_misses_total": 4 * steps,
        "vllm:hisparse_host_to_device_bytes_total": STEP_BYTES * steps,
        "hisparse_hot_copied_bytes_total,direction=host_to_device,layer=5": STEP_BYTES * steps,
        "hisparse_hot_gather_seconds_bucket,le=0.2": 0,
        "hisparse_hot_gather_seconds_bucket,le=0.5": steps,
        "hisparse_hot_gather_seconds_bucket,le=+Inf": steps,
        "hisparse_hot_gather_seconds_count": steps,
        "hisparse_hot_gather_seconds_sum": 0.25 * steps,
    }


@pytest.fixture
def pipeline(port: int) -> Iterator[TelemetryPipeline]:
    """Return a pipeline of model `m` that is served on the scraped port."""
    registry = CollectorRegistry()
    with TelemetryPipeline(model_name="m", registry=registry) as running, start_metrics_server(registry, port=port):
        yield running


def check_stored(prometheus: LivePrometheus, port: int, steps: int) -> None:
    """Check that the next scrape stores what `steps` steps counted, and no telemetry error."""
    prometheus.wait_for_scrape(port)
    found = prometheus.stored(port)
    assert {key: found.get(key) for key in expected(steps)} == expected(steps)
    errors = [value for key, value in found.items() if key.startswith("hisparse_telemetry_errors_total")]
    assert errors
    assert sum(errors) == 0


def test_known_steps_are_what_is_stored(prometheus: LivePrometheus, pipeline: TelemetryPipeline, port: int) -> None:
    """After 1, 1999 and 2001 steps Prometheus stores what was counted, under the documented names and types."""
    engine = Engine(pipeline)
    for before, steps in pairwise((0, 1, 1999, 2001)):
        engine.count(steps - before)
        engine.hand_over()
        check_stored(prometheus, port, steps)
    types = prometheus.metadata(port)
    assert types["vllm:hisparse_cache_hits_total"] == "counter"
    assert types["hisparse_hot_selections_total"] == "counter"
    assert types["hisparse_hot_gather_seconds"] == "histogram"
    assert types["hisparse_host_used_bytes"] == "gauge"


def test_reset_and_a_new_pipeline_lose_nothing(
    prometheus: LivePrometheus, pipeline: TelemetryPipeline, port: int
) -> None:
    """A producer's reset after its hand-over, an idle tick, a flush and a second pipeline keep the totals."""
    engine = Engine(pipeline)
    engine.count(3)
    engine.hand_over()
    engine.stats.reset()
    engine.rows.reset()
    engine.hand_over()
    pipeline.publish({})
    pipeline.flush()
    check_stored(prometheus, port, 3)
    with TelemetryPipeline(model_name="m", registry=pipeline.registry) as second:
        again = Engine(second)
        again.count(2)
        again.hand_over()
    check_stored(prometheus, port, 5)


def test_engines_are_kept_apart(prometheus: LivePrometheus, pipeline: TelemetryPipeline, port: int) -> None:
    """Two engines of one process are two series, and their sum is what both counted."""
    for index, steps in ((0, 2), (1, 5)):
        engine = Engine(pipeline, index)
        engine.count(steps)
        engine.hand_over()
    prometheus.wait_for_scrape(port)
    hits = f'vllm:hisparse_cache_hits_total{{instance="127.0.0.1:{port}"}}'
    assert prometheus.query(f"sum by (engine) ({hits})") == {labels(engine="0"): 24, labels(engine="1"): 60}
    assert prometheus.value(f"sum({hits})") == 84


def test_heavy_publishing_never_shows_half_a_step(
    prometheus: LivePrometheus, pipeline: TelemetryPipeline, port: int
) -> None:
    """While steps are published without a pause, no counter falls, and each scrape shows whole steps."""
    stop = Event()

    def publish() -> None:
        engine = Engine(pipeline)
        while not stop.is_set():
            engine.count(1)
            engine.hand_over()

    thread = Thread(target=publish)
    thread.start()
    try:
        for _ in range(5):
            prometheus.wait_for_scrape(port)
    finally:
        stop.set()
        thread.join()
    history = prometheus.history(port)
    counters = ("_total", "_bucket", "_count", "_sum")
    falling = [name for name, values in history.items() if name.split(",")[0].endswith(counters) and not rises(values)]
    assert falling == []
    steps = [
        [value / per_step for value in history[f"hisparse_hot_selections_total,group=0,outcome={outcome}"]]
        for outcome, per_step in PER_STEP.items()
    ]
    assert len(set(steps[0])) >= 4
    assert all(of_outcome == steps[0] for of_outcome in steps)


def rises(values: list[float]) -> bool:
    """Tell whether no value is less than the one before."""
    return all(before <= after for before, after in pairwise(values))
