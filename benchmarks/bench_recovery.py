"""What it costs to keep pages beyond the process: to publish one, to find all again, to prove one.

100,000 pages under 32-byte keys, in chains of 2,000 pages to a single one; then pages of 64 rows of 1152 B in 8
layers, proven at first use and copied again, both from the page cache.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import harness
from hisparse.host import HostPool
from hisparse.host.geometry import Geometry
from hisparse.host.opening import identity_of
from hisparse.host.persist import KeptStorage
from hisparse.host.place import Place
from hisparse.layout import PageKey, RowFormat, page_keys

PAGE_ROWS = 4
CHAINS = (2000, 100, 10, 1)
PROVEN_PAGES = 128
LAYERS = [RowFormat("latent", 1152, 1152)] * 8


def chain(number: int, num_pages: int) -> list[PageKey]:
    """Return the keys of one chain."""
    tokens = np.arange(num_pages * PAGE_ROWS) + (number << 32)
    return page_keys(tokens, PAGE_ROWS, model="m", revision=None, dtype="u1", row_format="row")


def keeping(directory: Path, pages: int, length: int) -> tuple[float, float, float]:
    """Publish chains, open the file and then a pool; returns microseconds a page, and seconds for both steps."""
    rows = [RowFormat("row", 16, 16)]
    storage = f"disk:{directory}?persist"
    chains = [chain(number, length) for number in range(pages // length)]
    pool = HostPool(pages, PAGE_ROWS, rows, storage)
    began = time.thread_time()
    for number, keys in enumerate(chains):
        table = np.arange(number * length, (number + 1) * length, dtype=np.int32)
        pool._storage.publish(table, keys, parents=[None, *keys[:-1]])  # noqa: SLF001  without requests and their rows
    publishing = time.thread_time() - began
    pool.close()
    for _ in range(2):  # the second time without what Python and numba do once
        began = time.thread_time()
        KeptStorage(Geometry.of(pages, PAGE_ROWS, rows), Place.parse(storage), identity_of("", rows)).close()
        reading = time.thread_time() - began
    began = time.thread_time()
    pool = HostPool(pages, PAGE_ROWS, rows, storage)
    opening = time.thread_time() - began
    if pool.recovery is None or pool.recovery.pages != pages or pool.cached_pages != pages:
        sys.exit(f"{pages} pages were published, {pool.recovery} was found")
    pool.close()
    return publishing / pages * 1e6, reading, opening - reading


def proving(directory: Path, pages: int) -> dict[str, float]:
    """Return the seconds it takes to prove pages, and to copy them with the usual check."""
    geometry = Geometry.of(pages, 64, LAYERS)
    place = Place(directory, persist=True)
    table, rows = np.arange(pages, dtype=np.int32), np.arange(geometry.rows)
    keys = chain(0, pages)
    data = np.random.default_rng(0).integers(0, 256, (geometry.rows, 1152), dtype=np.uint8)
    out = np.empty_like(data)
    storage = KeptStorage(geometry, place, "bench")
    for layer in range(len(LAYERS)):
        storage.write(layer, rows, data)
    storage.publish(table, keys, parents=[None, *keys[:-1]])
    storage.close()

    def start(_: int) -> harness.Call:
        nonlocal storage
        storage.close()
        storage = KeptStorage(geometry, place, "bench")
        return lambda: storage.sound(table)

    def copy() -> None:
        for layer in range(len(LAYERS)):
            storage.gather(layer, rows, out)

    seconds = harness.median_seconds({"prove": start, "gather": lambda _: copy}, rounds=5, calls=1, settle=1)
    storage.close()
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = harness.options(__doc__ or "", argv)
    pages = 10_000 if options.quick else 100_000
    table = []
    for length in CHAINS:
        with tempfile.TemporaryDirectory() as directory:
            table.append([f"{pages // length} of {length}", *keeping(Path(directory), pages, length)])
    with tempfile.TemporaryDirectory() as directory:
        seconds = proving(Path(directory), PROVEN_PAGES)
    num_bytes = PROVEN_PAGES * 64 * 1152 * len(LAYERS)
    speeds = [[name, num_bytes / value / 2**30] for name, value in seconds.items()]
    columns = ["chains", "publish [us a page]", "read entries [s]", "enter the index [s]"]
    return harness.emit(
        [
            harness.Report(f"{pages} kept pages", columns, table),
            harness.Report(f"Rows of {PROVEN_PAGES} pages", ["first use and later", "GiB/s"], speeds),
        ],
        as_json=options.json,
    )


if __name__ == "__main__":
    sys.exit(main())
