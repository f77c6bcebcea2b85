"""The arrays a compiled resolve works on, named, and the loops both recency orders share."""

from typing import Any, NamedTuple

from numba import int64

from hisparse.kernels._numba_compile import kernel

# Codes in the position table: 0 no slot, ~slot (negative) a slot, these two a miss of the running step that
# has no slot yet, first selected by the row at hand or by an earlier one.  A fresh table is all zeros, so
# pages of it that were never used are never touched.
FRESH = 1
EARLIER = 2

FAULT = -1


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
    """Outputs and scratch of one step; B rows of K positions.

    Attributes:
        slots: int32 ``[B, K]``.
        counts: int64 ``[B, 4]``.
        miss_request: int32 ``[B * K]``, filled up to the number of misses, as the next four.
        miss_position: int32 ``[B * K]``.
        miss_slot: int32 ``[B * K]``.
        place: int64 ``[B * K]``, flat index in `slots` of the reference that missed.
        hole: int64 ``[B * K]``, log index kept free for the slot of that miss.
        runs: int64 ``[B, 3]`` at the first row of a request: its end row, first miss, end of its log.
    """

    slots: Any
    counts: Any
    miss_request: Any
    miss_position: Any
    miss_slot: Any
    place: Any
    hole: Any
    runs: Any


class Geometry(NamedTuple):
    """Numbers the loops need; `page_shift` is -1 unless `page_rows` is a power of two."""

    max_positions: int
    page_rows: int
    page_shift: int


@kernel
def start_request(state, request):
    """Give a request that was never used its fresh order: slots 0 to H - 1, holding nothing."""
    hot_slots = state.slot_position.shape[1]
    for s in range(hot_slots):
        state.slot_position[request, s] = -1
        state.log[request, s] = s
    state.span[request, 0] = 0
    state.span[request, 1] = hot_slots


@kernel
def end_of_run(requests, first):
    """Return the end of the run of equal requests that starts at row `first`."""
    last = first + 1
    while last < requests.shape[0] and requests[last] == requests[first]:
        last += 1
    return last


@kernel
def pad_rows(plan, first, last):
    """Answer rows that belong to no request."""
    for b in range(first, last):
        plan.slots[b, :] = -1
        plan.counts[b, :3] = 0
        plan.counts[b, 3] = plan.slots.shape[1]


@kernel
def device_row(resident_pages, request, position, geometry):
    """Return the device row of a position, negative where its page is not resident."""
    if resident_pages.shape[0] == 0:
        return -1
    if geometry.page_shift >= 0:
        page_idx = position >> geometry.page_shift
    else:
        page_idx = position // geometry.page_rows
    page = int64(resident_pages[request, page_idx])
    if page < 0:
        return -1
    return page * geometry.page_rows + (position - page_idx * geometry.page_rows)


@kernel
def see(seen, position):
    """Mark a position in the row at hand; return whether it was marked before."""
    bit = 1 << (position & 7)
    byte = seen[position >> 3]
    seen[position >> 3] = byte | bit
    return byte & bit != 0


@kernel
def forget_seen(seen, row):
    """Clear the marks of a row's positions."""
    for j in range(row.shape[0]):
        if row[j] >= 0:
            seen[row[j] >> 3] = 0


@kernel
def age_misses(state, plan, request, start, end):
    """Turn the misses of the row that just ended into misses of an earlier row."""
    for m in range(start, end):
        state.table[request, plan.miss_position[m]] = EARLIER


@kernel
def place_miss(state, plan, request, m):
    """Give miss `m` its slot: the position the slot held is forgotten."""
    s = plan.miss_slot[m]
    position = plan.miss_position[m]
    old = state.slot_position[request, s]
    if old >= 0:
        state.table[request, old] = 0
    state.slot_position[request, s] = position
    state.table[request, position] = ~s
    plan.miss_request[m] = request
    b, j = divmod(plan.place[m], plan.slots.shape[1])
    plan.slots[b, j] = s


@kernel
def answer_later(state, plan, request, topk, first, last):
    """Give later references to this step's misses (left at -1 so far) the slots the misses got."""
    for b in range(first + 1, last):
        for j in range(topk.shape[1]):
            if plan.slots[b, j] == -1 and topk[b, j] >= 0:
                plan.slots[b, j] = ~state.table[request, topk[b, j]]
