"""A checksum of a row: any change of one 64-bit word is found, others but for one in 2^32 or rarer."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hisparse.host._compiled import compiled
from hisparse.host.storage import Rows

_WORD_BYTES = 8
_SEED = 0x9E3779B9
_HALF = np.uint64(32)
_ZERO = np.uint64(0)


def checksum_weights(row_bytes: int) -> NDArray[np.uint64]:
    """uint64 ``[W]``: fixed odd weights, one for each 64-bit word of a row of up to `row_bytes` bytes.

    A weight is odd, hence has an inverse modulo 2^64: a changed word always changes its product.
    """
    num_words = -(-row_bytes // _WORD_BYTES)
    words = np.random.default_rng(_SEED).integers(0, 2**64, num_words, np.uint64, endpoint=False)
    return words | np.uint64(1)


@intrinsic
def _load_word(typing_context: Any, data: Any, row: Any, offset: Any) -> Any:
    """Load 64 bits from any byte of a contiguous uint8 array: rows of odd lengths leave no alignment."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        row_bytes = builder.extract_value(array.shape, 1)
        start = builder.add(builder.mul(args[1], row_bytes), args[2])
        word = ir.IntType(64)
        return builder.load(builder.bitcast(builder.gep(array.data, [start]), word.as_pointer()), align=1)

    return types.uint64(data, types.int64, types.int64), emit


@compiled
def row_checksum(data: Rows, row: int, weights: NDArray[np.uint64]) -> np.uint64:
    """Sum of ``(x ^ x >> 32) * weight`` over the row's little-endian words, modulo 2^64.

    The shift brings the high bits down: without it, two words that both lose their top bit would cancel out.
    Bytes past the last full word count as a word padded with zeros.
    """
    total = _ZERO
    num_words = data.shape[1] // _WORD_BYTES
    for idx in range(num_words):
        word = _load_word(data, row, idx * _WORD_BYTES)
        total += (word ^ (word >> _HALF)) * weights[idx]
    word = _ZERO
    for offset in range(data.shape[1] - 1, num_words * _WORD_BYTES - 1, -1):
        word = (word << np.uint64(8)) | np.uint64(data[row, offset])
    if num_words < weights.shape[0]:
        total += (word ^ (word >> _HALF)) * weights[num_words]
    return total


@compiled
def checksum_rows(data: Rows, weights: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """uint64 ``[M]``: the checksum of each row of data ``[M, row_bytes]``."""
    sums = np.empty(data.shape[0], np.uint64)
    for row in range(data.shape[0]):
        sums[row] = row_checksum(data, row, weights)
    return sums


@compiled
def first_mismatch(
    region: Rows, rows: NDArray[np.int64], expected: NDArray[np.uint64], weights: NDArray[np.uint64]
) -> int:
    """Return the first m whose row has not its expected checksum, -1 if all have.

    Args:
        region: uint8 ``[R, row_bytes]``.
        rows: int64 ``[M]``.
        expected: uint64 ``[R]``.
        weights: From `checksum_weights`.
    """
    for idx in range(rows.shape[0]):
        row = rows[idx]
        if row_checksum(region, row, weights) != expected[row]:
            return idx
    return -1
