"""A row source that knows what every row holds, and a group over it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hisparse.hot import GroupCounters, HiSparseIndexGroup, MemoryHotBuffer
from hisparse.kernels import PageTable, Residency

ROW_BYTES = 16
MAX_POSITIONS = 64


class PatternSource:
    """Row of (layer, request, position) is filled with a byte pattern of all three; can be told to fail."""

    def __init__(self) -> None:
        self.failing_layers: set[int] = set()
        self.gathered: list[tuple[int, list[int]]] = []

    @property
    def length(self) -> int:
        return MAX_POSITIONS

    @property
    def pages(self) -> PageTable:
        return PageTable(np.arange(0, 2 * MAX_POSITIONS, 16).reshape(2, -1), 16)

    def gather(self, layer: int, rows: NDArray[np.int64], out: NDArray[np.uint8], out_rows: NDArray[np.int64]) -> int:
        if layer in self.failing_layers:
            raise OSError(f"layer {layer} cannot be read")
        self.gathered.append((layer, rows.tolist()))
        for row, out_row in zip(rows, out_rows, strict=True):
            out[out_row] = pattern(layer, int(row))
        return len(rows) * ROW_BYTES


def pattern(layer: int, row: int) -> NDArray[np.uint8]:
    """Return the bytes of one source row."""
    return np.frombuffer(np.array([layer, row], np.int64).tobytes(), np.uint8)


class Bench:
    """A group with its parts at hand."""

    def __init__(self, layers: Sequence[int], *, requests: int, hot_slots: int, top_k: int) -> None:
        self.source = PatternSource()
        self.rows = {layer: np.zeros((requests * hot_slots, ROW_BYTES), np.uint8) for layer in layers}
        self.residency = Residency(
            max_requests=requests,
            hot_slots=hot_slots,
            max_positions=MAX_POSITIONS,
            top_k=top_k,
            backend="reference",
        )
        self.counters = GroupCounters(requests=requests, layers=len(layers))
        self.group = HiSparseIndexGroup(
            layers,
            [MemoryHotBuffer(rows) for rows in self.rows.values()],
            self.residency,
            source=self.source,
            counters=self.counters,
        )
