"""GiB a second of `gather_rows` for random rows of a pool in memory, against a plain copy of as many bytes.

Each call writes another stretch of a buffer as large as the hot buffers of a whole model, so neither end is in
the caches.  The plain copy reads one contiguous stretch of the same pool, elsewhere each time.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

import harness
from hisparse.kernels import gather_rows, map_memory

ROWS = {"656 B": 656, "1152 B": 1152, "2304 B": 2304}
GOAL_ROW = "1152 B"
GIB = 2**30
LISTS = 64


def measure(row_bytes: int, *, pool_bytes: int, num_rows: int, rounds: int) -> dict[str, float]:
    """Return GiB a second of each contender that copies `num_rows` rows a call."""
    rng = np.random.default_rng(row_bytes)
    torch.set_num_threads(1)
    # both as the cache allocates them
    pool, hot = (map_memory(size).reshape(-1, row_bytes) for size in _sizes(pool_bytes, row_bytes))
    pool[:], hot[:] = 7, 3
    torch_pool, torch_hot = torch.from_numpy(pool), torch.from_numpy(hot)
    lists = [rng.integers(0, len(pool), num_rows) for _ in range(LISTS)]
    starts = rng.integers(0, len(pool) - num_rows, LISTS)
    targets = [slice(at, at + num_rows) for at in rng.integers(0, len(hot) - num_rows, LISTS)]
    copies: dict[str, Callable[[int], object]] = {
        "plain copy": lambda i: np.copyto(hot[targets[i]], pool[starts[i] :][:num_rows]),
        "hisparse gather_rows": lambda i: gather_rows(pool, lists[i], hot[targets[i]]),
        "torch index_select": lambda i: torch.index_select(
            torch_pool, 0, torch.from_numpy(lists[i]), out=torch_hot[targets[i]]
        ),
        "numpy take": lambda i: np.take(pool, lists[i], axis=0, out=hot[targets[i]], mode="clip"),
    }
    # each contender is elsewhere in the lists: the rows of the one before it may still be in a cache
    contenders = {
        name: partial(_prepare, copy, turn * LISTS // len(copies)) for turn, (name, copy) in enumerate(copies.items())
    }
    seconds = harness.median_seconds(contenders, rounds=rounds, calls=6, warm_up=2)
    return {name: num_rows * row_bytes / value / GIB for name, value in seconds.items()}


def _sizes(pool_bytes: int, row_bytes: int) -> tuple[int, int]:
    """Return the bytes of pool and hot buffer, whole rows each."""
    return tuple(size - size % row_bytes for size in (pool_bytes, pool_bytes // 2))


def _prepare(copy: Callable[[int], object], first: int, i: int) -> harness.Call:
    """Return call number i of a contender that starts at list `first`."""
    return partial(copy, (first + i) % LISTS)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    asked = harness.options(__doc__ or "", argv)
    pool_bytes, rounds = (GIB // 4, 10) if asked.quick else (GIB, 30)
    reports = []
    for num_rows in (2_000, 16_384):
        columns = {
            name: measure(row_bytes, pool_bytes=pool_bytes, num_rows=num_rows, rounds=rounds)
            for name, row_bytes in ROWS.items()
        }
        copy, ours, *_ = at_goal = columns[GOAL_ROW]
        rows = [
            [name, *(column[name] for column in columns.values()), at_goal[name] / at_goal[copy]] for name in at_goal
        ]
        claim = f"{num_rows} rows of {GOAL_ROW}, speed as a share of a plain copy's"
        goals = [harness.goal(claim, at_goal[ours] / at_goal[copy], 0.9)]
        title = f"gather {num_rows} random rows, GiB/s"
        reports.append(harness.Report(title, ["", *columns, "of plain copy"], rows, goals))
    return harness.emit(reports, as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
