"""Row copies.  Loops only."""

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
# 1152 B rows at random out of 1 GiB, share of a contiguous copy's speed (AMD EPYC, 2 cores, 2026-11), streaming
# stores: 2, 3, 8 or 16 rows ahead 0.86 alike.  With the first line of a row asked for twice as early, so that its
# address is translated by the time the others are: 4 and 8 rows ahead 0.97, 6 and 12 0.95, 8 and 16 0.94, 8 and 32
# 0.93; rows sorted by address 0.88.  Asking for all 18 lines of a row at once made it slower than not asking.
AHEAD = 4
FAR_AHEAD = 8
# Gathers larger than a core's second-level cache push each other out of it: their stores go past the caches, if rows
# are whole cache lines (a line written half by a streaming store and half by another one costs five times as much).
STREAMED_BYTES = 1 << 20

DONE = 0
OVERLAP = 1
OUTSIDE = 2


@part
def _all_inside(rows: Any, limit: int) -> bool:
    """Return whether all rows are in ``[0, limit)``."""
    low = 0
    high = -1
    for row in rows:
        low = min(low, row)
        high = max(high, row)
    return low >= 0 and high < limit


@part
def _overlap(a: Any, b: Any) -> bool:
    """Return whether two contiguous matrices of bytes share one."""
    a_start, b_start = a.ctypes.data, b.ctypes.data
    shared: bool = a.size > 0 and b.size > 0 and a_start < b_start + b.size and b_start < a_start + a.size
    return shared


@kernel
def gather(pool: Any, rows: Any, out: Any, out_rows: Any) -> int:
    """Copy pool row ``rows[m]`` to out row ``out_rows[m]`` (`m` where `out_rows` is empty); bytes of uint8 matrices.

    Returns DONE, or with no byte moved what forbids it: OVERLAP, or OUTSIDE if a row is outside of either.  Addresses
    are taken here: asking numpy for one takes 1.5 us from Python, and 25 us if that code has left the caches.
    """
    row_bytes = int64(pool.shape[1])
    count = rows.shape[0]
    scattered = out_rows.shape[0] > 0
    if _overlap(pool, out):
        return OVERLAP
    if not _all_inside(rows, pool.shape[0]) or not _all_inside(out_rows, out.shape[0]):
        return OUTSIDE
    pool_address, out_address = pool.ctypes.data, out.ctypes.data
    streamed = count * row_bytes >= STREAMED_BYTES and (out_address | row_bytes) % CACHE_LINE_BYTES == 0
    lines_bytes = row_bytes - row_bytes % CACHE_LINE_BYTES
    for m in range(min(FAR_AHEAD, count)):
        prefetch(pool_address + int64(rows[m]) * row_bytes)
    for m in range(count):
        source = pool_address + int64(rows[m]) * row_bytes
        ahead = pool_address + int64(rows[min(m + AHEAD, count - 1)]) * row_bytes
        target = out_address + int64(out_rows[m] if scattered else m) * row_bytes
        prefetch(pool_address + int64(rows[min(m + FAR_AHEAD, count - 1)]) * row_bytes)
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
    return DONE
