"""A second definition of correct, written from the contract with an OrderedDict and no arrays in its logic."""

from collections import OrderedDict

import numpy as np

from hisparse.kernels import Residency, Resolution


class Oracle:
    """Slots of each request in an OrderedDict, slot to position, least recent first."""

    def __init__(self, residency: Residency) -> None:
        """Start fresh with the sizes of a residency."""
        self.settings = residency.settings
        self.requests = [self._fresh() for _ in range(self.settings.max_requests)]

    def _fresh(self) -> OrderedDict[int, int | None]:
        return OrderedDict.fromkeys(range(self.settings.hot_slots))

    def resolve(self, requests: np.ndarray, topk: np.ndarray, pages: np.ndarray | None = None) -> Resolution:
        """Resolve a step without faults."""
        width = topk.shape[1]
        slots = [[-1] * width for _ in requests]
        counts = [[0, 0, 0, 0] for _ in requests]
        misses: list[tuple[int, int, int]] = []
        for request in dict.fromkeys(requests.tolist()):
            rows = [b for b, r in enumerate(requests.tolist()) if r == request]
            if request == -1:
                for b in rows:
                    counts[b][3] = width
                continue
            references = []
            for b in rows:
                for j, position in enumerate(topk[b].tolist()):
                    row = None if position == -1 else self._device_row(request, position, pages)
                    if position == -1:
                        counts[b][3] += 1
                    elif row is not None:
                        counts[b][2] += 1
                        slots[b][j] = -2 - row
                    else:
                        references.append((b, j, position))
            slot_of, loaded = self._use(request, [position for _, _, position in references])
            misses += [(request, position, slot_of[position]) for position in loaded]
            waiting = set(loaded)
            for b, j, position in references:
                slots[b][j] = slot_of[position]
                counts[b][1 if position in waiting else 0] += 1
                waiting.discard(position)
        columns = np.array(misses, np.int32).reshape(-1, 3).T
        return Resolution(
            np.array(slots, np.int32).reshape(topk.shape), *columns, np.array(counts, np.int64).reshape(-1, 4)
        )

    def _device_row(self, request: int, position: int, pages: np.ndarray | None) -> int | None:
        page_idx, offset = divmod(position, self.settings.page_rows)
        page = -1 if pages is None else int(pages[request, page_idx])
        return None if page < 0 else page * self.settings.page_rows + offset

    def _use(self, request: int, positions: list[int]) -> tuple[dict[int, int], list[int]]:
        """Use positions in order of reference; return the slot of each and the positions to load."""
        lru = self.requests[request]
        slot_of = {position: slot for slot, position in lru.items() if position is not None}
        first = list(dict.fromkeys(positions))
        hits = {slot_of[position] for position in first if position in slot_of}
        loaded = [position for position in first if position not in slot_of]
        victims = (slot for slot in list(lru) if slot not in hits)
        for position in loaded:
            slot = next(victims)
            lru[slot] = position
            slot_of[position] = slot
        if self.settings.order == "stack":
            used = [slot_of[position] for position in first]
        else:
            used = [slot_of[position] for position in loaded] + [slot for slot in lru if slot in hits]
        for slot in used:
            lru.move_to_end(slot)
        return slot_of, loaded

    def invalidate(self, request: int, positions: list[int]) -> None:
        """Forget positions."""
        lru = self.requests[request]
        for slot, position in lru.items():
            if position in positions:
                lru[slot] = None

    def reset(self, request: int) -> None:
        """Start a request afresh."""
        self.requests[request] = self._fresh()

    def snapshot(self) -> list[bytes]:
        """Return what `comparing.snapshot` returns of a residency in the same state."""
        state = []
        for lru in self.requests:
            held = [-1 if lru[slot] is None else lru[slot] for slot in range(self.settings.hot_slots)]
            state += [np.array(list(lru), np.int32).tobytes(), np.array(held, np.int32).tobytes()]
        return state
