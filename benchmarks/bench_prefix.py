"""Microseconds to admit, publish and end requests of 128,000 tokens whose beginning is in the prefix index.

A page is 64 tokens, a row of the pool is small: no rows are moved, only pages change hands.
"""

import sys
from collections.abc import Callable, Sequence

import numpy as np

import harness
from hisparse.host import HostPool
from hisparse.layout import RowFormat, page_keys

PAGE_ROWS, PREFIX_PAGES, PAGES = 64, 2000, 10_000
IDENTITY = {"model": "model", "revision": None, "dtype": "bfloat16", "row_format": "bfloat16"}


def keys_of(tokens: np.ndarray) -> list[bytes]:
    """Return the keys of all full pages."""
    return page_keys(tokens, PAGE_ROWS, **IDENTITY)


def contenders(tokens: np.ndarray) -> dict[str, Callable[[int], harness.Call]]:
    """Return what is measured by name, over one pool with the tokens' pages cached."""
    keys, longest = keys_of(tokens), tokens.size + 100 * PAGE_ROWS
    pool = HostPool(PAGES, PAGE_ROWS, [RowFormat("row", 1, 16)])
    full = HostPool(PREFIX_PAGES, PAGE_ROWS, [RowFormat("row", 1, 16)])
    for each in (pool, full):
        request = each.admit(tokens.size)
        request.extend(tokens.size)
        request.publish(keys)
        request.close()
    open_requests = []

    def end_all() -> None:
        while open_requests:
            open_requests.pop().close()

    def admit(asked: Sequence[bytes]) -> harness.Call:
        # Keys of a request are objects of their own, as they come from its tokens.
        asked = [bytes(bytearray(key)) for key in asked]
        end_all()
        return lambda: open_requests.append(pool.admit(longest, keys=asked))

    def close() -> harness.Call:
        end_all()
        return pool.admit(longest, keys=keys).close

    def publish(number: int) -> harness.Call:
        end_all()
        more = keys_of(np.concatenate([tokens, np.full(PAGE_ROWS, number)]))
        request = pool.admit(longest, keys=keys)
        request.extend(tokens.size + PAGE_ROWS)
        open_requests.append(request)
        return lambda: request.publish(more)

    def evict() -> harness.Call:
        if full.cached_pages < 2:
            full.ledger.clear_index()
            full.ledger.adopt([(keys, np.arange(PREFIX_PAGES, dtype=np.int32))])
        return lambda: full.ledger.evict(1)

    other = keys_of(np.concatenate([tokens[: tokens.size // 2], tokens[: tokens.size // 2]]))
    return {
        "keys of 128,000 tokens": lambda _: lambda: keys_of(tokens),
        "admit, nothing cached": lambda _: admit(other[PREFIX_PAGES // 2 :]),
        "admit over 2,000 cached pages": lambda _: admit(keys),
        "admit over 1,000 of them, then other tokens": lambda _: admit(other),
        "end, 2,000 pages become cached": lambda _: close(),
        "publish page 2,001": publish,
        "evict one page": lambda _: evict(),
    }


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    options = harness.options(__doc__, argv)
    tokens = np.random.default_rng(0).integers(0, 129_280, PREFIX_PAGES * PAGE_ROWS)
    seconds = harness.median_seconds(
        contenders(tokens), rounds=3 if options.quick else 11, calls=10 if options.quick else 20, settle=1
    )
    rows = [(name, 1e6 * value) for name, value in seconds.items()]
    admission = 1e6 * seconds["admit over 2,000 cached pages"]
    goals = [harness.goal("microseconds to admit over 2,000 cached pages", admission, 100, at_most=True)]
    return harness.emit([harness.Report("prefix reuse, us", ("what", "us"), rows, goals)], as_json=options.json)


if __name__ == "__main__":
    harness.use_one_thread()
    sys.exit(main())
