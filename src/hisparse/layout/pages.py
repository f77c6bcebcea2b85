"""Page arithmetic: positions to pages, pages to rows.  64-bit throughout."""

import numpy as np
from numpy.typing import NDArray


def pages_for(positions: int, page_rows: int) -> int:
    """Return how many pages of `page_rows` rows hold `positions` rows."""
    return -(-positions // page_rows)


def rows_of(pages: NDArray[np.int32], positions: NDArray[np.integer], page_rows: int) -> NDArray[np.int64]:
    """Return the pool row of each position.

    Args:
        pages: int32 ``[P]``, the pool page of each page of one request.
        positions: integers ``[M]`` within the request.
        page_rows: Rows in a page.

    Returns:
        int64 ``[M]``: ``pages[position // page_rows] * page_rows + position % page_rows``.
    """
    page_idx, offset = np.divmod(positions.astype(np.int64), page_rows)
    return pages[page_idx].astype(np.int64) * page_rows + offset
