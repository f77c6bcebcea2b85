"""Running totals of one engine."""

import sys
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from hisparse.telemetry import CATALOGUE, HiSparseKVConnectorStats, Histogram, MetricStore, OffloadingConnectorStats
from hisparse.telemetry.values import MAX_SERIES


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_threads")
def test_a_snapshot_is_of_one_moment() -> None:
    """While another thread adds statistics, every snapshot shows all of them or none."""
    store = MetricStore(CATALOGUE)
    stats = HiSparseKVConnectorStats()
    stats.record_snapshot(3, 1, 0)

    enough = Event()

    def add() -> None:
        while not enough.is_set():
            store.apply(stats)

    thread = Thread(target=add)
    thread.start()
    snapshots = [store.snapshot() for _ in range(1500)]
    enough.set()
    thread.join()
    pairs = [(seen["vllm:hisparse_cache_hits"][()], seen["vllm:hisparse_cache_misses"][()]) for seen in snapshots]
    assert len(set(pairs)) > 1
    assert [pair for pair in pairs if pair[0] != 3 * pair[1]] == []


def test_a_snapshot_does_not_change() -> None:
    """Statistics added later leave an earlier snapshot alone, histograms included."""
    store, stats = MetricStore(CATALOGUE), OffloadingConnectorStats()
    stats.observe_histogram("hisparse_hot_gather_seconds", 0.5)
    store.apply(stats)
    before = store.snapshot()["hisparse_hot_gather_seconds"][()]
    store.apply(stats)
    assert isinstance(before, Histogram)
    assert before.count == 1


def test_applying_leaves_the_statistics_alone() -> None:
    """Totals do not grow into the container that was applied."""
    store, stats = MetricStore(CATALOGUE), OffloadingConnectorStats()
    stats.observe_histogram("hisparse_hot_gather_seconds", 0.5)
    for _ in range(3):
        store.apply(stats)
    assert stats.reduce()["hisparse_hot_gather_seconds_count"] == 1


def test_series_of_one_metric_are_bounded() -> None:
    """A stream of ever new label values over many payloads is cut off at the bound and counted."""
    store = MetricStore(CATALOGUE)
    for first in range(0, MAX_SERIES + 100, 100):
        stats = OffloadingConnectorStats()
        for layer in range(first, first + 100):
            stats.increase_counter("hisparse_hot_copied_bytes_total", 1, ("host_to_device", layer))
        skipped = store.apply(stats)
    snapshot = store.snapshot()
    assert MAX_SERIES <= len(snapshot["hisparse_hot_copied_bytes_total"]) <= MAX_SERIES + 1
    assert set(skipped) == {"too_many_series"}
    assert snapshot["hisparse_telemetry_errors_total"][("too_many_series",)]


def test_what_was_recorded_differs_from_what_exists() -> None:
    """A store knows which of its zeros somebody recorded."""
    store, stats = MetricStore(CATALOGUE), OffloadingConnectorStats()
    stats.set_gauge("hisparse_host_used_bytes", 0)
    store.apply(stats)
    assert store.recorded() == {"hisparse_host_used_bytes"}
