"""Resolve with recency order ``stack``: an append log with stamps.  Loops only.

`log` int16 ``[4H]`` lists slots in order of use, `stamp` is the log index of a slot's latest entry: entry i
is live if and only if ``stamp[log[i]] == i``.  Using a slot appends it, which kills its older entry; nothing
is moved.  Victims are found by advancing the head of the log over dead entries, each skipped once.  A step
appends at most H entries, so a compacted log always has room.

A step passes twice over its requests.  `_classify` finds hits and misses and changes nothing that `_undo`
cannot take back; `_load` gives the misses their slots once no fault is left to find.
"""

# ruff: noqa: PLR0917 - numba has no keyword-only arguments
# ruff: noqa: PLR0911 - a fault leaves the hot loop at once
from typing import Any

from hisparse.kernels._numba_arrays import (
    AHEAD,
    FAULT,
    FRESH,
    Geometry,
    Plan,
    State,
    address_plan,
    age_misses,
    answer_later,
    device_row,
    end_of_run,
    fetch_stamps,
    forget_seen,
    geometry_at,
    pad_rows,
    plan_at,
    see,
    start_request,
    state_at,
)
from hisparse.kernels._numba_compile import int64, kernel, part, prefetch, uint64
from hisparse.kernels.backend import MAX_RESIDENT_ROW


@kernel
def resolve(
    requests: Any,
    topk: Any,
    resident_pages: Any,
    limit: int,
    record: Any,
    slots: Any,
    counts: Any,
    first_rows: Any,
    page_rows: int,
    hot_rows: Any,
    is_selected: Any,
) -> int:
    """Resolve one step; return the number of misses, or FAULT with the state as before.

    `record` says where state and scratch are; `slots` and `counts` are filled, `hot_rows` and `is_selected` too
    unless they are empty.  Positions lie below `limit`.
    """
    plan = plan_at(record, slots, counts)
    found = _resolve(requests, topk, resident_pages, geometry_at(record, limit), state_at(record), plan)
    if found != FAULT and hot_rows.size > 0:
        address_plan(requests, record, (first_rows, page_rows), plan, found, slots, hot_rows, is_selected)
    return found


@part
def _resolve(requests: Any, topk: Any, resident_pages: Any, geometry: Geometry, state: State, plan: Plan) -> int:
    """Resolve one step; return the number of misses, or FAULT with the state as before."""
    num_misses: int = int64(0)  # typed: a part compiles once for each integer type it is called with
    first = int64(0)
    while first < requests.shape[0]:
        request = int64(requests[first])
        last = end_of_run(requests, first)
        plan.runs[first, 0] = last
        plan.runs[first, 1] = num_misses
        if request < 0:
            pad_rows(plan, first, last, topk.shape[1])
        else:
            _make_room(state, request)
            tail, num_misses = _classify(topk, first, last, request, resident_pages, geometry, state, plan, num_misses)
            if tail == FAULT:
                _undo(requests, first, num_misses, state, plan)
                return FAULT
            plan.runs[first, 2] = tail
        first = last

    first = int64(0)
    while first < requests.shape[0]:
        request = int64(requests[first])
        last = plan.runs[first, 0]
        if request >= 0:
            end = plan.runs[last, 1] if last < requests.shape[0] else num_misses
            _load(state, plan, request, plan.runs[first, 1], end)
            state.span[request, 1] = plan.runs[first, 2]
            if last - first > 1:
                answer_later(state, plan, request, topk, first, last)
        first = last
    return num_misses


@part
def _make_room(state: State, request: int) -> None:
    """Start a new request; move the live entries to the front of the log if H more would not fit."""
    hot_slots = state.stamp.shape[1]
    log = state.log[request]
    stamp = state.stamp[request]
    if state.span[request, 1] == 0:
        start_request(state, request)
        for s in range(hot_slots):
            stamp[s] = s
    if state.span[request, 1] + hot_slots > log.shape[0]:
        end = 0
        for i in range(state.span[request, 0], state.span[request, 1]):
            s = log[i]
            if stamp[s] == i:
                log[end] = s
                stamp[s] = end
                end += 1
        state.span[request, 0] = 0
        state.span[request, 1] = end


@part
def _classify(
    topk: Any,
    first: int,
    last: int,
    request: int,
    resident_pages: Any,
    geometry: Geometry,
    state: State,
    plan: Plan,
    m: int,
) -> tuple[int, int]:
    """Find hits and misses of one request; return the new end of its log and of the miss list.

    Every first reference is appended to the log: a hit as its slot, a miss as a hole.  The end of the log is
    FAULT when the values are at fault.
    """
    table = state.table[request]
    table_address = table.ctypes.data
    log = state.log[request]
    stamp = state.stamp[request]
    fetch_stamps(state, request)
    width = topk.shape[1]
    has_pages = resident_pages.shape[0] > 0
    start = state.span[request, 1]
    full = start + stamp.shape[0]
    t = start
    for b in range(first, last):
        row = topk[b]
        slots = plan.slots[b * width : (b + 1) * width]
        row_start = t
        row_miss = m
        resident = 0
        padding = 0
        marked = False
        for j in range(width):
            if j + AHEAD < width:
                prefetch(table_address + 2 * row[j + AHEAD])
            position = row[j]
            if position < 0:
                if position != -1:
                    return FAULT, m
                slots[j] = -1
                padding += 1
                continue
            if position >= geometry.max_positions:
                return FAULT, m
            if has_pages:
                on_device = device_row(resident_pages, request, position, geometry)
                if on_device >= 0:
                    if on_device > MAX_RESIDENT_ROW or see(state.seen, position):
                        return FAULT, m
                    marked = True
                    slots[j] = -2 - on_device
                    resident += 1
                    continue
            code = table[uint64(position)]
            if code < 0:
                s = ~code
                used = stamp[uint64(s)]
                slots[j] = s
                if used < start:
                    if t == full:
                        return FAULT, m
                    log[uint64(t)] = s
                    stamp[uint64(s)] = t
                    t += 1
                    continue
                if used >= row_start:
                    return FAULT, m
            elif code == 0:
                if t == full:
                    return FAULT, m
                table[uint64(position)] = FRESH
                plan.miss_position[m] = position
                plan.place[m] = b * width + j
                plan.hole[m] = t
                t += 1
                m += 1
                continue
            else:
                if code == FRESH:
                    return FAULT, m
                slots[j] = -1
            # a reference after the first one, by a later row: only a mark can show that it repeats
            if see(state.seen, position):
                return FAULT, m
            marked = True
        plan.counts[b, 0] = width - (m - row_miss) - resident - padding
        plan.counts[b, 1] = m - row_miss
        plan.counts[b, 2] = resident
        plan.counts[b, 3] = padding
        if marked:
            forget_seen(state.seen, row)
        if b + 1 < last:
            age_misses(state, plan, request, row_miss, m)
    return t, m


@part
def _load(state: State, plan: Plan, request: int, start: int, end: int) -> None:
    """Give misses `start` to `end` the least recent slots that this step does not use."""
    log = state.log[request]
    stamp = state.stamp[request]
    table = state.table[request]
    table_address = table.ctypes.data
    slot_position = state.slot_position[request]
    head = state.span[request, 0]
    for m in range(start, end):
        s = log[uint64(head)]
        while stamp[uint64(s)] != head:
            head += 1
            s = log[uint64(head)]
        head += 1
        plan.miss_slot[m] = s
        prefetch(table_address + 2 * slot_position[uint64(s)])
    state.span[request, 0] = head
    for m in range(start, end):
        s = plan.miss_slot[m]
        position = plan.miss_position[m]
        hole = plan.hole[m]
        old = slot_position[uint64(s)]
        if old >= 0:
            table[uint64(old)] = 0
        table[uint64(position)] = ~s
        slot_position[uint64(s)] = position
        log[uint64(hole)] = s
        stamp[uint64(s)] = hole
        plan.miss_request[m] = request
        plan.slots[uint64(plan.place[m])] = s


@part
def _undo(requests: Any, failed: int, num_misses: int, state: State, plan: Plan) -> None:
    """Take back what `_classify` did up to the run that starts at row `failed`."""
    first = int64(0)
    while first <= failed:
        last = plan.runs[first, 0]
        request = int64(requests[first])
        if request >= 0:
            end = num_misses if first == failed else plan.runs[last, 1]
            for m in range(plan.runs[first, 1], end):
                state.table[request, plan.miss_position[m]] = 0
            # the live entry of a slot is its latest one
            for i in range(state.span[request, 0], state.span[request, 1]):
                state.stamp[request, state.log[request, i]] = i
        first = last
    for i in range(state.seen.shape[0]):
        state.seen[i] = 0
