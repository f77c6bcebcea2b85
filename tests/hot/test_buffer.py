"""A hot buffer in memory is gathered into in place."""

import numpy as np
import pytest
from numpy.typing import NDArray

from hisparse.errors import ArrayError
from hisparse.hot import MemoryHotBuffer


def test_rows_are_gathered_into_their_slots() -> None:
    """The copy is handed the buffer itself and the slots, and its own count comes back."""
    rows = np.zeros((4, 3), np.uint8)

    def copy(out: NDArray[np.uint8], out_rows: NDArray[np.int64]) -> int:
        assert out is rows
        out[out_rows] = [[1, 2, 3], [4, 5, 6]]
        return 6

    buffer = MemoryHotBuffer(rows)
    assert buffer.load(copy, np.array([3, 0])) == 6
    assert rows.tolist() == [[4, 5, 6], [0, 0, 0], [0, 0, 0], [1, 2, 3]]
    assert buffer.nbytes == 12


@pytest.mark.parametrize("rows", [np.zeros((2, 2), np.int8), np.zeros(4, np.uint8), np.zeros((1, 2, 2), np.uint8)])
def test_anything_but_a_table_of_bytes_is_refused(rows: np.ndarray) -> None:
    """Another dtype or rank is refused with what was expected and what came."""
    with pytest.raises(ArrayError, match=r"rows must be uint8\[slots, row_bytes\], got u?int8\["):
        MemoryHotBuffer(rows)
