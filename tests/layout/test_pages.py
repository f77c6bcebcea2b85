"""Page arithmetic is exact at page edges and beyond 32 bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.layout import pages_for, rows_of


@pytest.mark.parametrize(
    ("positions", "page_rows", "pages"),
    [(0, 64, 0), (1, 64, 1), (64, 64, 1), (65, 64, 2), (5, 1, 5), (2**40 + 1, 2**20, 2**20 + 1)],
)
def test_pages_hold_the_positions(positions: int, page_rows: int, pages: int) -> None:
    """The pages are just enough: none for nothing, one more for the first position past an edge."""
    assert pages_for(positions, page_rows) == pages


@settings(deadline=None)
@given(positions=st.integers(0, 2**40), page_rows=st.integers(1, 2**20))
def test_no_page_is_missing_and_none_is_empty(positions: int, page_rows: int) -> None:
    """All positions fit, and with one page less they would not."""
    pages = pages_for(positions, page_rows)
    assert pages * page_rows >= positions
    assert positions == 0 or (pages - 1) * page_rows < positions


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_rows_follow_the_page_table(dtype: type) -> None:
    """A position's row is its page's first row plus its place in the page."""
    rows = rows_of(np.array([7, 0, 3], np.int32), np.array([0, 3, 4, 11, 5], dtype), 4)
    assert rows.dtype == np.int64
    assert rows.tolist() == [28, 31, 0, 15, 1]


def test_rows_beyond_32_bits_are_exact() -> None:
    """A row number that no int32 holds comes out right, though pages are int32."""
    assert rows_of(np.array([2**31 - 1], np.int32), np.array([63], np.int32), 64).tolist() == [(2**31 - 1) * 64 + 63]


def test_no_position_is_no_row() -> None:
    """An empty list of positions gives an empty list of rows."""
    assert rows_of(np.empty(0, np.int32), np.empty(0, np.int64), 64).tolist() == []
