"""Microseconds that the coordinator takes for one request in one decode step, all calls together.

Every step each request gets one row: `append`, its share of `plan_step`, one acknowledgement for each of its
transfers, and whatever follows when a page is full: pages on both ends, publishing, changed places. Requests come with
their prompt in the host pool. "resident" has a device that holds all pages, "hot" one that holds the bare hot buffers
and the ends of requests, so each page that fills goes to the host and is taken for another request.
"""

import gc
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import harness
from hisparse.errors import DevicePagesFullError
from hisparse.host.coordinator import HiSparseCoordinator
from hisparse.host.ledger import PageLedger

PAGE_ROWS = 64
HOT_PAGES = 64
TAIL_PAGES = 3
# Whoever came first gives pages up in a step or two.
MAX_TRIES = 10
CONTEXTS = (8_192, 32_768, 131_072)


def make_keys(request: int, num_pages: int) -> list[bytes]:
    """Return keys of 32 bytes; pages of different requests never meet."""
    return [f"{request:>12} {page:>12}".ljust(32).encode() for page in range(num_pages)]


class Engine:
    """Requests in the middle of decoding."""

    def __init__(self, requests: int, context: int, *, spill: str, is_resident: bool) -> None:
        """Bring all requests to `context` positions, whose pages are published and on the host."""
        pages = context // PAGE_ROWS + 4
        floor = HOT_PAGES + TAIL_PAGES
        device_pages = requests * (max(pages, floor) if is_resident else floor) + 2 * HOT_PAGES
        self.ledger = PageLedger(requests * pages, PAGE_ROWS)
        self.coordinator = HiSparseCoordinator(
            ledger=self.ledger,
            device_pages=device_pages,
            page_rows=PAGE_ROWS,
            hot_pages=HOT_PAGES,
            watermark_pages=0,
            max_spill_pages=1 << 30,
            spill="eager" if spill == "eager" else "pressure",
        )
        self.names = [f"request {number}" for number in range(requests)]
        self.length = context
        for number, name in enumerate(self.names):
            self._prepare(name, make_keys(number, pages), context, pages * PAGE_ROWS)

    def _prepare(self, name: str, keys: list[bytes], context: int, max_positions: int) -> None:
        """Publish a prompt's pages as an earlier request would have, and admit a request that begins with them."""
        claim = self.ledger.open(max_positions)
        self.ledger.grow(claim, context, replace_tail=False)
        self.ledger.publish(claim, keys[: context // PAGE_ROWS])
        self.ledger.drop(claim)
        for _ in range(MAX_TRIES):
            with suppress(DevicePagesFullError):
                self.coordinator.admit(name, max_positions=max_positions, keys=keys)
                break
            self._acknowledge()
        self._acknowledge()

    def _acknowledge(self) -> None:
        for transfer in self.coordinator.plan_step().transfers:
            self.coordinator.acknowledge(transfer.id)

    def step(self) -> None:
        """Decode one token of every request."""
        self.length += 1
        append, length = self.coordinator.append, self.length
        for name in self.names:
            append(name, length)
        self._acknowledge()


def microseconds(engine: Engine, steps: int) -> float:
    """Return the mean time of a request in a step over whole pages, since full pages cost more than others."""
    times = []
    for _ in range(steps):
        start = time.thread_time()
        engine.step()
        times.append(time.thread_time() - start)
    pages = [statistics.fmean(times[first : first + PAGE_ROWS]) for first in range(0, steps, PAGE_ROWS)]
    return statistics.median(pages) * 1e6 / len(engine.names)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    asked = harness.options(__doc__ or "", argv)
    requests, steps = (100, PAGE_ROWS) if asked.quick else (1000, 2 * PAGE_ROWS)
    cases = [(place, spill) for place in ("resident", "hot") for spill in ("eager", "pressure")]
    rows: list[list[str | float | None]] = []
    for place, spill in cases:
        row: list[str | float | None] = [f"{place}, {spill} spills"]
        for context in CONTEXTS:
            engine = Engine(requests, context, spill=spill, is_resident=place == "resident")
            gc.collect()
            gc.freeze()  # what is set up lives as long as the engine: the collector need not walk it every so often
            row.append(microseconds(engine, steps))
            engine.coordinator.check()
            gc.unfreeze()
        rows.append(row)
    slowest = max(float(row[-1] or 0) for row in rows)
    growth = sum(float(row[-1] or 0) for row in rows) / sum(float(row[1] or 0) for row in rows)
    goals = [
        harness.goal(f"us a request and step at {CONTEXTS[-1]:,} positions", slowest, 50, at_most=True),
        harness.goal(f"times the cost at {CONTEXTS[0]:,} positions", growth, 1.5, at_most=True),
    ]
    title = f"microseconds a request and step, {requests:,} requests, pages of {PAGE_ROWS} rows"
    columns = ["", *(f"{context:,}" for context in CONTEXTS)]
    return harness.emit([harness.Report(title, columns, rows, goals)], as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
