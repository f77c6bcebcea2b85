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
_madvise: Any = types.ExternalFunction("madvise", _int32(_int64, _int64, _int32))
_pread: Any = types.ExternalFunction("pread", _int64(_int32, _int64, _int64, _int64))
_preadv2: Any = types.ExternalFunction("preadv2", _int64(_int32, _int64, _int32, _int64, _int32))
_getrusage: Any = types.ExternalFunction("getrusage", _int32(_int32, _int64))

_LINUX = hasattr(os, "RWF_NOWAIT")
_WILLNEED = os.POSIX_FADV_WILLNEED if _LINUX else -1
_NOWAIT = os.RWF_NOWAIT if _LINUX else -1
_POPULATE_READ = 22  # MADV_POPULATE_READ, since Linux 5.14
_THIS_THREAD = 1  # RUSAGE_THREAD
_PAGE_BYTES = mmap.PAGESIZE

# Rows of a plan that are asked about first, and rows touched between two looks at the fault count.
_PROBES = 4
_STRIDE = 32
# Pages with at most this much between them are one request: a page more costs a disk less than a request more.
_GAP_BYTES = _PAGE_BYTES
# The kernel cuts a longer request to the device's read-ahead.
_MAX_ADVICE_BYTES = 128 << 10

# Layout of the scratch words: struct iovec, bytes that were read, struct rusage.
_BYTE_READ = 2
_RUSAGE = 3
_MAJOR_FAULTS = _RUSAGE + 9
_SCRATCH_WORDS = _RUSAGE + 18


def scratch_words() -> NDArray[np.int64]:
    """Return the memory that `fetch_rows` lends to system calls; one set serves one thread at a time."""
    return np.zeros(_SCRATCH_WORDS, np.int64)


def fetch_rows(region: Region, rows: NDArray[np.int64], scratch: NDArray[np.int64]) -> int:
    """Bring rows ``[M]`` into memory; returns a row that cannot be read, -1 if all can.

    A cold row that is merely touched costs a fault of 80 to 190 us; asked for ahead, together with the others
    of its plan, 13 to 20 if the plan is spread over the file and 8 to 12 if it is one row in eight (virtio
    disk, 2 cores, 1000 random rows of 1152 B).  Asking in the order of the file joins rows in neighbouring
    pages.  For rows far apart the disk is the limit: reads past the page cache, all submitted at once, take 12
    to 19, and no other system call and no number of threads was faster.

    Asking for a row that is in memory costs 0.4 us, twice its copy, so the page cache is asked about a few
    rows first, and afterwards a look at the thread's fault count every few rows finds the plans with few cold
    rows.  Rows that are asked for are awaited by system calls, which report a disk that fails or a file that
    was cut; a touch would end the process.  That costs nothing in a cold plan, where mapping is paid either way,
    and 0.8 us for each warm row of a plan with few cold ones; paid in warm plans too, it would treble them.

    Systems other than Linux leave all rows to the copy.
    """
    if not _LINUX:
        return -1
    warm = _touch_warm(region, rows, scratch)
    if warm == len(rows):
        return -1
    cold = np.sort(rows[warm:])
    _ask(region, cold)
    return _await(region, cold, scratch)


@compiled
def _touch_warm(region: Region, rows: NDArray[np.int64], scratch: NDArray[np.int64]) -> int:
    """Touch rows in turn until one had to wait for the disk; returns how many were touched."""
    if _any_cold(region, rows, scratch):
        return 0
    faults = _major_faults(scratch)
    for start in range(0, rows.shape[0], _STRIDE):
        stop = min(rows.shape[0], start + _STRIDE)
        _touch(region, rows[start:stop], scratch)
        if _major_faults(scratch) > faults:
            return int(stop)
    return len(rows)


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
def _ask(region: Region, rows: NDArray[np.int64]) -> None:
    """Ask for all rows, which ascend; those in the same or nearly neighbouring pages are asked for together."""
    start = stop = 0
    for idx in range(rows.shape[0]):
        offset = region.offset + rows[idx] * region.row_bytes
        first = offset - offset % _PAGE_BYTES
        last = offset + region.row_bytes
        if stop > start and first <= stop + _GAP_BYTES and last - start <= _MAX_ADVICE_BYTES:
            stop = last
            continue
        if stop > start:
            _posix_fadvise(region.fd, start, stop - start, _WILLNEED)
        start, stop = first, last
    if stop > start:
        _posix_fadvise(region.fd, start, stop - start, _WILLNEED)


@compiled
def _await(region: Region, rows: NDArray[np.int64], scratch: NDArray[np.int64]) -> int:
    """Wait for the pages of rows that ascend and map them; returns a row that could not be read, or -1.

    Mapping here, while later rows are still on their way, costs no time; a fault of each page in the copy would.
    """
    mapping = region.address - region.offset
    awaited = 0
    for idx in range(rows.shape[0]):
        offset = region.offset + rows[idx] * region.row_bytes
        stop = offset + region.row_bytes
        first = max(awaited, offset - offset % _PAGE_BYTES)
        if first >= stop:
            continue
        awaited = stop + -stop % _PAGE_BYTES
        # An older kernel, which does not know this advice, is asked for the same pages by reads.
        if _madvise(mapping + first, awaited - first, _POPULATE_READ) != 0 and not _readable(
            region.fd, first, stop, scratch
        ):
            return int(rows[idx])
    return -1


@compiled
def _readable(fd: int, first: int, stop: int, scratch: NDArray[np.int64]) -> bool:
    """Whether the first byte of every page from `first`, which begins one, to `stop` can be read; waits for it."""
    at = first
    while at < stop and _pread(fd, scratch.ctypes.data + 8 * _BYTE_READ, 1, at) == 1:
        at += _PAGE_BYTES
    return at >= stop


@compiled
def _touch(region: Region, rows: NDArray[np.int64], scratch: NDArray[np.int64]) -> None:
    """Read a byte of every operating-system page of each row; the sum is kept, or the reads would be removed."""
    total = 0
    for idx in range(rows.shape[0]):
        first = region.address + rows[idx] * region.row_bytes
        for byte in range(0, region.row_bytes, _PAGE_BYTES):
            total += load_byte(first + byte)
        total += load_byte(first + region.row_bytes - 1)
    scratch[_BYTE_READ] = total


@compiled
def _major_faults(scratch: NDArray[np.int64]) -> int:
    """Faults of this thread that waited for a disk."""
    _getrusage(_THIS_THREAD, scratch.ctypes.data + 8 * _RUSAGE)
    return int(scratch[_MAJOR_FAULTS])
