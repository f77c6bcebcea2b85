"""The residency state in compiled loops: allocation, dispatch and recount."""

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import AccountingError
from hisparse.kernels import _numba_stack, _numba_vllm
from hisparse.kernels._numba_arrays import FAULT, Geometry, Plan, State
from hisparse.kernels.backend import ResidencySettings
from hisparse.kernels.resolution import COUNT_FIELDS, Resolution

# Log entries a slot, hit ratio 0.99, ns a position: 2 12.1, 3 9.2, 4 7.0, 8 6.1.
LOG_ENTRIES_PER_SLOT = 4

_KERNELS = {"stack": _numba_stack.resolve, "vllm": _numba_vllm.resolve}
_NO_PAGES = np.empty((0, 0), np.int32)


class NumbaBackend:
    """Equals `ReferenceBackend` bit for bit; one thread, without the GIL."""

    def __init__(self, settings: ResidencySettings) -> None:
        """Allocate the fresh state of every request; memory is touched when a request first resolves."""
        self._settings = settings
        power_of_two = settings.page_rows & (settings.page_rows - 1) == 0
        shift = settings.page_rows.bit_length() - 1 if power_of_two else -1
        self._geometry = Geometry(settings.max_positions, settings.page_rows, shift)
        self._kernel = _KERNELS[settings.order]
        requests, hot_slots = settings.max_requests, settings.hot_slots
        entries = LOG_ENTRIES_PER_SLOT if settings.order == "stack" else 1
        self._state = State(
            table=np.zeros((requests, settings.max_positions), np.int16),
            slot_position=np.zeros((requests, hot_slots), np.int32),
            log=np.zeros((requests, entries * hot_slots), np.int16),
            stamp=np.zeros((requests, hot_slots), np.int32),
            span=np.zeros((requests, 2), np.int64),
            seen=np.zeros(-(-settings.max_positions // 8), np.uint8),
        )

    @property
    def state_bytes(self) -> int:
        """Bytes of address space the state takes; untouched parts of it cost no memory."""
        return sum(array.nbytes for array in self._state)

    def resolve(
        self, requests: NDArray[np.int32], topk: NDArray[np.int32], resident_pages: NDArray[np.int32] | None
    ) -> Resolution | None:
        """Resolve one step, or change nothing and return None because a value in `topk` is at fault."""
        slots = np.empty(topk.shape, np.int32)
        scratch = np.empty((5, max(topk.size, self._settings.hot_slots)), np.int32)
        plan = Plan(
            slots.reshape(-1),
            np.empty((len(topk), len(COUNT_FIELDS)), np.int64),
            np.empty((len(topk), 3), np.int64),
            *scratch,
        )
        pages = _NO_PAGES if resident_pages is None else _plain(resident_pages)
        found = int(self._kernel(_plain(requests), _plain(topk), pages, self._geometry, self._state, plan))
        if found == FAULT:
            return None
        request, position, slot = scratch[:3, :found].copy()
        return Resolution(slots, request, position, slot, plan.counts)

    def invalidate(self, request: int, positions: NDArray[np.int64]) -> None:
        """Make the slots that hold `positions` forget them; recency stays."""
        table = self._state.table[request]
        held = positions[table[positions] < 0]
        self._state.slot_position[request, ~table[held]] = -1
        table[held] = 0

    def reset(self, request: int) -> None:
        """Restore the fresh state of one request."""
        if self._is_used(request):
            held = self._state.slot_position[request]
            self._state.table[request, held[held >= 0]] = 0
            self._state.span[request] = 0
            self._state.stamp[request] = 0

    def recency(self, request: int) -> NDArray[np.int32]:
        """Return a copy of the slots, least recent first.  Reads only."""
        if not self._is_used(request):
            return np.arange(self._settings.hot_slots, dtype=np.int32)
        return self._live_entries(request).astype(np.int32)

    def positions(self, request: int) -> NDArray[np.int32]:
        """Return a copy of the position each slot holds, -1 where none.  Reads only."""
        if not self._is_used(request):
            return np.full(self._settings.hot_slots, -1, np.int32)
        return np.array(self._state.slot_position[request], np.int32)

    def check(self, request: int) -> None:
        """Recount one request; raise AccountingError with the sum that does not hold.  Reads only."""
        hot_slots = self._settings.hot_slots
        table = self._state.table[request]
        positions = self.positions(request)
        held = np.flatnonzero(positions >= 0)
        named, pending = np.count_nonzero(table < 0), np.count_nonzero(table > 0)
        agree = np.count_nonzero(table[positions[held]] == ~held)
        if not (named + pending == agree == held.size):
            raise AccountingError(
                f"request {request}: {named} positions with a slot + {pending} unfinished misses, "
                f"{held.size} slots with a position, {agree} of them agree"
            )
        live = self.recency(request)
        different = np.unique(live).size
        if not (different == live.size == hot_slots):
            raise AccountingError(
                f"request {request}: {different} different slots in {live.size} live recency entries "
                f"!= {hot_slots} slots"
            )
        if self._state.seen.any() or (self._settings.order == "vllm" and self._state.stamp[request].any()):
            raise AccountingError(f"request {request}: marks of a step were left behind")

    def _is_used(self, request: int) -> bool:
        """Return whether the request's arrays have been started."""
        return bool(self._state.span[request, 1])

    def _live_entries(self, request: int) -> NDArray[np.int16]:
        """Return the live entries of a request's log, least recent first."""
        first, end = self._state.span[request]
        entries: NDArray[np.int16] = self._state.log[request, first:end]
        if self._settings.order == "vllm":
            return entries
        is_live: NDArray[np.bool_] = self._state.stamp[request, entries] == np.arange(first, end)
        return entries[is_live]


def _plain(array: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the array itself, or a copy where it is strided or read-only, for which no loop is compiled."""
    return array if array.flags.carray else array.copy()
