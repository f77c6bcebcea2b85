"""From a cache's counters to the telemetry pipeline: what was counted since the last sample."""

from collections.abc import Callable, Sequence
from time import monotonic

import numpy as np

from hisparse.hot import FETCH_METRIC, GroupCounters
from hisparse.integrations.transformers.geometry import ModelGeometry
from hisparse.integrations.transformers.slot import StoreSlot
from hisparse.integrations.transformers.tiered import TieredRows
from hisparse.kernels import COUNT_FIELDS
from hisparse.telemetry import HiSparseKVConnectorStats, Histogram, OffloadingConnectorStats, TelemetryPipeline

SAMPLE_EVERY_SECONDS = 1.0
SAMPLE_EVERY_STEPS = 2000


class CounterSampler:
    """Publishes the growth of a cache's counters, by time or by steps, whichever comes first.

    Counters on a CPU can be read at any time, so a sample never waits for the device.
    """

    def __init__(
        self,
        pipeline: TelemetryPipeline,
        geometry: ModelGeometry,
        counters: Sequence[GroupCounters],
        *,
        slot: StoreSlot,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Publish to `pipeline` what `counters` (one per index group) count from now on."""
        self._pipeline = pipeline
        self._groups = geometry.groups
        self._counters = counters
        self._slot = slot
        self._clock = clock
        self._published = [group.copy() for group in counters]
        self._sampled_at = clock()
        self._steps = 0

    def step(self) -> None:
        """Count one forward pass, and sample if one is due."""
        self._steps += 1
        if self._steps >= SAMPLE_EVERY_STEPS or self._clock() - self._sampled_at >= SAMPLE_EVERY_SECONDS:
            self.sample()

    def sample(self) -> None:
        """Publish the growth since the last sample; nothing is counted twice, nothing is lost."""
        operator, own = HiSparseKVConnectorStats(), OffloadingConnectorStats()
        total = np.zeros(len(COUNT_FIELDS), np.int64)
        copied_bytes = 0
        for group, (now, before) in enumerate(zip(self._counters, self._published, strict=True)):
            grown = now.selections - before.selections
            total += grown
            for outcome, count in zip(COUNT_FIELDS, grown, strict=True):
                own.increase_counter("hisparse_hot_selections_total", int(count), (outcome, group))
            for layer, grown_bytes in zip(self._groups[group], now.loaded_bytes - before.loaded_bytes, strict=True):
                own.increase_counter("hisparse_hot_copied_bytes_total", int(grown_bytes), ("host_to_device", layer))
                copied_bytes += int(grown_bytes)
            own.merge_histogram(FETCH_METRIC, _difference(now.fetches, before.fetches))
        operator.record_snapshot(int(total[0]), int(total[1]), copied_bytes)
        self._record_pool(operator, own)
        self._pipeline.publish({"HiSparse": operator.take(), "rows": own.take()})
        self._published = [group.copy() for group in self._counters]
        self._sampled_at = self._clock()
        self._steps = 0

    def _record_pool(self, operator: HiSparseKVConnectorStats, own: OffloadingConnectorStats) -> None:
        """Record the levels of the host pool: zero where no batch is open."""
        store = self._slot.store
        if not isinstance(store, TieredRows):
            operator.record_host_usage(0.0, 0)
            for name in ("used", "reserved", "capacity"):
                own.set_gauge(f"hisparse_host_{name}_bytes", 0)
            return
        pool = store.host.pool
        operator.record_host_usage(pool.used_bytes / pool.capacity_bytes, 0)
        own.set_gauge("hisparse_host_used_bytes", pool.used_bytes)
        pages = pool.free_pages + pool.used_pages + pool.reserved_pages
        own.set_gauge("hisparse_host_reserved_bytes", pool.capacity_bytes // pages * pool.reserved_pages)
        own.set_gauge("hisparse_host_capacity_bytes", pool.capacity_bytes)
        own.set_info("hisparse_hot_config_info", store.plan.labels)


def _difference(now: Histogram, before: Histogram) -> Histogram:
    """Return the samples of `now` that are not in `before`."""
    counts = [new - old for new, old in zip(now.counts, before.counts, strict=True)]
    return Histogram(now.bounds, counts, max(0.0, now.sum - before.sum))
