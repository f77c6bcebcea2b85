"""The residency state in compiled loops: allocation, dispatch and recount."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import AccountingError
from hisparse.kernels import _numba_stack, _numba_vllm
from hisparse.kernels._numba_arrays import FAULT, Addresses, Sizes, State
from hisparse.kernels.addressing import PageTable, StepAddresses
from hisparse.kernels.backend import ResidencySettings
from hisparse.kernels.resolution import COUNT_FIELDS, Resolution

# Log entries a slot, hit ratio 0.99, ns a position: 2 12.1, 3 9.2, 4 7.0, 8 6.1.
LOG_ENTRIES_PER_SLOT = 4

_KERNELS: Mapping[str, Callable[..., Any]] = {"stack": _numba_stack.resolve, "vllm": _numba_vllm.resolve}
_NO_PAGES = np.empty((0, 0), np.int32)
_NO_FIRST_ROWS = np.empty((0, 0), np.int64)
_NO_ROWS = np.empty((0, 0), np.int64)
_NO_MARKS = np.empty((0, 0), np.bool_)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Room for what a step writes before it is known how much that is; kept from step to step.

    Attributes:
        misses: int32 ``[5, N]``: request, position, slot, place and hole of each miss, see `Plan`.
        runs: int64 ``[B, 3]``, see `Plan`.
        rows: int64 ``[2, N]``: hot row and pool row of each miss.
    """

    misses: NDArray[np.int32]
    runs: NDArray[np.int64]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, size: int, *, rows: int) -> "Scratch":
        """Return room for `size` selections in `rows` batch rows."""
        return cls(np.empty((5, size), np.int32), np.empty((rows, 3), np.int64), np.empty((2, size), np.int64))

    @property
    def size(self) -> int:
        """Selections there is room for."""
        return int(self.misses.shape[1])


class NumbaBackend:
    """Equals `ReferenceBackend` bit for bit; one thread, without the GIL."""

    def __init__(self, settings: ResidencySettings) -> None:
        """Allocate the fresh state of every request; memory is touched when a request first resolves."""
        self._settings = settings
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
        self._scratch = Scratch.of(max(settings.top_k, hot_slots), rows=1)
        self._record = self._write_record()

    @property
    def state_bytes(self) -> int:
        """Bytes of address space the state takes; untouched parts of it cost no memory."""
        return sum(array.nbytes for array in self._state)

    def resolve(
        self, requests: NDArray[np.int32], topk: NDArray[np.int32], resident_pages: NDArray[np.int32] | None
    ) -> Resolution | None:
        """Resolve one step, or change nothing and return None because a value in `topk` is at fault."""
        slots, counts = np.empty(topk.shape, np.int32), np.empty((len(topk), len(COUNT_FIELDS)), np.int64)
        resident = _NO_PAGES if resident_pages is None else _plain(resident_pages)
        limit = self._settings.max_positions
        record = self._record_for(topk)
        found = int(
            self._kernel(
                *(_plain(requests), _plain(topk), resident, limit, record),
                *(slots, counts, _NO_FIRST_ROWS, 1, _NO_ROWS, _NO_MARKS),
            )
        )
        return None if found == FAULT else self._resolution(found, slots, counts)

    def resolve_rows(
        self, requests: NDArray[np.int32], topk: NDArray[np.int32], pages: PageTable, *, limit: int
    ) -> tuple[Resolution, StepAddresses] | None:
        """As `resolve`, where nothing is resident and positions lie below `limit`; and address the step."""
        slots, counts = np.empty(topk.shape, np.int32), np.empty((len(topk), len(COUNT_FIELDS)), np.int64)
        hot_rows, is_selected = np.empty(topk.shape, np.int64), np.empty(topk.shape, np.bool_)
        record = self._record_for(topk)
        found = int(
            self._kernel(
                *(_plain(requests), _plain(topk), _NO_PAGES, limit, record),
                *(slots, counts, pages.first_rows, pages.page_rows, hot_rows, is_selected),
            )
        )
        if found == FAULT:
            return None
        miss_slots, miss_rows = self._scratch.rows[:, :found].copy()
        return self._resolution(found, slots, counts), StepAddresses(hot_rows, is_selected, miss_slots, miss_rows)

    def _resolution(self, found: int, slots: NDArray[np.int32], counts: NDArray[np.int64]) -> Resolution:
        """Return the resolution with the misses that are in the scratch."""
        request, position, slot = self._scratch.misses[:3, :found].copy()
        return Resolution(slots, request, position, slot, counts)

    def _record_for(self, topk: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the record of state and scratch, after making room for a step of this shape."""
        if topk.size > self._scratch.size or len(topk) > len(self._scratch.runs):
            self._scratch = Scratch.of(max(topk.size, self._scratch.size), rows=len(topk))
            self._record = self._write_record()
        return self._record

    def _write_record(self) -> NDArray[np.int64]:
        """Return the sizes and addresses that `state_at`, `plan_at` and `address_plan` read."""
        settings, scratch = self._settings, self._scratch
        page_rows = settings.page_rows
        shift = page_rows.bit_length() - 1 if page_rows & (page_rows - 1) == 0 else -1
        sizes = Sizes(
            requests=settings.max_requests,
            hot_slots=settings.hot_slots,
            max_positions=settings.max_positions,
            log_entries=self._state.log.shape[1],
            page_rows=page_rows,
            page_shift=shift,
            scratch_size=scratch.size,
        )
        addresses = Addresses(
            **{name: array.ctypes.data for name, array in self._state._asdict().items()},
            misses=scratch.misses.ctypes.data,
            runs=scratch.runs.ctypes.data,
            rows=scratch.rows.ctypes.data,
        )
        return np.array([*sizes, *addresses], np.int64)

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
