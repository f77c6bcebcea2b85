"""Settings of a coordinator."""

from dataclasses import dataclass
from typing import Literal

from hisparse.errors import SettingError

SpillMode = Literal["eager", "pressure"]
MAX_WORKERS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """What a coordinator is told once; see `HiSparseCoordinator`."""

    device_pages: int
    page_rows: int
    hot_pages: int
    watermark_pages: int
    max_spill_pages: int
    pinned_tail_pages: int
    workers: int
    spill: SpillMode
    page_bytes: int

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        least = {
            "page_rows": 1,
            "hot_pages": 0,
            "watermark_pages": 0,
            "max_spill_pages": 1,
            "pinned_tail_pages": 1,
            "workers": 1,
            "page_bytes": 0,
        }
        for name, limit in least.items():
            if getattr(self, name) < limit:
                raise SettingError(f"{name} must be at least {limit}, got {getattr(self, name)}")
        if self.workers > MAX_WORKERS:
            raise SettingError(f"workers must be at most {MAX_WORKERS}, got {self.workers}")
        if self.spill not in {"eager", "pressure"}:
            raise SettingError(f"spill must be 'eager' or 'pressure', got {self.spill!r}")
        if self.device_pages < self.floor_pages:
            raise SettingError(
                f"device_pages must be at least {self.floor_pages} ({self.hot_pages} for a hot buffer, "
                f"{self.pinned_tail_pages} at the end of a request, 1 to go on), got {self.device_pages}; "
                "raise device_pages or lower hot_pages"
            )

    @property
    def floor_pages(self) -> int:
        """Device pages that let any request go on: a hot buffer, the pinned tail, and the page it enters next."""
        return self.hot_pages + self.pinned_tail_pages + 1

    def bytes_of(self, rows: int) -> int:
        """Bytes of rows over all layers, where `page_bytes` was given."""
        return rows * self.page_bytes // self.page_rows
