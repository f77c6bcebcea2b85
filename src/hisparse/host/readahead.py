"""Bringing the rows of a plan into memory: all asked for at once, then awaited."""

import mmap
import os
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from hisparse.host._compiled import Region, compiled, load_byte

_int32, _int64 = types.int32, types.int64
_posix_fadvise: Any = types.ExternalFunction("posix_fadvise", _int32(_int32, _int64, _int64, _int32))
_preadv2: Any = types.ExternalFunction("preadv2", _int64(_int32, _int64, _int32, _int64, _int32))
_getrusage: Any = types.ExternalFunction("getrusage", _int32(_int32, _int64))

_WILLNEED = os.POSIX_FADV_WILLNEED
_NOWAIT = os.RWF_NOWAIT
_THIS_THREAD = 1  # RUSAGE_THREAD
_PAGE_BYTES = mmap.PAGESIZE

# Rows of a plan that are asked about first, and rows touched between two looks at the fault count.
_PROBES = 4
_STRIDE = 64
# The kernel cuts a longer request to the device's read-ahead.
_MAX_ADVICE_BYTES = 128 << 10

# Layout of the scratch words: struct iovec, the byte it reads into, struct rusage.
_BYTE_READ = 2
_RUSAGE = 3
_MAJOR_FAULTS = _RUSAGE + 9
_SCRATCH_WORDS = _RUSAGE + 18


def scratch_words() -> NDArray[np.int64]:
    """Return the memory that `fetch_rows` lends to system calls; one set serves one thread at a time."""
    return np.zeros(_SCRATCH_WORDS, np.int64)


@compiled
def fetch_rows(region: Region, rows: NDArray[np.int64], scratch: NDArray[np.int64]) -> bool:
    """Bring rows ``[M]`` into memory; returns whether read-ahead was asked for.

    A cold row that is merely touched costs a fault of 100 to 270 us; asked for ahead, together with the
    others of its plan, 11 to 25 (virtio disk, 2 cores, 1000 random rows of 1152 B).  Asking for a row that is
    in memory costs 0.4 us, twice its copy, so the page cache is asked about a few rows first, and afterwards
    a look at the thread's fault count after each 64 rows finds the plans with few cold rows.
    """
    advised = _any_cold(region, rows, scratch)
    if advised:
        _advise(region, rows)
    faults = _major_faults(scratch)
    for start in range(0, rows.shape[0], _STRIDE):
        stop = min(rows.shape[0], start + _STRIDE)
        _touch(region, rows[start:stop])
        if not advised and _major_faults(scratch) > faults:
            _advise(region, rows[stop:])
            advised = True
    return advised


@compiled
def _any_cold(region: Region, rows: NDArray[np.int64], scratch: NDArray[np.int64]) -> bool:
    """Whether a read that must not wait fails for one of a few rows of the plan, evenly spread."""
    scratch[0] = scratch.ctypes.data + 8 * _BYTE_READ
    scratch[1] = 1
    step = max(1, rows.shape[0] // _PROBES)
    for idx in range(step - 1, rows.shape[0], step):
        offset = region.offset + rows[idx] * region.row_bytes
        if _preadv2(region.fd, scratch.ctypes.data, 1, offset, _NOWAIT) != 1:
            return True
    return False


@compiled
def _advise(region: Region, rows: NDArray[np.int64]) -> None:
    """Ask for all rows; neighbours in the plan that are neighbours in the file are asked for together."""
    start = stop = 0
    for idx in range(rows.shape[0]):
        first = region.offset + rows[idx] * region.row_bytes
        last = first + region.row_bytes
        if first == stop and last - start <= _MAX_ADVICE_BYTES:
            stop = last
            continue
        if stop > start:
            _posix_fadvise(region.fd, start, stop - start, _WILLNEED)
        start, stop = first, last
    if stop > start:
        _posix_fadvise(region.fd, start, stop - start, _WILLNEED)


@compiled
def _touch(region: Region, rows: NDArray[np.int64]) -> int:
    """Read a byte of every operating-system page of each row; the sum keeps the reads from being removed."""
    total = 0
    for idx in range(rows.shape[0]):
        first = region.address + rows[idx] * region.row_bytes
        for byte in range(0, region.row_bytes, _PAGE_BYTES):
            total += load_byte(first + byte)
        total += load_byte(first + region.row_bytes - 1)
    return total


@compiled
def _major_faults(scratch: NDArray[np.int64]) -> int:
    """Faults of this thread that waited for a disk."""
    _getrusage(_THIS_THREAD, scratch.ctypes.data + 8 * _RUSAGE)
    return int(scratch[_MAJOR_FAULTS])
