"""Row copies.  Loops only."""

# ruff: noqa: PLR0917 - numba has no keyword-only arguments
from typing import Any

from hisparse.kernels._numba_compile import CACHE_LINE_BYTES, copy_bytes, kernel, prefetch

# Rows ahead at which the start of a source row is asked for; the processor streams the rest by itself.
# 2000 random rows of 1152 B out of 1 GiB, GiB/s, where a contiguous copy runs at 7.2 (2 shared cores of an AMD EPYC,
# 2026-11): no prefetch 4.5, all 18 lines of a row 5.7, its first 2 or 3 lines 5.8 to 6.2, at 4 to 24 rows alike.
# Not worth it, where this loop runs at 6.5: `rep movsb` a row 5.9, asking for the output rows as well 5.1 to 5.7.
AHEAD = 8
LINES_BYTES = 3 * CACHE_LINE_BYTES


@kernel
def first_outside(rows: Any, limit: int) -> int:
    """Return the index of the first row not in ``[0, limit)``, or -1."""
    low = 0
    high = -1
    for row in rows:
        low = min(low, row)
        high = max(high, row)
    if low >= 0 and high < limit:
        return -1
    for m in range(rows.shape[0]):
        if rows[m] < 0 or rows[m] >= limit:
            return m
    return -1


@kernel
def gather(pool: int, rows: Any, out: int, out_rows: Any, row_bytes: int) -> None:
    """Copy pool row ``rows[m]`` to out row ``out_rows[m]`` (`m` where `out_rows` is empty).

    `pool` and `out` are addresses: one compiled loop serves every dtype, writable or not.
    """
    scattered = out_rows.shape[0] > 0
    for m in range(rows.shape[0]):
        if m + AHEAD < rows.shape[0]:
            ahead = pool + rows[m + AHEAD] * row_bytes
            for line in range(0, min(row_bytes, LINES_BYTES), CACHE_LINE_BYTES):
                prefetch(ahead + line)
        target = out_rows[m] if scattered else m
        copy_bytes(out + target * row_bytes, pool + rows[m] * row_bytes, row_bytes)
