"""Copy rows out of a pool: the one place where hot rows move."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import ArrayError, PositionError
from hisparse.kernels import _numba_gather
from hisparse.kernels._faults import describe

_IN_ORDER = np.empty(0, np.int64)


def gather_rows(
    pool: NDArray[Any],
    rows: NDArray[np.integer],
    out: NDArray[Any],
    *,
    out_rows: NDArray[np.integer] | None = None,
) -> int:
    """Copy ``pool[rows[m]]`` to ``out[out_rows[m]]``; everything is checked before a byte moves.

    Arithmetic is 64-bit; any array may be a memory map.  Where `out_rows` repeats a row, the last copy stays.

    Args:
        pool: ``[R, D]`` of any plain dtype, C-contiguous.
        rows: int32 or int64 ``[M]``.
        out: ``[M, D]``, or ``[N, D]`` with `out_rows`; dtype of `pool`, C-contiguous, writable, not
            overlapping `pool`.
        out_rows: int32 or int64 ``[M]``; None for 0 to M - 1.

    Returns:
        Bytes copied.

    Raises:
        ArrayError: An array has the wrong dtype, shape or layout.
        PositionError: A row is out of range.
    """
    _check_rows("pool", pool)
    sources = _check_indices("rows", rows, None)
    _check_rows("out", out)
    places = "M" if out_rows is None else "N"
    if out.dtype != pool.dtype or out.shape[1] != pool.shape[1]:
        raise ArrayError(f"out must be {pool.dtype}[{places}, {pool.shape[1]}], got {describe(out)}")
    if not out.flags.writeable:
        raise ArrayError(f"out must be writable, got a read-only {describe(out)}")
    if out_rows is None:
        if len(out) != len(sources):
            raise ArrayError(f"out must be {pool.dtype}[{len(sources)}, {pool.shape[1]}], got {describe(out)}")
        targets: NDArray[np.integer] = _IN_ORDER
    else:
        targets = _check_indices("out_rows", out_rows, len(sources))
    if np.may_share_memory(pool, out):
        raise ArrayError("out must not overlap pool: rows would be read after they were overwritten")
    row_bytes: int = pool.shape[1] * pool.dtype.itemsize
    ends = (pool.ctypes.data, len(pool)), (out.ctypes.data, len(out))
    if not _numba_gather.gather(ends[0], sources, ends[1], targets, row_bytes):
        _refuse_outside("out_rows", targets, len(out))
        _refuse_outside("rows", sources, len(pool))
    return sources.size * row_bytes


def _check_rows(name: str, array: object) -> None:
    """Raise ArrayError unless `array` is a C-contiguous matrix of plain bytes."""
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.hasobject:  # noqa: PLR2004 # a matrix
        raise ArrayError(f"{name} must be a [rows, width] array of a plain dtype, got {describe(array)}")
    if not array.flags.c_contiguous:
        raise ArrayError(f"{name} must be C-contiguous, got {describe(array)} with strides {array.strides}")


def _check_indices(name: str, indices: object, length: int | None) -> NDArray[np.integer]:
    """Return a row list, contiguous; raise ArrayError unless it is int32 or int64 ``[M]``."""
    if (
        isinstance(indices, np.ndarray)
        and indices.ndim == 1
        and indices.dtype in (np.int32, np.int64)
        and (length is None or len(indices) == length)
    ):
        return np.ascontiguousarray(indices)
    expected = "M" if length is None else length
    raise ArrayError(f"{name} must be int32[{expected}] or int64[{expected}], got {describe(indices)}")


def _refuse_outside(name: str, indices: NDArray[np.integer], limit: int) -> None:
    """Raise PositionError for the first row number that is negative or not below `limit`."""
    for bad in np.flatnonzero((indices < 0) | (indices >= limit))[:1]:
        raise PositionError(f"{name}[{bad}] is {indices[bad]}, expected 0 to {limit - 1}")
