"""From a cache's counters and its pool to the telemetry pipeline, by the two sides of one connector."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic

from hisparse.connectors import GroupCounterSource, HiSparseConnector, HostLevels
from hisparse.hot import GroupCounters
from hisparse.integrations.transformers.geometry import ModelGeometry
from hisparse.integrations.transformers.link import measured_link_bytes_per_second
from hisparse.integrations.transformers.slot import StoreSlot
from hisparse.integrations.transformers.stats import PrefixCounts
from hisparse.integrations.transformers.tiered import TieredRows
from hisparse.telemetry import HiSparseConnectorStats, KVConnectorStats, TelemetryPipeline, merge_step

QUERIED_METRIC = "hisparse_host_prefix_queried_tokens_total"
HIT_METRIC = "hisparse_host_prefix_hit_tokens_total"


class SlotLevels:
    """Levels of the pool of whatever batch is open: zero where none is."""

    def __init__(self, slot: StoreSlot) -> None:
        """Look into `slot` at each call."""
        self._slot = slot

    @property
    def pages(self) -> tuple[int, int, int]:
        """Pages of the pool, used and reserved."""
        store = self._slot.store
        if not isinstance(store, TieredRows):
            return 0, 0, 0
        pool = store.host.pool
        return pool.pages, pool.used_pages, pool.reserved_pages

    def levels(self) -> HostLevels:
        """Return the levels now. Reads only."""
        store = self._slot.store
        if not isinstance(store, TieredRows):
            return HostLevels(link_bytes_per_second=0.0)
        pages, used, reserved = self.pages
        return HostLevels(
            pages=pages,
            used_pages=used,
            reserved_pages=reserved,
            page_bytes=store.host.pool.capacity_bytes // pages,
            link_bytes_per_second=self._link_bytes_per_second(store),
            labels=store.plan.labels,
        )

    def _link_bytes_per_second(self, store: TieredRows) -> float:
        """Return the speed of copies to the device: as set, or measured where the pool is in memory, else 0."""
        settings = store.plan.settings
        if settings.link_bytes_per_second is not None:
            return settings.link_bytes_per_second
        try:
            return measured_link_bytes_per_second(str(store.plan.device)) if settings.host_pool == "ram" else 0.0
        except Exception:  # noqa: BLE001  a speed that nobody can tell is not known, and no reason to lose levels
            return 0.0


class CacheSampler:
    """Publishes what a cache counts from now on, and the levels of its pool.

    Counters on a CPU can be read at any time, so a sample never waits for the device.
    """

    def __init__(
        self,
        pipeline: TelemetryPipeline,
        geometry: ModelGeometry,
        counters: Sequence[GroupCounters],
        *,
        slot: StoreSlot,
        prefixes: PrefixCounts | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Publish to `pipeline` what `counters` (one per index group), the pool in `slot` and `prefixes` say."""
        self._pipeline = pipeline
        self._levels = SlotLevels(slot)
        source = GroupCounterSource(geometry.groups, counters)
        self._worker = HiSparseConnector("worker", source=source, clock=clock)
        self._scheduler = HiSparseConnector("scheduler", levels=self._levels, clock=clock)
        self._published_pages = self._levels.pages
        self._prefixes = PrefixCounts() if prefixes is None else prefixes
        self._published_prefixes = replace(self._prefixes)

    def step(self) -> None:
        """End a forward pass: publish a sample if there is one, and the levels if they changed."""
        self._publish(self._worker.get_kv_connector_stats())

    def tell_levels(self) -> None:
        """Publish the levels if they changed, after what was no forward pass."""
        self._publish(None)

    def flush(self) -> None:
        """Publish everything counted so far."""
        self._worker.flush()
        self.step()

    def _publish(self, counted: KVConnectorStats | None) -> None:
        """Publish both sides as one, unless neither has news."""
        pages = self._levels.pages
        told, now = self._published_prefixes, replace(self._prefixes)
        if counted is None and pages == self._published_pages and told == now:
            return
        self._published_pages, self._published_prefixes = pages, now
        asked = HiSparseConnectorStats()
        if told != now:
            asked.increase_counter(QUERIED_METRIC, now.queried_tokens - told.queried_tokens)
            asked.increase_counter(HIT_METRIC, now.hit_tokens - told.hit_tokens)
        stats = merge_step(counted, merge_step(asked, self._scheduler.get_kv_connector_stats()))
        self._pipeline.publish({self._worker.name: stats})
