"""Cold rows are asked for ahead; nothing is asked for twice."""

import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hisparse.host._compiled import Region
from hisparse.host.readahead import fetch_rows, scratch_words

ROWS, ROW_BYTES, OFFSET = 20_000, 1152, 4096


class MappedRows:
    """A file of rows whose page cache can be dropped."""

    def __init__(self, path: Path) -> None:
        """Write and map the file."""
        self.file = path.open("wb+")
        self.file.write(bytes(OFFSET))
        for row in range(ROWS):
            self.file.write(bytes([row % 251]) * ROW_BYTES)
        self.file.flush()
        os.fsync(self.file.fileno())
        os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        self.mapping = mmap.mmap(self.file.fileno(), 0, prot=mmap.PROT_READ)
        self.mapping.madvise(mmap.MADV_RANDOM)
        rows = np.frombuffer(self.mapping, np.uint8, ROWS * ROW_BYTES, OFFSET)
        self.region = Region(rows.ctypes.data, ROW_BYTES, self.file.fileno(), OFFSET)
        self.scratch = scratch_words()

    def drop(self) -> None:
        """Forget all rows; pages that are still mapped would stay."""
        self.mapping.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def fetch(self, rows: np.ndarray) -> tuple[bool, int]:
        """Fetch rows; return whether read-ahead was asked for, and the faults that waited for the disk."""
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
        advised = fetch_rows(self.region, rows, self.scratch)
        return advised, resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - before


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
    _, faults = mapped.fetch(rows)
    assert faults < 100


def test_a_short_cold_plan_does_not_fault_at_all(mapped: MappedRows) -> None:
    """A plan shorter than the distance between two looks at the fault count is asked for before it is touched."""
    rows = np.random.default_rng(2).integers(0, ROWS, 50)
    mapped.drop()
    _, faults = mapped.fetch(rows)
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
    _, faults = mapped.fetch(plan)
    assert faults < 200


def test_warm_rows_are_not_asked_for(mapped: MappedRows) -> None:
    """A plan that has just been fetched is fetched again without a fault that waits."""
    rows = np.random.default_rng(1).integers(0, ROWS, 1000)
    mapped.fetch(rows)
    assert mapped.fetch(rows)[1] == 0


def test_plans_of_any_length_and_order_are_fetched(mapped: MappedRows) -> None:
    """No row, one row, a run of neighbours longer than one request, repeats and the last row are all right."""
    for rows in ([], [5], range(400), [7] * 70, [ROWS - 1], range(ROWS - 1, ROWS - 300, -1)):
        mapped.drop()
        plan = np.array(list(rows), np.int64)
        mapped.fetch(plan)
        assert mapped.fetch(plan)[1] == 0
