"""The other ways to resolve a step, written as their users would write them; no unions, no padding, no pages.

Each class keeps the state of `requests` requests and has ``resolve(topk)`` -> (slots, miss positions, miss
slots) for int32 ``[requests, K]``, all requests in order.
"""

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from numba import njit

Plan = tuple[Any, Any, Any]


@njit(nogil=True, boundscheck=False, error_model="numpy")
def _walk_step(topk, order, slot_position, keys, values, slots, miss_position, miss_slot, evictable, hits):  # noqa: ANN001, ANN202, PLR0913, PLR0917 # compiled loop over plain arrays
    """Hash the step's top-k, walk the whole LRU list against it, then hand out evictable slots."""
    mask = keys.shape[0] - 1
    num_misses = 0
    for b in range(topk.shape[0]):
        keys[:] = -1
        for j in range(topk.shape[1]):
            h = (topk[b, j] * 0x9E3779B1) & mask
            while keys[h] != -1:
                h = (h + 1) & mask
            keys[h] = topk[b, j]
            values[h] = j
            slots[b, j] = -1
        num_evictable = 0
        num_hits = 0
        for i in range(order.shape[1]):
            s = order[b, i]
            position = slot_position[b, s]
            h = (position * 0x9E3779B1) & mask
            while keys[h] != -1 and keys[h] != position:
                h = (h + 1) & mask
            if position >= 0 and keys[h] == position:
                slots[b, values[h]] = s
                hits[num_hits] = s
                num_hits += 1
            else:
                evictable[num_evictable] = s
                num_evictable += 1
        taken = 0
        for j in range(topk.shape[1]):
            if slots[b, j] == -1:
                s = evictable[taken]
                taken += 1
                slots[b, j] = s
                slot_position[b, s] = topk[b, j]
                miss_position[num_misses] = topk[b, j]
                miss_slot[num_misses] = s
                num_misses += 1
        kept = num_evictable - taken
        order[b, :kept] = evictable[taken:num_evictable]
        order[b, kept:num_evictable] = evictable[:taken]
        order[b, num_evictable:] = hits[:num_hits]
    return num_misses


class HashWalk:
    """The GPU peers' algorithm on one core: a hash of the step and a walk of the LRU list (order ``vllm``)."""

    def __init__(self, requests: int, hot_slots: int, max_positions: int, top_k: int) -> None:  # noqa: ARG002 # one form for all peers
        """Start with empty slots."""
        self.order = np.tile(np.arange(hot_slots, dtype=np.int16), (requests, 1))
        self.slot_position = np.full((requests, hot_slots), -1, np.int32)
        buckets = 1 << (2 * top_k - 1).bit_length()
        self.scratch = (np.empty(buckets, np.int32), np.empty(buckets, np.int16))
        self.lists = (np.empty(hot_slots, np.int16), np.empty(hot_slots, np.int16))

    def resolve(self, topk: np.ndarray) -> Plan:
        """Resolve one step."""
        slots, position, slot = np.empty_like(topk), np.empty(topk.size, np.int32), np.empty(topk.size, np.int32)
        found = _walk_step(topk, self.order, self.slot_position, *self.scratch, slots, position, slot, *self.lists)
        return slots, position[:found].copy(), slot[:found].copy()


class VectorisedNumpy:
    """Dense table, time of last use per slot, the oldest found by partition (order ``stack``)."""

    def __init__(self, requests: int, hot_slots: int, max_positions: int, top_k: int) -> None:
        """Start with empty slots."""
        self.slot_of = np.full((requests, max_positions), -1, np.int32)
        self.position_of = np.full((requests, hot_slots), -1, np.int32)
        self.used_at = np.tile(np.arange(hot_slots, dtype=np.int64), (requests, 1))
        self.now = hot_slots
        self.times = np.arange(top_k)

    def resolve(self, topk: np.ndarray) -> Plan:
        """Resolve one step."""
        slots = np.take_along_axis(self.slot_of, topk, axis=1)
        misses = slots < 0
        times = self.times + self.now
        self.now += topk.shape[1]
        positions, loaded = [], []
        for b, (row, missed) in enumerate(zip(slots, misses, strict=True)):
            used_at = self.used_at[b]
            used_at[row[~missed]] = times[~missed]
            need = topk[b, missed]
            oldest = np.argpartition(used_at, len(need) - 1)[: len(need)] if len(need) else np.empty(0, np.int64)
            victims = oldest[np.argsort(used_at[oldest])]
            old = self.position_of[b, victims]
            self.slot_of[b, old[old >= 0]] = -1
            self.slot_of[b, need] = victims
            self.position_of[b, victims] = need
            used_at[victims] = times[missed]
            row[missed] = victims
            positions.append(need)
            loaded.append(victims)
        return slots, np.concatenate(positions), np.concatenate(loaded)


class VectorisedTorch:
    """`VectorisedNumpy` in torch operations, on one CPU thread."""

    def __init__(self, requests: int, hot_slots: int, max_positions: int, top_k: int) -> None:
        """Start with empty slots."""
        torch.set_num_threads(1)
        self.slot_of = torch.full((requests, max_positions), -1, dtype=torch.int64)
        self.position_of = torch.full((requests, hot_slots), -1, dtype=torch.int64)
        self.used_at = torch.arange(hot_slots).repeat(requests, 1)
        self.now = hot_slots
        self.times = torch.arange(top_k)

    def resolve(self, topk: np.ndarray) -> Plan:
        """Resolve one step."""
        selected = torch.from_numpy(topk).long()
        slots = self.slot_of.gather(1, selected)
        misses = slots < 0
        times = self.times + self.now
        self.now += topk.shape[1]
        positions, loaded = [], []
        for b in range(len(topk)):
            missed = misses[b]
            used_at = self.used_at[b]
            used_at[slots[b][~missed]] = times[~missed]
            need = selected[b][missed]
            victims = used_at.topk(len(need), largest=False, sorted=True).indices
            old = self.position_of[b][victims]
            self.slot_of[b, old[old >= 0]] = -1
            self.slot_of[b, need] = victims
            self.position_of[b, victims] = need
            used_at[victims] = times[missed]
            slots[b, missed] = victims
            positions.append(need)
            loaded.append(victims)
        return slots.numpy(), torch.cat(positions).numpy(), torch.cat(loaded).numpy()


class PythonDict:
    """`collections.OrderedDict`, position to slot: hits first, then loads (no order of the package)."""

    def __init__(self, requests: int, hot_slots: int, max_positions: int, top_k: int) -> None:  # noqa: ARG002 # one form for all peers
        """Start with empty slots, held by negative positions."""
        self.lru = [OrderedDict((-1 - slot, slot) for slot in range(hot_slots)) for _ in range(requests)]

    def resolve(self, topk: np.ndarray) -> Plan:
        """Resolve one step."""
        slots = np.empty_like(topk)
        positions, loaded = [], []
        for lru, row, out in zip(self.lru, topk.tolist(), slots, strict=True):
            answer = []
            missed = []
            for j, position in enumerate(row):
                slot = lru.get(position, -1)
                if slot < 0:
                    missed.append((j, position))
                else:
                    lru.move_to_end(position)
                answer.append(slot)
            for j, position in missed:
                _, slot = lru.popitem(last=False)
                lru[position] = answer[j] = slot
                positions.append(position)
                loaded.append(slot)
            out[:] = answer
        return slots, positions, loaded
