"""Rows come out of a pool exactly, whatever its size, dtype and home; bad input moves nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hisparse.errors import ArrayError, InputError, PositionError
from hisparse.kernels import gather_rows, map_memory

BF16_ROW_BYTES = 1152
STREAMED_BYTES = 1 << 20  # gathers of at least as much go past the caches, if rows and output are whole cache lines
INT32_OVERFLOW_ROW = 3_728_270  # the last row of 576 bytes that begins below 2^31


@pytest.fixture
def pool() -> np.ndarray:
    """Ten distinct rows of three bytes."""
    return np.arange(30, dtype=np.uint8).reshape(10, 3)


@pytest.mark.parametrize("row_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.complex128])
@pytest.mark.parametrize("width", [1, 7, 64, 656, 1152])
def test_rows_are_copied_exactly(dtype: type, width: int, row_dtype: type) -> None:
    """The output equals indexing, and the bytes returned are the bytes of the output."""
    rng = np.random.default_rng(width)
    pool = rng.integers(0, 200, (50, width)).astype(dtype)
    rows = rng.integers(0, 50, 80).astype(row_dtype)
    out = np.zeros((80, width), dtype)
    assert gather_rows(pool, rows, out) == out.nbytes
    np.testing.assert_array_equal(out, pool[rows])


def test_rows_are_scattered(pool: np.ndarray) -> None:
    """With `out_rows` only the rows named are written; where one is named twice the last copy stays."""
    out = np.full((6, 3), 99, np.uint8)
    copied = gather_rows(pool, np.array([9, 1, 2]), out, out_rows=np.array([4, 0, 4], np.int32))
    assert copied == 9
    np.testing.assert_array_equal(out[[4, 0]], pool[[2, 1]])
    assert (out[[1, 2, 3, 5]] == 99).all()


def test_nothing_to_copy_is_zero_bytes(pool: np.ndarray) -> None:
    """Empty row lists and rows of no width copy nothing."""
    none = np.empty(0, np.int64)
    assert gather_rows(pool, none, np.empty((0, 3), np.uint8)) == 0
    assert gather_rows(pool, none, np.empty((4, 3), np.uint8), out_rows=none) == 0
    assert gather_rows(pool[:, :0].copy(), np.array([1]), np.empty((1, 0), np.uint8)) == 0
    assert gather_rows(pool[:0], none, np.empty((0, 3), np.uint8)) == 0


def test_strided_row_lists_are_read(pool: np.ndarray) -> None:
    """Row lists may be views, read-only ones included."""
    rows = np.arange(10)[::-3]
    rows.flags.writeable = False
    out = np.empty((4, 3), np.uint8)
    gather_rows(pool, rows, out)
    np.testing.assert_array_equal(out, pool[[9, 6, 3, 0]])


def test_a_memory_map_serves_both_ends(pool: np.ndarray, tmp_path: Path) -> None:
    """A read-only map is a pool, a writable map an output."""
    pool.tofile(tmp_path / "pool")
    source = np.memmap(tmp_path / "pool", np.uint8, "r", shape=(10, 3))
    target = np.memmap(tmp_path / "out", np.uint8, "w+", shape=(2, 3))
    gather_rows(source, np.array([7, 2], np.int32), target)
    target.flush()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "out", np.uint8).reshape(2, 3), pool[[7, 2]])


@pytest.mark.parametrize(
    ("row_bytes", "pool_rows"), [(576, 8_000_000), (656, 7_000_000), (BF16_ROW_BYTES, 4_000_000), (2, 2**31 + 9)]
)
def test_a_pool_beyond_two_gibibytes_is_addressed(tmp_path: Path, row_bytes: int, pool_rows: int) -> None:
    """Rows that begin beyond 2^31 bytes, and row numbers beyond 2^31, are read from and written to exactly."""
    assert pool_rows * row_bytes > 2**31
    pool = np.memmap(tmp_path / "sparse", np.uint8, "w+", shape=(pool_rows, row_bytes))
    edge = 2**31 // row_bytes
    rows = np.unique([0, 1, edge - 1, edge, edge + 1, INT32_OVERFLOW_ROW, INT32_OVERFLOW_ROW + 1, pool_rows - 1])
    data = np.random.default_rng(row_bytes).integers(0, 255, (len(rows), row_bytes)).astype(np.uint8)
    assert gather_rows(data, np.arange(len(rows)), pool, out_rows=rows) == data.nbytes
    out = np.zeros_like(data)
    gather_rows(pool, rows, out)
    np.testing.assert_array_equal(out, data)
    if pool_rows < 2**31:
        out[:] = 0
        gather_rows(pool, rows.astype(np.int32), out)
        np.testing.assert_array_equal(out, data)
    assert not pool[2].any()


def bad_calls() -> list[tuple[str, dict[str, Any], type[InputError], str]]:
    """Return name, changed arguments, error and part of its sentence."""
    out_of = np.array([1, 10])
    objects = np.empty((10, 3), object)
    return [
        ("pool list", {"pool": [[1, 2, 3]]}, ArrayError, r"pool must be a \[rows, width\] array .*, got list"),
        ("pool rank", {"pool": np.zeros(30, np.uint8)}, ArrayError, r"pool must be .*, got uint8\[30\]"),
        ("pool objects", {"pool": objects}, ArrayError, r"pool must be .* plain dtype, got object\[10, 3\]"),
        ("pool layout", {"pool": np.zeros((3, 10), np.uint8).T}, ArrayError, "pool must be C-contiguous"),
        (
            "rows dtype",
            {"rows": np.array([1.0, 2.0])},
            ArrayError,
            r"rows must be int32\[M\] or int64\[M\], got float64\[2\]",
        ),
        ("rows unsigned", {"rows": np.array([1, 2], np.uint64)}, ArrayError, r"rows must be .*, got uint64\[2\]"),
        ("rows rank", {"rows": np.array([[1, 2]])}, ArrayError, r"rows must be .*, got int64\[1, 2\]"),
        ("rows list", {"rows": [1, 2]}, ArrayError, r"rows must be .*, got list"),
        ("row above", {"rows": out_of}, PositionError, r"rows\[1\] is 10, expected 0 to 9"),
        ("row below", {"rows": np.array([-1, 2])}, PositionError, r"rows\[0\] is -1, expected 0 to 9"),
        ("out dtype", {"out": np.zeros((2, 3), np.int8)}, ArrayError, r"out must be uint8\[M, 3\], got int8\[2, 3\]"),
        ("out width", {"out": np.zeros((2, 4), np.uint8)}, ArrayError, r"out must be uint8\[M, 3\], got uint8\[2, 4\]"),
        ("out rows", {"out": np.zeros((3, 3), np.uint8)}, ArrayError, r"out must be uint8\[2, 3\], got uint8\[3, 3\]"),
        ("out layout", {"out": np.zeros((3, 2), np.uint8).T}, ArrayError, "out must be C-contiguous"),
        (
            "out_rows length",
            {"out_rows": np.array([1])},
            ArrayError,
            r"out_rows must be int32\[2\] or int64\[2\], got int64\[1\]",
        ),
        (
            "out_rows dtype",
            {"out_rows": np.array([1, 0], np.int16)},
            ArrayError,
            r"out_rows must be .*, got int16\[2\]",
        ),
        ("out_rows above", {"out_rows": np.array([0, 2])}, PositionError, r"out_rows\[1\] is 2, expected 0 to 1"),
        ("out_rows below", {"out_rows": np.array([0, -1])}, PositionError, r"out_rows\[1\] is -1, expected 0 to 1"),
    ]


@pytest.mark.parametrize(("changes", "error", "match"), [b[1:] for b in bad_calls()], ids=[b[0] for b in bad_calls()])
def test_a_bad_call_moves_nothing(
    pool: np.ndarray, changes: dict[str, Any], error: type[InputError], match: str
) -> None:
    """Each fault raises its own error before the first byte is copied."""
    call = {"pool": pool, "rows": np.array([1, 2]), "out": np.full((2, 3), 99, np.uint8), "out_rows": None, **changes}
    before = call["out"].copy()
    with pytest.raises(error, match=match):
        gather_rows(call["pool"], call["rows"], call["out"], out_rows=call["out_rows"])
    np.testing.assert_array_equal(call["out"], before)


def test_a_read_only_output_is_refused(pool: np.ndarray) -> None:
    """An output that must not change is not changed."""
    out = np.zeros((1, 3), np.uint8)
    out.flags.writeable = False
    with pytest.raises(ArrayError, match=r"out must be writable, got a read-only uint8\[1, 3\]"):
        gather_rows(pool, np.array([1]), out)


def test_an_output_inside_the_pool_is_refused(pool: np.ndarray) -> None:
    """Rows are never read after they were overwritten."""
    with pytest.raises(ArrayError, match="out must not overlap pool"):
        gather_rows(pool, np.array([0, 1]), pool[1:3])
    gather_rows(pool[:5], np.array([0, 1]), pool[5:7])
    np.testing.assert_array_equal(pool[5:7], pool[:2])


def large_rows(row_bytes: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a pool of distinct rows, and an output of `count` rows and one more that begins at a page, all 99."""
    pool = np.random.default_rng(row_bytes).integers(0, 255, (700, row_bytes)).astype(np.uint8)
    out = map_memory((count + 1) * row_bytes).reshape(count + 1, row_bytes)
    assert out.ctypes.data % 64 == 0
    out[:] = 99
    return pool, out


@pytest.mark.parametrize("row_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("row_bytes", [64, 576, 656, 1152])
@pytest.mark.parametrize("fill", ["just less", "exactly", "twice"])
def test_large_gathers_are_exact(row_bytes: int, row_dtype: type, fill: str) -> None:
    """Around and beyond the size from which stores go past the caches, and with rows they can't, no byte differs."""
    exactly = -(-STREAMED_BYTES // row_bytes)
    count = {"just less": exactly - 1, "exactly": exactly, "twice": 2 * exactly}[fill]
    pool, out = large_rows(row_bytes, count)
    rows = np.random.default_rng(count).integers(0, len(pool), count).astype(row_dtype)
    assert gather_rows(pool, rows, out[:-1]) == count * row_bytes
    np.testing.assert_array_equal(out[:-1], pool[rows])
    assert (out[-1] == 99).all()


@pytest.mark.parametrize("row_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shift", [0, 8])
def test_large_gathers_are_scattered_exactly(row_dtype: type, shift: int) -> None:
    """Strided row lists in any order are followed, whether the output begins at a cache line or beside one."""
    count, row_bytes = 2000, BF16_ROW_BYTES
    pool = large_rows(row_bytes, 1)[0]
    memory = map_memory(count * row_bytes + 64)
    out = memory[shift : shift + count * row_bytes].reshape(count, row_bytes)
    out[:] = 99
    rng = np.random.default_rng(shift)
    rows = rng.integers(0, len(pool), 4 * count).astype(row_dtype)[1::4]
    out_rows = np.repeat(rng.permutation(count), 2).astype(row_dtype)[::-2]
    assert not rows.flags.c_contiguous
    assert not out_rows.flags.c_contiguous
    kept = count - 50
    assert gather_rows(pool, rows[:kept], out, out_rows=out_rows[:kept]) == kept * row_bytes >= STREAMED_BYTES
    np.testing.assert_array_equal(out[out_rows[:kept]], pool[rows[:kept]])
    assert (out[out_rows[kept:]] == 99).all()
    assert not memory[:shift].any()
    assert not memory[shift + count * row_bytes :].any()


@pytest.mark.parametrize("which", ["rows", "out_rows"])
@pytest.mark.parametrize("bad", [-1, 700, 2000, 2**31 - 1])
@pytest.mark.parametrize("place", [0, 1000, 1999])
def test_a_large_gather_with_a_bad_row_moves_nothing(which: str, bad: int, place: int) -> None:
    """One row out of range, wherever it stands, is named before the first byte is copied."""
    pool, out = large_rows(BF16_ROW_BYTES, 699)
    lists = {"rows": np.arange(2000, dtype=np.int32) % 700, "out_rows": np.arange(2000, dtype=np.int32) % 700}
    lists[which][place] = bad
    with pytest.raises(PositionError, match=rf"^{which}\[{place}\] is {bad}, expected 0 to 699"):
        gather_rows(pool, lists["rows"], out, out_rows=lists["out_rows"])
    assert (out == 99).all()
