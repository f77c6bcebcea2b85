"""Statistics that nobody takes: memory stays bounded, sums stay exact."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from hisparse.telemetry import CATALOGUE, HiSparseConnectorStats, HiSparseKVConnectorStats, OffloadingConnectorStats
from hisparse.telemetry.hisparse_stats import RESIDENCY

STEPS = 20_000
LIMIT_BYTES = 192 * 1024
MOVED = "hisparse_hot_copied_bytes_total"
SECONDS = "hisparse_hot_gather_seconds"


def hot() -> tuple[Any, Callable[[], None]]:
    """Return hot buffer statistics and one step of them."""
    stats = HiSparseKVConnectorStats()

    def step() -> None:
        stats.record_snapshot(10**6, 3, 64)
        stats.record_host_usage(0.5, 1)
        stats.record_residency(RESIDENCY[0], [0.25, 7.0])

    return stats, step


def labelled() -> tuple[Any, Callable[[], None]]:
    """Return labelled statistics, written by name and by handle, and one step of them."""
    stats = OffloadingConnectorStats()
    counter, seconds = stats.counter(MOVED, ("device_to_host", 0)), stats.histogram(SECONDS)

    def step() -> None:
        stats.increase_counter(MOVED, 64, ("host_to_device", 3))
        counter.add(64)
        seconds.observe([0.25, 0.5])
        stats.set_gauge("hisparse_host_used_bytes", 7)

    return stats, step


def ranked() -> tuple[Any, Callable[[], None]]:
    """Return statistics into which the plain forms of two ranks are merged, and one step of that."""
    stats = HiSparseConnectorStats()
    parts = []
    for rank in (0, 1):
        part = HiSparseConnectorStats(rank=rank)
        part.record_snapshot(12, 4, 64)
        part.increase_counter(MOVED, 64, ("host_to_device", 3))
        parts.append(part.to_dict())

    def step() -> None:
        for part in parts:
            stats.aggregate(part)

    return stats, step


@pytest.mark.parametrize(
    ("make", "steps", "exact"),
    [
        (hot, STEPS, {"HiSparse hot-buffer hits": STEPS * 10**6, "HiSparse host-to-device bytes": STEPS * 64}),
        (
            labelled,
            STEPS,
            {
                f"{MOVED}:('host_to_device', '3')": STEPS * 64,
                f"{MOVED}:('device_to_host', '0')": STEPS * 64,
                f"{SECONDS}_count": STEPS * 2,
                f"{SECONDS}_sum": STEPS * 0.75,
            },
        ),
        (ranked, 2000, {"HiSparse hot-buffer hits": 2000 * 12, "HiSparse host-to-device bytes": 2000 * 128}),
    ],
)
def test_undrained_statistics_stay_bounded_and_exact(
    make: Callable[[], tuple[Any, Callable[[], None]]], steps: int, exact: dict[str, float]
) -> None:
    """Steps that nobody drains cost at most 192 KiB in every kind of container, and every sum is exact."""
    stats, step = make()
    step()
    tracemalloc.start()
    for _ in range(steps - 1):
        step()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < LIMIT_BYTES
    reduced = stats.reduce()
    assert {key: reduced[key] for key in exact} == exact
    assert stats.errors == {}


def test_a_sum_too_large_to_send_is_refused_where_it_arises() -> None:
    """A count that would pass 2**53 before it is taken leaves the container sendable, and the step is counted."""
    hot_stats, own = HiSparseKVConnectorStats(), OffloadingConnectorStats()
    counter, sizes = own.counter(MOVED, ("host_to_device", 0)), own.histogram("vllm:kv_offload_load_size")
    for _ in range(3):
        counter.add(2**52)
        sizes.observe([2.0**52])
    assert own.errors == {"out_of_range": 2}
    for _ in range(600):
        hot_stats.record_snapshot(2**52, 0, 0)
    assert hot_stats.errors["out_of_range"] > 0
    for stats in (hot_stats, own):
        again = type(stats)(stats.to_dict())
        assert again == stats
    merged = OffloadingConnectorStats(rank=1).aggregate(own).aggregate(own)
    assert merged.errors == {"out_of_range": 4 + 2}
    assert CATALOGUE[MOVED].across_ranks == "sum"
