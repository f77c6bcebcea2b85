"""The contract of a residency backend and the sizes all backends share."""

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import SettingError
from hisparse.kernels.addressing import PageTable, StepAddresses
from hisparse.kernels.resolution import Resolution

ORDERS = ("stack", "vllm")
"""Recency orders after a step; see `Residency`."""

MAX_HOT_SLOTS = 2**15
"""A slot number is stored as int16: half the cache misses of int32 (7.7 against 10.4 ns a position)."""

MAX_POSITIONS = 2**31 - 1
"""Positions are int32."""

MAX_RESIDENT_ROW = 2**31 - 2
"""A resident row is answered as ``-2 - row`` in int32."""


@dataclass(frozen=True, slots=True)
class ResidencySettings:
    """Sizes of a residency, checked.

    Attributes:
        max_requests: Requests that own a hot buffer at the same time.
        hot_slots: Slots in the hot buffer of one request.
        max_positions: Positions a request can have.
        top_k: Positions selected by one row (K).
        page_rows: Rows in a device-resident page.
        order: Recency order after a step, one of `ORDERS`.
    """

    max_requests: int
    hot_slots: int
    max_positions: int
    top_k: int
    page_rows: int
    order: str

    def __post_init__(self) -> None:
        """Refuse sizes that cannot work, naming the value, the limit and the knob."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "order" and (isinstance(value, bool) or not isinstance(value, int)):
                raise SettingError(f"{field.name} must be an int, got {value!r}")
            if field.name != "order" and value < 1:
                raise SettingError(f"{field.name} is {value}, expected at least 1")
        if self.order not in ORDERS:
            raise SettingError(f"order must be one of {', '.join(ORDERS)}, got {self.order!r}")
        if self.hot_slots < self.top_k:
            raise SettingError(
                f"hot_slots is {self.hot_slots}, expected at least {self.top_k}: one step selects up to "
                f"top_k {self.top_k} rows and none of them may evict another; raise hot_slots"
            )
        if self.hot_slots > MAX_HOT_SLOTS:
            raise SettingError(
                f"hot_slots is {self.hot_slots}, expected at most {MAX_HOT_SLOTS}: "
                "a slot number is stored as int16; lower hot_slots"
            )
        if self.max_positions > MAX_POSITIONS:
            raise SettingError(
                f"max_positions is {self.max_positions}, expected at most {MAX_POSITIONS}: positions are int32"
            )

    @property
    def request_pages(self) -> int:
        """Pages that cover `max_positions`."""
        return -(-self.max_positions // self.page_rows)


class Backend(Protocol):
    """One implementation of the residency state; arguments arrive checked except for the values in `topk`."""

    def __init__(self, settings: ResidencySettings) -> None:
        """Allocate the fresh state of every request."""

    @property
    def state_bytes(self) -> int:
        """Bytes of address space the state takes; untouched parts of it cost no memory."""

    def resolve(
        self, requests: NDArray[np.int32], topk: NDArray[np.int32], resident_pages: NDArray[np.int32] | None
    ) -> Resolution | None:
        """Resolve one step, or change nothing and return None because a value in `topk` is at fault."""

    def resolve_rows(
        self, requests: NDArray[np.int32], topk: NDArray[np.int32], pages: PageTable, *, limit: int
    ) -> tuple[Resolution, StepAddresses] | None:
        """As `resolve`, where nothing is resident and positions lie below `limit`; and address the step."""

    def invalidate(self, request: int, positions: NDArray[np.int64]) -> None:
        """Make the slots that hold `positions` forget them; recency stays."""

    def reset(self, request: int) -> None:
        """Restore the fresh state of one request."""

    def recency(self, request: int) -> NDArray[np.int32]:
        """Return a copy of the slots, least recent first.  Reads only."""

    def positions(self, request: int) -> NDArray[np.int32]:
        """Return a copy of the position each slot holds, -1 where none.  Reads only."""

    def check(self, request: int) -> None:
        """Recount one request; raise AccountingError with the sum that does not hold.  Reads only."""
