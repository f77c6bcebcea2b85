"""Bringing the rows of a plan into memory: all asked for at once, then awaited."""

import mmap
import os
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from hisparse.host._compiled import compiled
from hisparse.host.storage import Rows

_posix_fadvise: Any = types.ExternalFunction(
    "posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32)
)
_WILLNEED = os.POSIX_FADV_WILLNEED


def fetch_rows(fd: int, offset: int, region: Rows, rows: NDArray[np.int64]) -> None:
    """Bring rows ``[M]`` of a mapped region into memory.

    Args:
        fd: The mapped file.
        offset: Where the region begins in it.
        region: uint8 ``[R, row_bytes]``, mapped.
        rows: int64 ``[M]``.
    """
    _advise(fd, offset, region.shape[1], rows)


@compiled
def _advise(fd: int, offset: int, row_bytes: int, rows: NDArray[np.int64]) -> None:
    for idx in range(rows.shape[0]):
        _posix_fadvise(fd, offset + rows[idx] * row_bytes, row_bytes, _WILLNEED)
