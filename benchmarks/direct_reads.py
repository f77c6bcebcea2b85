"""What a disk can do: reads past the page cache, all submitted at once."""

import ctypes
import mmap
import os
import platform
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# io_setup, io_destroy, io_submit, io_getevents
_NUMBERS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
_PAGE_BYTES = 4096
# struct iocb and struct io_event
_REQUEST = np.dtype(
    {
        "names": ["opcode", "fd", "buffer", "num_bytes", "offset"],
        "formats": ["u2", "u4", "u8", "u8", "i8"],
        "offsets": [16, 20, 24, 32, 40],
        "itemsize": 64,
    }
)
_EVENT = np.dtype({"names": ["result"], "formats": ["i8"], "offsets": [16], "itemsize": 32})


class DirectReads:
    """Linux asynchronous reads of a file, one request a row, for the whole pages a row lies in."""

    def __init__(self, path: Path, row_bytes: int, offset: int, at_once: int) -> None:
        """Open the file.

        Args:
            path: The file.
            row_bytes: Bytes of a row.
            offset: Where row 0 is.
            at_once: The most rows of one call.

        Raises:
            OSError: Not on this system or file system.
        """
        if platform.machine() not in _NUMBERS or not hasattr(os, "O_DIRECT"):
            raise OSError(f"no direct reads known for {platform.system()} on {platform.machine()}")
        self._setup, self._destroy, self._submit, self._events = _NUMBERS[platform.machine()]
        self._row_bytes, self._offset = row_bytes, offset
        self._slot_bytes = (-(-row_bytes // _PAGE_BYTES) + 1) * _PAGE_BYTES
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self._buffer = np.frombuffer(mmap.mmap(-1, at_once * self._slot_bytes), np.uint8)
        self._buffer[:] = 1
        self._context = ctypes.c_ulong()
        self._call(self._setup, ctypes.c_long(at_once), ctypes.byref(self._context))

    def read(self, rows: NDArray[np.int64]) -> None:
        """Read rows ``[M]``; returns when all are there."""
        first = (self._offset + rows * self._row_bytes) // _PAGE_BYTES * _PAGE_BYTES
        stop = -(-(self._offset + (rows + 1) * self._row_bytes) // _PAGE_BYTES) * _PAGE_BYTES
        requests = np.zeros(rows.size, _REQUEST)
        requests["fd"], requests["offset"], requests["num_bytes"] = self._fd, first, stop - first
        requests["buffer"] = self._buffer.ctypes.data + np.arange(rows.size) * self._slot_bytes
        addresses = requests.ctypes.data + np.arange(rows.size, dtype=np.uint64) * np.uint64(_REQUEST.itemsize)
        events = np.zeros(rows.size, _EVENT)
        submitted = 0
        while submitted < rows.size:
            rest = ctypes.c_void_p(addresses.ctypes.data + 8 * submitted)
            submitted += self._call(self._submit, self._context, ctypes.c_long(rows.size - submitted), rest)
        many, into = ctypes.c_long(rows.size), ctypes.c_void_p(events.ctypes.data)
        self._call(self._events, self._context, many, many, into, None)
        if (events["result"] < self._row_bytes).any():
            raise OSError("a direct read failed")

    def _call(self, number: int, *arguments: object) -> int:
        result = int(self._syscall(ctypes.c_long(number), *arguments))
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    def close(self) -> None:
        """Close the file."""
        self._call(self._destroy, self._context)
        os.close(self._fd)
