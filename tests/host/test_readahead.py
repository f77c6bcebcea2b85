"""Cold rows are asked for ahead and awaited; what cannot be read is reported."""

import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hisparse.host._compiled import Region
from hisparse.host.readahead import _readable, fetch_rows, scratch_words

ROWS, ROW_BYTES, OFFSET = 20_000, 1152, 4096


class MappedRows:
    """A file of rows whose page cache can be dropped."""

    def __init__(self, path: Path, num_rows: int = ROWS, row_bytes: int = ROW_BYTES, offset: int = OFFSET) -> None:
        """Write and map the file."""
        self.file = path.open("wb+")
        self.file.write(bytes(offset))
        for row in range(num_rows):
            self.file.write(bytes([row % 251]) * row_bytes)
        self.file.flush()
        os.fsync(self.file.fileno())
        os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        self.mapping = mmap.mmap(self.file.fileno(), 0, prot=mmap.PROT_READ)
        self.mapping.madvise(mmap.MADV_RANDOM)
        rows = np.frombuffer(self.mapping, np.uint8, num_rows * row_bytes, offset)
        self.region = Region(rows.ctypes.data, row_bytes, self.file.fileno(), offset)
        self.scratch = scratch_words()

    def drop(self) -> None:
        """Forget all rows; pages that are still mapped would stay."""
        self.mapping.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def fetch(self, rows: NDArray[np.int64]) -> int:
        """Fetch rows; return the faults that waited for the disk."""
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
        assert fetch_rows(self.region, rows, self.scratch) == -1
        return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - before

    def in_memory(self, row: int) -> bool:
        """Whether a read of the row that must not wait succeeds in full."""
        into = bytearray(self.region.row_bytes)
        try:
            read = os.preadv(
                self.file.fileno(), [into], self.region.offset + row * self.region.row_bytes, os.RWF_NOWAIT
            )
        except BlockingIOError:
            return False
        return read == len(into)


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[MappedRows]:
    """Return rows in a file, compiled code warmed up."""
    rows = MappedRows(tmp_path / "rows")
    rows.fetch(np.arange(2))
    yield rows
    rows.file.close()


def test_cold_rows_do_not_fault_one_by_one(mapped: MappedRows) -> None:
    """Of a thousand cold rows nearly none waits for the disk in a fault of its own."""
    rows = np.random.default_rng(0).integers(0, ROWS, 1000)
    mapped.drop()
    faults = mapped.fetch(rows)
    assert faults < 100


def test_a_short_cold_plan_does_not_fault_at_all(mapped: MappedRows) -> None:
    """A plan shorter than the distance between two looks at the fault count is asked for before it is touched."""
    rows = np.random.default_rng(2).integers(0, ROWS, 50)
    mapped.drop()
    faults = mapped.fetch(rows)
    assert faults < 10


def test_few_cold_rows_among_warm_ones_are_found(mapped: MappedRows) -> None:
    """When the rows first asked about are warm and a later part of the plan is cold, read-ahead still sets in."""
    first, last = np.arange(0, 64), np.arange(ROWS - 4000, ROWS, 4)
    mapped.drop()
    mapped.fetch(first)
    # The rows that are asked about first come after each quarter of the plan.
    plan = np.concatenate([last, first[:1]] * 4)
    step = len(plan) // 4
    plan[step - 1 :: step] = first[0]
    faults = mapped.fetch(plan)
    assert faults < 200


def test_warm_rows_are_not_asked_for(mapped: MappedRows) -> None:
    """A plan that has just been fetched is fetched again without a fault that waits."""
    rows = np.random.default_rng(1).integers(0, ROWS, 1000)
    mapped.fetch(rows)
    assert mapped.fetch(rows) == 0


def test_plans_of_any_length_and_order_are_fetched(mapped: MappedRows) -> None:
    """No row, one row, a run of neighbours longer than one request, repeats and the last row are all right."""
    for rows in ([], [5], range(400), [7] * 70, [ROWS - 1], range(ROWS - 1, ROWS - 300, -1)):
        mapped.drop()
        plan = np.array(list(rows), np.int64)
        mapped.fetch(plan)
        assert mapped.fetch(plan) == 0


@pytest.mark.parametrize(("row_bytes", "offset"), [(1152, 4096), (577, 4096), (40, 8192), (9001, 12288)])
def test_every_byte_of_a_cold_plan_is_in_memory_afterwards(tmp_path: Path, row_bytes: int, offset: int) -> None:
    """Rows within one page, over two pages and over several are all there, whatever the order of the plan."""
    mapped = MappedRows(tmp_path / "rows", 600, row_bytes, offset)
    rows = np.random.default_rng(3).integers(0, 600, 200)
    mapped.drop()
    mapped.fetch(rows)
    assert all(mapped.in_memory(row) for row in rows.tolist())
    mapped.file.close()


def test_rows_of_a_cut_file_are_reported(mapped: MappedRows) -> None:
    """A plan whose rows lie past the end of the file names the first of them and does not end the process."""
    os.truncate(mapped.file.fileno(), OFFSET + 5000 * ROW_BYTES)
    rows = np.arange(ROWS - 1, 5003, -7)
    assert fetch_rows(mapped.region, rows, mapped.scratch) == rows.min()
    assert mapped.fetch(np.arange(4990)) >= 0


def test_pages_can_be_awaited_by_reads_alone(mapped: MappedRows) -> None:
    """Pages in the file are readable, also where the last one is not full; a page past its end is not."""
    end = OFFSET + ROWS * ROW_BYTES
    last = end - end % mmap.PAGESIZE
    fd = mapped.file.fileno()
    assert _readable(fd, 0, 4 * mmap.PAGESIZE, mapped.scratch)
    assert _readable(fd, last, end, mapped.scratch)
    assert not _readable(fd, last, last + mmap.PAGESIZE + 1, mapped.scratch)
