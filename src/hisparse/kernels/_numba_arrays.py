"""The arrays a compiled resolve works on, named, and the loops both recency orders share."""

# ruff: noqa: PLR0917 - numba has no keyword-only arguments
from typing import Any, NamedTuple

import numpy as np

from hisparse.kernels._numba_address import fill_addresses
from hisparse.kernels._numba_compile import CACHE_LINE_BYTES, carray, int64, part, pointer, prefetch

# Codes in the position table: 0 no slot, ~slot (negative) a slot, these two a miss of the running step that
# has no slot yet, first selected by the row at hand or by an earlier one.  A fresh table is all zeros, so
# pages of it that were never used are never touched.
FRESH = 1
EARLIER = 2

FAULT = -1

# Selections ahead at which a table entry is asked for.  State of 24 layers in turn, hit ratio 0.9, ns a
# position: never 31.6, 8 ahead 27.6, 32 ahead 21.7, 64 ahead 22.2 (2-core x86-64).
AHEAD = 32


class State(NamedTuple):
    """Everything that lasts from step to step; R requests, H slots.

    Attributes:
        table: int16 ``[R, max_positions]``, code of each position.
        slot_position: int32 ``[R, H]``, position each slot holds, -1 where none.
        log: int16 ``[R, C]``, slots from least to most recent, as the recency order keeps them.
        stamp: int32 ``[R, H]``, per slot, as the recency order uses it.
        span: int64 ``[R, 2]``, first and end index of the log in use; end 0 for a request never used, whose
            other arrays have no meaning yet.
        seen: uint8 ``[max_positions / 8]``, one bit a position, all zero between rows.
    """

    table: Any
    slot_position: Any
    log: Any
    stamp: Any
    span: Any
    seen: Any


class Plan(NamedTuple):
    """Outputs and scratch of one step; B rows of K positions, M misses.

    Attributes:
        slots: int32 ``[B * K]``, row after row.
        counts: int64 ``[B, 4]``.
        runs: int64 ``[B, 3]`` at the first row of a request: its end row, first miss, end of its log.
        miss_request: int32, the first M are valid, as in the next four.
        miss_position: int32.
        miss_slot: int32.
        place: int32, index in `slots` of the reference that missed.
        hole: int32, log index kept free for the slot of that miss.
    """

    slots: Any
    counts: Any
    runs: Any
    miss_request: Any
    miss_position: Any
    miss_slot: Any
    place: Any
    hole: Any


class Geometry(NamedTuple):
    """Numbers the loops need; `page_shift` is -1 unless `page_rows` is a power of two."""

    max_positions: int
    page_rows: int
    page_shift: int


class Sizes(NamedTuple):
    """First part of a record: how large state and scratch are."""

    requests: int
    hot_slots: int
    max_positions: int
    log_entries: int
    page_rows: int
    page_shift: int
    scratch_size: int


class Addresses(NamedTuple):
    """Second part of a record: where the arrays of `State` and of the scratch lie."""

    table: int
    slot_position: int
    log: int
    stamp: int
    span: int
    seen: int
    misses: int
    runs: int
    rows: int


# A record is the int64 vector of both parts.  Handing seventeen arrays from Python to a loop took 8 us, 35 us in cold
# caches; handing one record takes 0.3 us.
_SIZE = Sizes(*range(len(Sizes._fields)))
_AT = Addresses(*range(len(_SIZE), len(_SIZE) + len(Addresses._fields)))


@part
def state_at(record: Any) -> State:
    """Return the state `record` lists."""
    requests, hot_slots, positions, entries = (
        record[_SIZE.requests],
        record[_SIZE.hot_slots],
        record[_SIZE.max_positions],
        record[_SIZE.log_entries],
    )
    return State(
        carray(pointer(record[_AT.table]), (requests, positions), np.int16),
        carray(pointer(record[_AT.slot_position]), (requests, hot_slots), np.int32),
        carray(pointer(record[_AT.log]), (requests, entries), np.int16),
        carray(pointer(record[_AT.stamp]), (requests, hot_slots), np.int32),
        carray(pointer(record[_AT.span]), (requests, 2), np.int64),
        carray(pointer(record[_AT.seen]), ((positions + 7) // 8,), np.uint8),
    )


@part
def plan_at(record: Any, slots: Any, counts: Any) -> Plan:
    """Return the plan that answers in `slots` and `counts` and keeps the rest in the scratch `record` lists."""
    size = record[_SIZE.scratch_size]
    miss = carray(pointer(record[_AT.misses]), (5, size), np.int32)
    runs = carray(pointer(record[_AT.runs]), (counts.shape[0], 3), np.int64)
    return Plan(slots.reshape(slots.size), counts, runs, miss[0], miss[1], miss[2], miss[3], miss[4])


@part
def geometry_at(record: Any, limit: int) -> Geometry:
    """Return the numbers of a step whose positions lie below `limit`."""
    return Geometry(limit, record[_SIZE.page_rows], record[_SIZE.page_shift])


@part
def address_plan(
    requests: Any, record: Any, pages: Any, plan: Plan, found: int, slots: Any, hot_rows: Any, is_selected: Any
) -> None:
    """Fill in the flat rows of a resolved step, those of its `found` misses in the scratch `record` lists."""
    rows = carray(pointer(record[_AT.rows]), (2, record[_SIZE.scratch_size]), np.int64)
    resolution = (slots, plan.miss_request[:found], plan.miss_position[:found], plan.miss_slot[:found])
    fill_addresses(
        resolution, requests, pages[0], pages[1], record[_SIZE.hot_slots], (hot_rows, is_selected, rows[0], rows[1])
    )


@part
def start_request(state: State, request: int) -> None:
    """Give a request that was never used its fresh order: slots 0 to H - 1, holding nothing."""
    hot_slots = state.slot_position.shape[1]
    for s in range(hot_slots):
        state.slot_position[request, s] = -1
        state.log[request, s] = s
    state.span[request, 0] = 0
    state.span[request, 1] = hot_slots


@part
def fetch_stamps(state: State, request: int) -> None:
    """Ask for all stamps of a request: cold state, as with 24 layers in turn, costs 7 % less, warm state no more."""
    stamp = state.stamp[request]
    address = stamp.ctypes.data
    for offset in range(0, stamp.shape[0] * stamp.itemsize, CACHE_LINE_BYTES):
        prefetch(address + offset)


@part
def end_of_run(requests: Any, first: int) -> int:
    """Return the end of the run of equal requests that starts at row `first`."""
    last = first + 1
    while last < requests.shape[0] and requests[last] == requests[first]:
        last += 1
    return last


@part
def pad_rows(plan: Plan, first: int, last: int, width: int) -> None:
    """Answer rows that belong to no request."""
    for i in range(first * width, last * width):
        plan.slots[i] = -1
    for b in range(first, last):
        plan.counts[b, 0] = 0
        plan.counts[b, 1] = 0
        plan.counts[b, 2] = 0
        plan.counts[b, 3] = width


@part
def device_row(resident_pages: Any, request: int, position: int, geometry: Geometry) -> int:
    """Return the device row of a position, negative where its page is not resident."""
    shift = geometry.page_shift
    page_idx = position >> shift if shift >= 0 else position // geometry.page_rows
    page: int = int64(resident_pages[request, page_idx])
    if page < 0:
        return -1
    return page * geometry.page_rows + (position - page_idx * geometry.page_rows)


@part
def see(seen: Any, position: int) -> bool:
    """Mark a position in the row at hand; return whether it was marked before."""
    bit = 1 << (position & 7)
    byte: int = seen[position >> 3]
    seen[position >> 3] = byte | bit
    return byte & bit != 0


@part
def forget_seen(seen: Any, row: Any) -> None:
    """Clear the marks of a row's positions."""
    for position in row:
        if position >= 0:
            seen[position >> 3] = 0


@part
def age_misses(state: State, plan: Plan, request: int, start: int, end: int) -> None:
    """Turn the misses of the row that just ended into misses of an earlier row."""
    for m in range(start, end):
        state.table[request, plan.miss_position[m]] = EARLIER


@part
def answer_later(state: State, plan: Plan, request: int, topk: Any, first: int, last: int) -> None:
    """Give later references to this step's misses (left at -1 so far) the slots the misses got."""
    width = topk.shape[1]
    for b in range(first + 1, last):
        for j in range(width):
            if plan.slots[b * width + j] == -1 and topk[b, j] >= 0:
                plan.slots[b * width + j] = ~state.table[request, topk[b, j]]
