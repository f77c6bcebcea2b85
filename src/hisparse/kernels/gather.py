"""Copy rows out of a pool: the one place where hot rows move."""

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import ArrayError, PositionError
from hisparse.kernels import _numba_gather
from hisparse.kernels._faults import describe

_IN_ORDER = np.empty(0, np.int64)
_BYTE = np.dtype(np.uint8)
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


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
    if not (_is_plain(pool) and _is_plain(out)):
        _refuse_matrix("pool", pool)
        _refuse_matrix("out", out)
    sources = _check_indices("rows", rows, None)
    targets = _IN_ORDER if out_rows is None else _check_indices("out_rows", out_rows, len(sources))
    if (
        (out.dtype is not pool.dtype and out.dtype != pool.dtype)
        or out.shape[1] != pool.shape[1]
        or not out.flags.writeable
        or (out_rows is None and len(out) != len(sources))
    ):
        _refuse_out(out, pool, len(sources) if out_rows is None else None)
    source_bytes, target_bytes = _as_bytes(pool), _as_bytes(out)
    state = _numba_gather.gather(source_bytes, sources, target_bytes, targets)
    if state == _numba_gather.OVERLAP:
        raise ArrayError("out must not overlap pool: rows would be read after they were overwritten")
    if state == _numba_gather.OUTSIDE:
        _refuse_outside("out_rows", targets, len(out))
        _refuse_outside("rows", sources, len(pool))
    copied: int = len(sources) * source_bytes.shape[1]
    return copied


def _is_plain(array: object) -> bool:
    """Return whether `array` is a C-contiguous matrix of plain bytes."""
    return (
        isinstance(array, np.ndarray)
        and array.ndim == 2  # noqa: PLR2004 # a matrix
        and array.flags.c_contiguous
        and (array.dtype is _BYTE or not array.dtype.hasobject)
    )


def _as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """View a C-contiguous matrix as bytes, so that one compiled loop serves every dtype and kind of array."""
    plain = array if type(array) is np.ndarray else np.asarray(array)
    return plain if plain.dtype is _BYTE else plain.view(_BYTE)


def _refuse_matrix(name: str, array: Any) -> None:
    """Raise ArrayError unless `array` is a C-contiguous matrix of plain bytes."""
    if _is_plain(array):
        return
    if isinstance(array, np.ndarray) and array.ndim == 2 and not array.dtype.hasobject:  # noqa: PLR2004 # a matrix
        raise ArrayError(f"{name} must be C-contiguous, got {describe(array)} with strides {array.strides}")
    raise ArrayError(f"{name} must be a [rows, width] array of a plain dtype, got {describe(array)}")


def _refuse_out(out: NDArray[Any], pool: NDArray[Any], length: int | None) -> NoReturn:
    """Raise ArrayError for an output that is not what `pool` is copied to; `length` rows if it is not scattered to."""
    if out.dtype != pool.dtype or out.shape[1] != pool.shape[1]:
        places = "M" if length is not None else "N"
        raise ArrayError(f"out must be {pool.dtype}[{places}, {pool.shape[1]}], got {describe(out)}")
    if not out.flags.writeable:
        raise ArrayError(f"out must be writable, got a read-only {describe(out)}")
    raise ArrayError(f"out must be {pool.dtype}[{length}, {pool.shape[1]}], got {describe(out)}")


def _check_indices(name: str, indices: object, length: int | None) -> NDArray[np.integer]:
    """Return a row list, contiguous; raise ArrayError unless it is int32 or int64 ``[M]``."""
    if (
        isinstance(indices, np.ndarray)
        and indices.ndim == 1
        and (indices.dtype is _INT64 or indices.dtype in (_INT64, _INT32))
        and (length is None or len(indices) == length)
    ):
        return indices if indices.flags.c_contiguous else np.ascontiguousarray(indices)
    expected = "M" if length is None else length
    raise ArrayError(f"{name} must be int32[{expected}] or int64[{expected}], got {describe(indices)}")


def _refuse_outside(name: str, indices: NDArray[np.integer], limit: int) -> None:
    """Raise PositionError for the first row number that is negative or not below `limit`."""
    for bad in np.flatnonzero((indices < 0) | (indices >= limit))[:1]:
        raise PositionError(f"{name}[{bad}] is {indices[bad]}, expected 0 to {limit - 1}")
