"""From a resolution to row addresses.  Loops only."""

# ruff: noqa: PLR0917 - numba has no keyword-only arguments
from typing import Any

from hisparse.kernels._numba_compile import int64, kernel, part


@part
def fill_addresses(
    resolution: Any, requests: Any, first_rows: Any, page_rows: int, hot_slots: int, addresses: Any
) -> None:
    """Fill `addresses` (slots, is_selected, miss_slots, miss_rows) from `resolution` (slots, three miss lists)."""
    slots, miss_request, miss_position, miss_slot = resolution
    flat_slots, is_selected, miss_slots, miss_rows = addresses
    for b in range(slots.shape[0]):
        first = int64(max(requests[b], 0)) * hot_slots
        for j in range(slots.shape[1]):
            slot = slots[b, j]
            is_selected[b, j] = slot >= 0
            flat_slots[b, j] = first + max(slot, 0)
    for m in range(miss_slot.shape[0]):
        request = miss_request[m]
        page = miss_position[m] // page_rows
        miss_slots[m] = int64(request) * hot_slots + miss_slot[m]
        miss_rows[m] = first_rows[request, page] + (miss_position[m] - page * page_rows)


@kernel
def address(resolution: Any, requests: Any, first_rows: Any, page_rows: int, hot_slots: int, addresses: Any) -> None:
    """As `fill_addresses`."""
    fill_addresses(resolution, requests, first_rows, page_rows, hot_slots, addresses)
