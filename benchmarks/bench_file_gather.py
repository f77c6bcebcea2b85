"""Microseconds a row of a gather from a file: read ahead, against one fault or one system call a row.

Cold: the page cache of the file is dropped before each call.  Warm: the rows are in the page cache and mapped.
Time is the clock on the wall, since waiting for the disk is what is measured; a directory in memory
(``TMPDIR=/dev/shm``) has nothing to wait for and shows no cold figures worth reading.  Rows are picked at random
from all rows, and from a run of neighbouring ones, where several lie in one page.  What the disk itself takes shows
in direct reads: past the page cache, one a row, all submitted at once.
"""

import contextlib
import ctypes
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import harness
from direct_reads import DirectReads
from hisparse.host.file import FileStorage
from hisparse.host.geometry import Geometry
from hisparse.host.storage import RamStorage
from hisparse.kernels import gather_rows

ROW_BYTES = 1152
NUM_ROWS = 1000
NEAR_ROWS = 8 * NUM_ROWS
GOAL_COLD_MICROSECONDS = 15.0
DIRECT = "cold, direct reads, all at once"

Gather = Callable[[NDArray[np.int64], NDArray[np.uint8]], object]


@dataclass(frozen=True)
class Case:
    """One way to gather rows.

    Attributes:
        name: What the table calls it.
        gather: Fills the output with the rows.
        goal: Microseconds a row that are expected, or None.
        cold: Whether the page cache is dropped before each call.
    """

    name: str
    gather: Gather
    goal: float | None
    cold: bool


class Pool:
    """One file of rows, with and without verification, and the same rows in memory."""

    def __init__(self, directory: str, rows: int) -> None:
        """Write the rows."""
        geometry = Geometry(rows // 64, 64, (ROW_BYTES,))
        self.file = FileStorage(geometry, directory)
        self.plain = FileStorage(geometry, directory, verify=False)
        self.memory = RamStorage(geometry)
        data = np.random.default_rng(0).integers(0, 256, (4096, ROW_BYTES), dtype=np.uint8)
        for first in range(0, geometry.rows, 4096):
            part = np.arange(first, min(first + 4096, geometry.rows))
            for storage in (self.file, self.plain, self.memory):
                storage.write(0, part, data[: part.size])
        self.descriptors = [os.open(storage.path, os.O_RDONLY) for storage in (self.file, self.plain)]
        for descriptor in self.descriptors:
            os.fsync(descriptor)
        os.posix_fadvise(self.descriptors[1], 0, 0, os.POSIX_FADV_RANDOM)
        self.offset = geometry.region_offsets(1)[0]
        self.disk: DirectReads | None = None
        with contextlib.suppress(OSError):
            self.disk = DirectReads(self.plain.path, ROW_BYTES, self.offset, NUM_ROWS)

    def drop(self) -> None:
        """Forget both files: unmap first, since the kernel keeps pages that are mapped."""
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for storage, descriptor in zip((self.file, self.plain), self.descriptors, strict=True):
            region = storage.rows(0)
            if madvise(region.ctypes.data, region.nbytes, mmap.MADV_DONTNEED):
                raise OSError(ctypes.get_errno(), "madvise")
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Remove the files."""
        if self.disk is not None:
            self.disk.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        for storage in (self.file, self.plain, self.memory):
            storage.close()

    def warm(self) -> None:
        """Read both files from end to end, then map every page."""
        for storage in (self.file, self.plain):
            with storage.path.open("rb") as file:
                while file.read(1 << 20):
                    pass
            storage.rows(0)[:, ::512].max()

    def gather_by_faults(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Copy from the mapping as it is."""
        gather_rows(self.plain.rows(0), rows, out)

    def gather_by_calls(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Read row by row."""
        for row, target in zip(rows.tolist(), out, strict=True):
            os.preadv(self.descriptors[1], [target], self.offset + row * ROW_BYTES)

    def cases(self) -> list[Case]:
        """Return all ways, cold then warm."""

        def checked(rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
            self.file.gather(0, rows, out)

        def unchecked(rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
            self.plain.gather(0, rows, out)

        def from_memory(rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
            self.memory.gather(0, rows, out)

        disk = self.disk
        cases = [
            Case("cold, file pool", checked, GOAL_COLD_MICROSECONDS, cold=True),
            Case("cold, file pool without checksums", unchecked, GOAL_COLD_MICROSECONDS, cold=True),
            Case("cold, one fault a row", self.gather_by_faults, None, cold=True),
            Case("cold, one preadv a row", self.gather_by_calls, None, cold=True),
            Case("warm, file pool", checked, 1.0, cold=False),
            Case("warm, file pool without checksums", unchecked, 0.5, cold=False),
            Case("warm, mapped file, plain copy", self.gather_by_faults, None, cold=False),
            Case("warm, one preadv a row", self.gather_by_calls, None, cold=False),
            Case("memory pool", from_memory, None, cold=False),
        ]
        if disk is not None:
            cases.insert(2, Case(DIRECT, lambda rows, _: disk.read(rows), None, cold=True))
        return cases


def measure(pool: Pool, among: int, repeats: int) -> dict[str, float]:
    """Return the median microseconds a row of each case, in turn, on fresh rows out of `among` neighbouring ones."""
    source = np.random.default_rng(1)
    out = np.empty((NUM_ROWS, ROW_BYTES), np.uint8)
    first_rows = pool.file.geometry.rows - among + 1
    seconds: dict[str, list[float]] = {}
    cases = pool.cases()
    for case in cases:
        case.gather(np.arange(NUM_ROWS), out)
    # A cold case takes a hundred times longer, and the rows of all later cases have to be read again.
    for cold, times in ((True, repeats // 2), (False, repeats)):
        if not cold:
            pool.warm()
        for _ in range(times):
            # In any order, since the disk is quicker after some cases than after others.
            for case in source.permutation([case for case in cases if case.cold == cold]).tolist():
                if cold:
                    pool.drop()
                rows = source.integers(first_rows) + source.integers(0, among, NUM_ROWS)
                start = time.perf_counter()
                case.gather(rows, out)
                seconds.setdefault(case.name, []).append(time.perf_counter() - start)
    return {name: statistics.median(taken) / NUM_ROWS * 1e6 for name, taken in seconds.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    asked = harness.options(__doc__ or "", argv)
    pool_rows, repeats = (100_000, 12) if asked.quick else (200_000, 40)
    with tempfile.TemporaryDirectory() as directory, contextlib.closing(Pool(directory, pool_rows)) as pool:
        apart, near = (measure(pool, among, repeats) for among in (pool.file.geometry.rows, NEAR_ROWS))
        cases = pool.cases()
    rows = [[case.name, apart[case.name], near[case.name], case.goal] for case in cases]
    title = f"gather {NUM_ROWS} random rows of {ROW_BYTES} B from a file in {tempfile.gettempdir()}, us a row"
    goals = [
        harness.goal(f"{case.name}, us a row", apart[case.name], case.goal, at_most=True)
        for case in cases
        if case.goal is not None
    ]
    faults = apart["cold, one fault a row"] / apart["cold, file pool"]
    goals.append(harness.goal("cold file pool, times as fast as one fault a row", faults, 6.0))
    if DIRECT in apart:
        taken = apart["cold, file pool"] / apart[DIRECT]
        goals.append(harness.goal("cold file pool, times the direct reads", taken, 1.25, at_most=True))
        goals.append(
            f"the disk: {1e6 / apart[DIRECT]:.0f} random reads a second; "
            f"{GOAL_COLD_MICROSECONDS:g} us a row need {1e6 / GOAL_COLD_MICROSECONDS:.0f}"
        )
    columns = ["", f"among {pool_rows}", f"among {NEAR_ROWS}", "goal"]
    return harness.emit([harness.Report(title, columns, rows, goals)], as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
