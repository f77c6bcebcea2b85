"""Where hot rows are, and where the others come from."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import ArrayError
from hisparse.kernels import PageTable

CopyRows = Callable[[NDArray[np.uint8], NDArray[np.int64]], int]
"""``copy(out, out_rows)`` writes row ``m`` to ``out[out_rows[m]]`` and returns the bytes copied."""


class RowSource(Protocol):
    """The host side of a gather: knows where a request's rows are and copies them."""

    @property
    def length(self) -> int:
        """Positions every request has; none beyond can be selected."""
        ...

    @property
    def pages(self) -> PageTable:
        """Where the rows of every request are."""
        ...

    def gather(self, layer: int, rows: NDArray[np.int64], out: NDArray[np.uint8], out_rows: NDArray[np.int64]) -> int:
        """Copy source row ``rows[m]`` of `layer` to ``out[out_rows[m]]`` and return the bytes copied."""
        ...


class HotBuffer(Protocol):
    """The hot slots of all requests in one layer, flat: slot ``s`` of request ``r`` is row ``r * hot_slots + s``."""

    @property
    def nbytes(self) -> int:
        """Bytes of device memory the buffer occupies."""
        ...

    def load(self, copy: CopyRows, slots: NDArray[np.int64]) -> int:
        """Let `copy` write one row into each flat slot of `slots`, and return the bytes it copied."""
        ...


class MemoryHotBuffer:
    """A hot buffer in memory the host can write: rows are gathered straight into their slots."""

    def __init__(self, rows: NDArray[np.uint8]) -> None:
        """Wrap `rows`, uint8 ``[requests * hot_slots, row_bytes]``; the buffer writes into it.

        Raises:
            ArrayError: `rows` is not a two-dimensional array of bytes.
        """
        if rows.dtype != np.uint8 or rows.ndim != 2:  # noqa: PLR2004 - slots by bytes
            raise ArrayError(f"rows must be uint8[slots, row_bytes], got {rows.dtype}{list(rows.shape)}")
        self._rows = rows

    @property
    def nbytes(self) -> int:
        """Bytes of memory the buffer occupies."""
        return self._rows.nbytes

    def load(self, copy: CopyRows, slots: NDArray[np.int64]) -> int:
        """Gather into the slots in place; no staging."""
        return copy(self._rows, slots)
