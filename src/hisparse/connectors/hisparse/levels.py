"""What the scheduler side knows of the host pool at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from hisparse.connectors.hisparse.schedule import Schedule
from hisparse.connectors.reading import explained, read_whole
from hisparse.telemetry import HiSparseConnectorStats, SkipReason
from hisparse.telemetry.values import ItemError, show


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

    Raises:
        MetricError: A level is no whole number >= 0, or more pages are used than can hold rows.
    """

    pages: int = 0
    used_pages: int = 0
    reserved_pages: int = 0
    null_pages: int = 0
    page_bytes: int = 0
    pending_page_transfers: int = 0
    link_bytes_per_second: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what no pool can be like."""
        for level in ("pages", "used_pages", "reserved_pages", "null_pages", "page_bytes", "pending_page_transfers"):
            read_whole(getattr(self, level), level)
        if self.used_pages > self.pages - self.null_pages or self.null_pages > self.pages:
            held = f"{self.used_pages} used and {self.null_pages} null pages"
            raise ItemError(SkipReason.OUT_OF_RANGE, f"a pool of {self.pages} pages has no {held}")

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
        """Record the levels now in `stats`; a source that raises, or tells no levels, is counted there."""
        try:
            self._record(self._source.levels(), stats)
        except ItemError as error:
            stats.skip(error.reason, str(error))
        except Exception as error:  # noqa: BLE001  a pool that can't be asked must not end a scheduling step
            stats.skip(SkipReason.INTERNAL, f"while reading levels: {explained(error)}")

    def _record(self, levels: Any, stats: HiSparseConnectorStats) -> None:
        if not isinstance(levels, HostLevels):
            raise ItemError(SkipReason.WRONG_TYPE, f"levels() must return HostLevels, got {show(levels)}")
        stats.record_host_usage(levels.usage_ratio, levels.pending_page_transfers)
        self._period.count_call()
        if levels == self._told and not self._period.is_due():
            return
        stats.set_gauge("hisparse_host_used_bytes", levels.used_pages * levels.page_bytes)
        stats.set_gauge("hisparse_host_reserved_bytes", levels.reserved_pages * levels.page_bytes)
        stats.set_gauge("hisparse_host_capacity_bytes", (levels.pages - levels.null_pages) * levels.page_bytes)
        if levels.link_bytes_per_second is not None:
            stats.set_gauge("hisparse_host_link_bytes_per_second", levels.link_bytes_per_second)
        if levels.labels:
            stats.set_info("hisparse_hot_config_info", levels.labels)
        self._told = levels
        self._period.restart()
