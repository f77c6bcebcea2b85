"""Bytes of memory that a million steps of statistics cost when nobody takes them, for each kind of container.

    python benchmarks/memory_telemetry.py [--steps N]

Peak as tracemalloc counts it, after a first step; the sums are compared with what was recorded.
"""

import argparse
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

from hisparse.telemetry import HiSparseConnectorStats, HiSparseKVConnectorStats, OffloadingConnectorStats

MOVED, SECONDS = "hisparse_hot_copied_bytes_total", "hisparse_hot_gather_seconds"
MOVED_LABELS = ("host_to_device", "3")
Case = tuple[Any, Callable[[], None], dict[str, float]]


def hot() -> Case:
    """Return hot buffer statistics, a step of them, and what a step reduces to."""
    stats = HiSparseKVConnectorStats()

    def step() -> None:
        stats.record_snapshot(12, 4, 64)
        stats.record_host_usage(0.5, 1)
        stats.record_residency("host_block_reuse_gap_seconds", [0.25, 7.0])

    return stats, step, {"HiSparse hot-buffer hits": 12, "HiSparse host-to-device bytes": 64}


def labelled() -> Case:
    """Return the same of labelled statistics."""
    stats = OffloadingConnectorStats()
    counter, seconds = stats.counter(MOVED, MOVED_LABELS), stats.histogram(SECONDS)

    def step() -> None:
        counter.add(64)
        seconds.observe([0.25, 0.5])
        stats.set_gauge("hisparse_host_used_bytes", 7)

    return stats, step, {f"{MOVED}:{MOVED_LABELS}": 64, f"{SECONDS}_count": 2, f"{SECONDS}_sum": 0.75}


def connector() -> Case:
    """Return the same of a connector's statistics into which two ranks' are merged."""
    stats = HiSparseConnectorStats()
    ranks = []
    for rank in (0, 1):
        one = HiSparseConnectorStats(rank=rank)
        one.record_snapshot(12, 4, 64)
        one.increase_counter(MOVED, 64, MOVED_LABELS)
        ranks.append(one)

    def step() -> None:
        for one in ranks:
            stats.aggregate(one)

    return stats, step, {"HiSparse hot-buffer hits": 12, "HiSparse host-to-device bytes": 128}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    steps = parser.parse_args().steps
    status = 0
    for make in (hot, labelled, connector):
        stats, step, of_a_step = make()
        step()
        tracemalloc.start()
        for _ in range(steps - 1):
            step()
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        reduced = stats.reduce()
        exact = not stats.errors and all(reduced[key] == steps * value for key, value in of_a_step.items())
        status = status or int(not exact)
        sums = "exact" if exact else "WRONG"
        print(f"{type(stats).__name__}: {steps} steps, peak {peak_bytes / 1024:.1f} KiB, sums {sums}")
    return status


if __name__ == "__main__":
    sys.exit(main())
