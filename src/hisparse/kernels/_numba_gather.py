"""Row copies.  Loops only."""

# ruff: noqa: PLR0917 - numba has no keyword-only arguments
from typing import Any

from hisparse.kernels._numba_compile import (
    CACHE_LINE_BYTES,
    copy_bytes,
    copy_line,
    int64,
    kernel,
    part,
    prefetch,
    settle,
    stream_line,
)

# Rows ahead whose lines are asked for, one by one, while a row is copied: one line in, one line out.
# 1152 B rows at random out of 1 GiB, share of a contiguous copy's speed (AMD EPYC, 2 cores, 2026-11): memcpy a row
# with its first 3 lines asked for 8 rows ahead 0.6, this loop 0.8 to 0.9 at 3 to 12 rows ahead alike, with streaming
# stores 0.9. Asking for all 18 lines of a row at once made it slower than not asking.
AHEAD = 8
# Gathers larger than a core's second-level cache push each other out of it: their stores go past the caches, if rows
# are whole cache lines (a line written half by a streaming store and half by another one costs five times as much).
STREAMED_BYTES = 1 << 20


@part
def _all_inside(rows: Any, limit: int) -> bool:
    """Return whether all rows are in ``[0, limit)``."""
    low = 0
    high = -1
    for row in rows:
        low = min(low, row)
        high = max(high, row)
    return low >= 0 and high < limit


@kernel
def gather(pool: Any, rows: Any, out: Any, out_rows: Any, row_bytes: int) -> bool:
    """Copy pool row ``rows[m]`` to out row ``out_rows[m]`` (`m` where `out_rows` is empty).

    `pool` and `out` are (address, rows): one compiled loop serves every dtype, writable or not.  Returns false,
    with no byte moved, if a row is outside of either.
    """
    pool_address, out_address = pool[0], out[0]
    count = rows.shape[0]
    scattered = out_rows.shape[0] > 0
    if not _all_inside(rows, pool[1]) or not _all_inside(out_rows, out[1]):
        return False
    streamed = count * row_bytes >= STREAMED_BYTES and (out_address | row_bytes) % CACHE_LINE_BYTES == 0
    lines_bytes = row_bytes - row_bytes % CACHE_LINE_BYTES
    for m in range(count):
        source = pool_address + int64(rows[m]) * row_bytes
        ahead = pool_address + int64(rows[min(m + AHEAD, count - 1)]) * row_bytes
        target = out_address + int64(out_rows[m] if scattered else m) * row_bytes
        if streamed:
            for line in range(0, lines_bytes, CACHE_LINE_BYTES):
                prefetch(ahead + line)
                stream_line(target + line, source + line)
        else:
            for line in range(0, lines_bytes, CACHE_LINE_BYTES):
                prefetch(ahead + line)
                copy_line(target + line, source + line)
        copy_bytes(target + lines_bytes, source + lines_bytes, row_bytes - lines_bytes)
    if streamed:
        settle()
    return True
