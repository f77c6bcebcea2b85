"""Resolve with recency order ``vllm``: a list rewritten by every step.  Loops only.

`log` int16 ``[H]`` lists all slots, least recent first.  `stamp` is 1 + the latest batch row that selected
the slot, and 0 between steps.  The order asks for this step's hits in their previous relative order, so the
whole list must be walked anyway and an append log would gain nothing.
"""

from hisparse.kernels._numba_arrays import (
    FAULT,
    FRESH,
    age_misses,
    answer_later,
    device_row,
    end_of_run,
    forget_seen,
    pad_rows,
    place_miss,
    see,
    start_request,
)
from hisparse.kernels._numba_compile import kernel, prefetch
from hisparse.kernels._numba_stack import AHEAD
from hisparse.kernels.backend import MAX_RESIDENT_ROW


@kernel
def resolve(requests, topk, resident_pages, geometry, state, plan):
    """Resolve one step; return the number of misses, or FAULT with the state as before."""
    num_misses = 0
    first = 0
    while first < requests.shape[0]:
        request = requests[first]
        last = end_of_run(requests, first)
        plan.runs[first, 0] = last
        plan.runs[first, 1] = num_misses
        if request < 0:
            pad_rows(plan, first, last)
        else:
            if state.span[request, 1] == 0:
                start_request(state, request)
            used, num_misses = _classify(
                topk, first, last, request, resident_pages, geometry, state, plan, num_misses
            )
            if used == FAULT:
                _undo(requests, first, num_misses, state, plan)
                return FAULT
        first = last

    first = 0
    while first < requests.shape[0]:
        last = plan.runs[first, 0]
        if requests[first] >= 0:
            end = plan.runs[last, 1] if last < requests.shape[0] else num_misses
            _load(state, plan, requests[first], plan.runs[first, 1], end)
            if last - first > 1:
                answer_later(state, plan, requests[first], topk, first, last)
        first = last
    return num_misses


@kernel
def _classify(topk, first, last, request, resident_pages, geometry, state, plan, m):
    """Find hits and misses of one request; return the slots its step uses and the end of the miss list.

    The first number is FAULT when the values are at fault.
    """
    table = state.table[request]
    stamp = state.stamp[request]
    width = topk.shape[1]
    used = 0
    for b in range(first, last):
        row = topk[b]
        slots = plan.slots[b]
        row_miss = m
        hits = 0
        resident = 0
        padding = 0
        marked = False
        for j in range(width):
            if j + AHEAD < width:
                prefetch(table.ctypes.data + 2 * row[j + AHEAD])
            position = row[j]
            if position < 0:
                if position != -1:
                    return FAULT, m
                slots[j] = -1
                padding += 1
                continue
            if position >= geometry.max_positions:
                return FAULT, m
            on_device = device_row(resident_pages, request, position, geometry)
            if on_device >= 0:
                if on_device > MAX_RESIDENT_ROW or see(state.seen, position):
                    return FAULT, m
                marked = True
                slots[j] = -2 - on_device
                resident += 1
                continue
            code = table[position]
            if code < 0:
                s = ~code
                by_row = stamp[s]
                if by_row == b + 1:
                    return FAULT, m
                used += by_row == 0
                stamp[s] = b + 1
                slots[j] = s
                hits += 1
            elif code == 0:
                table[position] = FRESH
                plan.miss_position[m] = position
                plan.place[m] = b * width + j
                m += 1
                used += 1
            else:
                if code == FRESH or see(state.seen, position):
                    return FAULT, m
                marked = True
                slots[j] = -1
                hits += 1
        if used > stamp.shape[0]:
            return FAULT, m
        plan.counts[b, 0] = hits
        plan.counts[b, 1] = m - row_miss
        plan.counts[b, 2] = resident
        plan.counts[b, 3] = padding
        if marked:
            forget_seen(state.seen, row)
        if b + 1 < last:
            age_misses(state, plan, request, row_miss, m)
    return used, m


@kernel
def _load(state, plan, request, start, end):
    """Give misses `start` to `end` the least recent unused slots; rewrite the list: unused, loads, hits."""
    order = state.log[request]
    stamp = state.stamp[request]
    hits = plan.hole
    num_hits = 0
    m = start
    kept = 0
    for i in range(order.shape[0]):
        s = order[i]
        if stamp[s] != 0:
            stamp[s] = 0
            hits[num_hits] = s
            num_hits += 1
        elif m < end:
            plan.miss_slot[m] = s
            prefetch(state.table[request].ctypes.data + 2 * state.slot_position[request, s])
            m += 1
        else:
            order[kept] = s
            kept += 1
    for m in range(start, end):
        place_miss(state, plan, request, m)
        order[kept] = plan.miss_slot[m]
        kept += 1
    for i in range(num_hits):
        order[kept] = hits[i]
        kept += 1


@kernel
def _undo(requests, failed, num_misses, state, plan):
    """Take back what `_classify` did up to the run that starts at row `failed`."""
    first = 0
    while first <= failed:
        last = plan.runs[first, 0]
        request = requests[first]
        if request >= 0:
            end = num_misses if first == failed else plan.runs[last, 1]
            for m in range(plan.runs[first, 1], end):
                state.table[request, plan.miss_position[m]] = 0
            state.stamp[request, :] = 0
        first = last
    state.seen[:] = 0
