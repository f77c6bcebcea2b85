"""The residency state in plain numpy: the definition of correct."""

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import AccountingError
from hisparse.kernels._faults import find_fault, resident_rows
from hisparse.kernels.addressing import PageTable, StepAddresses, address_step
from hisparse.kernels.backend import ResidencySettings
from hisparse.kernels.resolution import PADDING, Resolution

NONE = -1


class _HotBuffer:
    """One request's hot buffer.

    Attributes:
        order: int32 ``[H]``, slots, least recent first.
        position_of: int32 ``[H]``, position each slot holds, -1 where none.
        slot_of: int32 ``[max_positions]``, slot of each position, -1 where none.
        is_stack: Whether hits and misses interleave in the recency order (order ``stack``).
    """

    def __init__(self, settings: ResidencySettings) -> None:
        self.order = np.arange(settings.hot_slots, dtype=np.int32)
        self.position_of = np.full(settings.hot_slots, NONE, np.int32)
        self.slot_of = np.full(settings.max_positions, NONE, np.int32)
        self.is_stack = settings.order == "stack"

    def load(self, selected: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Make room for the positions `selected`, unique and in order of first reference.

        Changes slots and recency.

        Returns:
            The positions to fetch and the slots they go to, int32 ``[M]`` each.
        """
        slots = self.slot_of[selected]
        hits = slots[slots != NONE]
        miss_position = selected[slots == NONE]
        is_hit = np.isin(self.order, hits)
        unused = self.order[~is_hit]
        miss_slot = unused[: miss_position.size]

        evicted = self.position_of[miss_slot]
        self.slot_of[evicted[evicted != NONE]] = NONE
        self.slot_of[miss_position] = miss_slot
        self.position_of[miss_slot] = miss_position

        used = self.slot_of[selected] if self.is_stack else np.concatenate([miss_slot, self.order[is_hit]])
        self.order = np.concatenate([unused[miss_position.size :], used])
        return miss_position, miss_slot


class ReferenceBackend:
    """Every rule of the contract as one array expression."""

    def __init__(self, settings: ResidencySettings) -> None:
        """Allocate the fresh state of every request."""
        self._settings = settings
        self._buffers = [_HotBuffer(settings) for _ in range(settings.max_requests)]

    @property
    def state_bytes(self) -> int:
        """Bytes of the state's arrays."""
        return sum(b.order.nbytes + b.position_of.nbytes + b.slot_of.nbytes for b in self._buffers)

    def resolve(
        self, requests: NDArray[np.int32], topk: NDArray[np.int32], resident_pages: NDArray[np.int32] | None
    ) -> Resolution | None:
        """Resolve one step, or change nothing and return None because a value in `topk` is at fault."""
        if find_fault(requests, topk, resident_pages, settings=self._settings) is not None:
            return None
        slots = np.full(topk.shape, PADDING, np.int32)
        counts = np.zeros((len(requests), 4), np.int64)
        misses = [np.empty((3, 0), np.int32)]
        for request in dict.fromkeys(requests[requests != PADDING].tolist()):
            rows = np.flatnonzero(requests == request)
            pages = None if resident_pages is None else resident_pages[request]
            slots[rows], counts[rows, :3], position, slot = self._resolve_run(request, topk[rows], pages)
            misses.append(np.stack([np.full_like(slot, request), position, slot]))
        counts[:, 3] = topk.shape[1] - counts[:, :3].sum(axis=1)
        request_, position, slot = np.concatenate(misses, axis=1)
        return Resolution(slots, request_.copy(), position.copy(), slot.copy(), counts)

    def resolve_rows(
        self, requests: NDArray[np.int32], topk: NDArray[np.int32], pages: PageTable, *, limit: int
    ) -> tuple[Resolution, StepAddresses] | None:
        """As `resolve`, where nothing is resident and positions lie below `limit`; and address the step."""
        if (topk[requests != PADDING] >= limit).any():
            return None
        resolution = self.resolve(requests, topk, None)
        if resolution is None:
            return None
        return resolution, address_step(resolution, requests, pages, hot_slots=self._settings.hot_slots)

    def _resolve_run(
        self, request: int, topk: NDArray[np.int32], pages: NDArray[np.int32] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
        """Resolve all rows of one request; return slots, hit/miss/resident counts and the misses."""
        buffer = self._buffers[request]
        device_row = np.full(topk.shape, NONE, np.int64)
        if pages is not None:
            device_row = np.where(
                topk == PADDING, NONE, resident_rows(pages, np.maximum(topk, 0), self._settings.page_rows)
            )
        is_hot = (topk != PADDING) & (device_row == NONE)
        unique, first = np.unique(topk[is_hot], return_index=True)
        miss_position, miss_slot = buffer.load(unique[np.argsort(first)])

        is_miss = np.zeros(topk.shape, bool)
        is_miss.flat[np.flatnonzero(is_hot)[first]] = np.isin(unique, miss_position)
        slots = np.full(topk.shape, PADDING, np.int32)
        slots[is_hot] = buffer.slot_of[topk[is_hot]]
        slots[device_row != NONE] = -2 - device_row[device_row != NONE]
        counts = [(is_hot & ~is_miss).sum(axis=1), is_miss.sum(axis=1), (device_row != NONE).sum(axis=1)]
        return slots, np.stack(counts, axis=1), miss_position, miss_slot

    def invalidate(self, request: int, positions: NDArray[np.int64]) -> None:
        """Make the slots that hold `positions` forget them; recency stays."""
        buffer = self._buffers[request]
        slots = buffer.slot_of[positions]
        buffer.position_of[slots[slots != NONE]] = NONE
        buffer.slot_of[positions] = NONE

    def reset(self, request: int) -> None:
        """Restore the fresh state of one request."""
        self._buffers[request] = _HotBuffer(self._settings)

    def recency(self, request: int) -> NDArray[np.int32]:
        """Return a copy of the slots, least recent first.  Reads only."""
        return self._buffers[request].order.copy()

    def positions(self, request: int) -> NDArray[np.int32]:
        """Return a copy of the position each slot holds, -1 where none.  Reads only."""
        return self._buffers[request].position_of.copy()

    def check(self, request: int) -> None:
        """Recount one request; raise AccountingError with the sum that does not hold.  Reads only."""
        buffer = self._buffers[request]
        held = np.flatnonzero(buffer.position_of != NONE)
        named = np.count_nonzero(buffer.slot_of != NONE)
        agree = np.count_nonzero(buffer.slot_of[buffer.position_of[held]] == held)
        once = np.unique(buffer.order).size
        hot_slots = self._settings.hot_slots
        if not (named == agree == held.size):
            raise AccountingError(
                f"request {request}: {named} positions with a slot, {held.size} slots with a position, "
                f"{agree} of them agree"
            )
        if not (once == buffer.order.size == hot_slots):
            raise AccountingError(
                f"request {request}: {once} different slots in {buffer.order.size} recency places != {hot_slots} slots"
            )
