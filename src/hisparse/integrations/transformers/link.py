"""How fast this machine copies from the host's memory to the device's."""

import time
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from hisparse.integrations.transformers.device import pinned_bytes
from hisparse.kernels import map_memory

# More than the caches of one core hold, little enough to be copied in about a millisecond.
_COPY_BYTES = 8 * 2**20
_COPIES = 3


# A fact of the machine, so a process asks once for each device.
@cache
def measured_link_bytes_per_second(device: str) -> float:
    """Return the speed of a plain copy of 8 MiB to `device`, the best of three; takes about 10 ms.

    Both sides are memory like that of a host pool in memory and of its hot buffers: page-locked and on the
    device where `device` is a GPU, mapped with huge pages where it is the CPU.
    """
    target = torch.device(device)
    if target.type == "cpu":
        host, hot = map_memory(_COPY_BYTES), map_memory(_COPY_BYTES)
        host[:] = 1
        hot[:] = 0
        seconds = min(_seconds_to_copy(host, hot) for _ in range(_COPIES))
    else:
        rows = torch.from_numpy(pinned_bytes(_COPY_BYTES))
        hot_rows = torch.zeros(_COPY_BYTES, dtype=torch.uint8, device=target)
        seconds = min(_seconds_to_send(rows, hot_rows) for _ in range(_COPIES))
    return _COPY_BYTES / seconds


def _seconds_to_copy(host: NDArray[np.uint8], hot: NDArray[np.uint8]) -> float:
    started = time.perf_counter()
    np.copyto(hot, host)
    return max(time.perf_counter() - started, 1e-9)


def _seconds_to_send(rows: torch.Tensor, hot_rows: torch.Tensor) -> float:
    torch.accelerator.synchronize(hot_rows.device)
    started = time.perf_counter()
    hot_rows.copy_(rows, non_blocking=True)
    torch.accelerator.synchronize(hot_rows.device)
    return max(time.perf_counter() - started, 1e-9)
