"""What the scheduler side knows of the host pool at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hisparse.connectors.hisparse.schedule import Schedule
from hisparse.telemetry import HiSparseConnectorStats, SkipReason


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLevels:
    """Levels of a host pool, and the configuration in words.

    Attributes:
        pages: Pages of the pool.
        used_pages: Pages that hold rows.
        reserved_pages: Pages promised to admitted requests and not yet used.
        null_pages: Pages that never hold rows, such as the null block of a block pool.
        page_bytes: Bytes of one page over all layers.
        pending_page_transfers: Page transfers between device and host that have not completed.
        link_bytes_per_second: Speed of copies from this pool to the device, 0 where not known or no pool is open; None
            where workers tell it.
        labels: Labels of ``hisparse_hot_config_info``; empty where there is no configuration to tell.
    """

    pages: int = 0
    used_pages: int = 0
    reserved_pages: int = 0
    null_pages: int = 0
    page_bytes: int = 0
    pending_page_transfers: int = 0
    link_bytes_per_second: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def usage_ratio(self) -> float:
        """Used part of the pages that can hold rows; 0 without such pages."""
        usable = self.pages - self.null_pages
        return self.used_pages / usable if usable > 0 else 0.0


class LevelSource(Protocol):
    """Where the scheduler side reads its levels."""

    def levels(self) -> HostLevels:
        """Return the levels now. Reads only, never blocks."""
        ...


class LevelRecorder:
    """The scheduler side: usage and transfers at every call, the rest when it changed or a period is over."""

    def __init__(self, source: LevelSource, period: Schedule) -> None:
        """Read levels from `source`; the first record tells everything."""
        self._source = source
        self._period = period
        self._told = HostLevels()

    def record(self, stats: HiSparseConnectorStats) -> None:
        """Record the levels now in `stats`; a source that raises is counted there, and tells nothing."""
        try:
            levels = self._source.levels()
        except Exception as error:  # noqa: BLE001  a pool that can't be asked must not end a scheduling step
            stats.skip(SkipReason.INTERNAL, f"{type(error).__name__} while reading levels: {error}")
            return
        stats.record_host_usage(levels.usage_ratio, levels.pending_page_transfers)
        self._period.count_call()
        if levels == self._told and not self._period.is_due():
            return
        self._told = levels
        self._period.restart()
        stats.set_gauge("hisparse_host_used_bytes", levels.used_pages * levels.page_bytes)
        stats.set_gauge("hisparse_host_reserved_bytes", levels.reserved_pages * levels.page_bytes)
        stats.set_gauge("hisparse_host_capacity_bytes", (levels.pages - levels.null_pages) * levels.page_bytes)
        if levels.link_bytes_per_second is not None:
            stats.set_gauge("hisparse_host_link_bytes_per_second", levels.link_bytes_per_second)
        if levels.labels:
            stats.set_info("hisparse_hot_config_info", levels.labels)
