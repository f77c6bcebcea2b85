"""Hot buffers as tensors: written in place on a CPU, through pinned staging on other devices."""

import numpy as np
import torch
from numpy.typing import NDArray

from hisparse.hot import HotBuffer, MemoryHotBuffer
from hisparse.hot.buffer import CopyRows
from hisparse.integrations.transformers.tensors import as_bytes


class StagedHotBuffer:
    """A hot buffer in device memory: rows are gathered into a staging tensor, then copied to their slots."""

    def __init__(self, rows: torch.Tensor) -> None:
        """Wrap `rows`, ``[requests * hot_slots, W]`` on the device; the buffer writes into it."""
        self._rows = rows
        self._pin = rows.device.type == "cuda"

    @property
    def nbytes(self) -> int:
        """Bytes of device memory the buffer occupies."""
        return self._rows.nbytes

    def load(self, copy: CopyRows, slots: NDArray[np.int64]) -> int:
        """Gather into fresh staging memory, copy it over, scatter it on the device."""
        count, width = len(slots), self._rows.shape[1]
        # The caching host allocator keeps pinned memory alive until the copy that reads it is done.
        staging = torch.empty(count, width, dtype=self._rows.dtype, pin_memory=self._pin)
        copied = copy(as_bytes(staging), np.arange(count))
        device = self._rows.device
        index = torch.from_numpy(slots).to(device, non_blocking=True)
        self._rows.index_copy_(0, index, staging.to(device, non_blocking=True))
        return copied


def hot_buffer_over(rows: torch.Tensor) -> HotBuffer:
    """Return the hot buffer for the device `rows` is on."""
    if rows.device.type == "cpu":
        return MemoryHotBuffer(as_bytes(rows))
    return StagedHotBuffer(rows)


def pinned_bytes(nbytes: int) -> NDArray[np.uint8]:
    """Allocate page-locked host memory; released with the array."""
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
