"""A checksum of a row: every change of one 64-bit word is found, others all but surely."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hisparse.host._compiled import Region, compiled, load_byte, load_word

_WORD_BYTES = 8
_SEED = 0x9E3779B9
_HALF = np.uint64(32)
_BYTE = np.uint64(8)
_ZERO = np.uint64(0)


class Expected(NamedTuple):
    """What the rows of one layer must sum to.

    Attributes:
        checksums: uint64 ``[R]``.
        weights: uint64 ``[W]``, from `checksum_weights`.
    """

    checksums: NDArray[np.uint64]
    weights: NDArray[np.uint64]


def checksum_weights(row_bytes: int) -> NDArray[np.uint64]:
    """uint64 ``[W]``: fixed odd weights, one for each 64-bit word of a row of up to `row_bytes` bytes.

    A weight is odd, hence has an inverse modulo 2^64: a changed word always changes its product.
    """
    num_words = -(-row_bytes // _WORD_BYTES)
    return np.random.default_rng(_SEED).integers(0, 2**64, num_words, np.uint64) | np.uint64(1)


@compiled
def row_checksum(address: int, row_bytes: int, weights: NDArray[np.uint64]) -> np.uint64:
    """Sum of ``(x ^ x >> 32) * weight`` over the little-endian words x of the row at `address`, modulo 2^64.

    The shift brings the high bits down: without it, two words that both lose their top bit would cancel out.
    Bytes past the last full word count as a word padded with zeros.
    """
    total = _ZERO
    num_words = row_bytes // _WORD_BYTES
    for idx in range(num_words):
        word = load_word(address + idx * _WORD_BYTES)
        total += (word ^ (word >> _HALF)) * weights[idx]
    if row_bytes > num_words * _WORD_BYTES:
        tail = _ZERO
        for offset in range(row_bytes - 1, num_words * _WORD_BYTES - 1, -1):
            tail = (tail << _BYTE) | np.uint64(load_byte(address + offset))
        total += (tail ^ (tail >> _HALF)) * weights[num_words]
    return total


def checksum_rows(data: NDArray[np.uint8], weights: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """uint64 ``[M]``: the checksum of each row of contiguous data ``[M, row_bytes]``."""
    sums = np.empty(len(data), np.uint64)
    _fill_checksums(Region(data.ctypes.data, data.shape[1], -1, 0), sums, weights)
    return sums


@compiled
def _fill_checksums(region: Region, sums: NDArray[np.uint64], weights: NDArray[np.uint64]) -> None:
    for row in range(sums.shape[0]):
        sums[row] = row_checksum(region.address + row * region.row_bytes, region.row_bytes, weights)


@compiled
def checksums_of(region: Region, rows: NDArray[np.int64], weights: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """uint64 ``[M]``: the checksum of each of the given rows of a region."""
    sums = np.empty(rows.shape[0], np.uint64)
    for idx in range(rows.shape[0]):
        sums[idx] = row_checksum(region.address + rows[idx] * region.row_bytes, region.row_bytes, weights)
    return sums


@compiled
def first_mismatch(region: Region, rows: NDArray[np.int64], expected: Expected) -> int:
    """Return the first m whose row ``rows[m]`` has not its expected checksum, -1 if all have.

    Measured on an AMD EPYC guest with AVX2, 2000 random rows of 1152 B, page cache warm: 210 ns a row, where
    the copy alone takes 160.  Checking the copy instead of the source came to 330 in all against 350, a loop
    that checks while it copies to 240; this one is kept because nothing is copied unless all rows are right.
    """
    for idx in range(rows.shape[0]):
        row = rows[idx]
        found = row_checksum(region.address + row * region.row_bytes, region.row_bytes, expected.weights)
        if found != expected.checksums[row]:
            return idx
    return -1
