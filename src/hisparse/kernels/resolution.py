"""What a resolve returns: where each selected row is, what must be fetched, and the counts."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

COUNT_FIELDS = ("hit", "miss", "resident", "padding")
"""Columns of `Resolution.counts`; every selected position is exactly one of them."""

PADDING = -1
"""In `requests` a padding row, in `topk` an unused place, in `slots` the answer to either."""


class Resolution(NamedTuple):
    """The plan of one step.  All arrays are fresh: the caller may keep or change them.

    Attributes:
        slots: int32 ``[B, K]``: the hot slot of each position, -1 for padding, ``-2 - row`` for a row that
            is resident on the device (``row = page * page_rows + offset``).
        miss_request: int32 ``[M]``: request of each row to fetch, request by request in batch order and
            within one in the order of first reference.
        miss_position: int32 ``[M]``: position of that row in its request.
        miss_slot: int32 ``[M]``: hot slot the row goes to.
        counts: int64 ``[B, 4]`` in the order of `COUNT_FIELDS`; each row sums to K.
    """

    slots: NDArray[np.int32]
    miss_request: NDArray[np.int32]
    miss_position: NDArray[np.int32]
    miss_slot: NDArray[np.int32]
    counts: NDArray[np.int64]
