"""Admission, rows in and out, and what a pool refuses."""

import mmap
from collections.abc import Callable

import numpy as np
import pytest

from hisparse.errors import ArrayError, HostPoolFullError, PositionError, SettingError, StateError
from hisparse.host import HostPool
from hisparse.layout import RowFormat

MakePool = Callable[..., HostPool]
RandomRows = Callable[..., np.ndarray]

# bf16 and fp32 latents, DeepSeek's quantised rows, an unpadded variant of them, and an odd length.
ROW_BYTES = (1152, 2304, 656, 584, 577)


def counts(pool: HostPool) -> tuple[int, int, int]:
    """Return free, used and reserved pages after a recount."""
    pool.check()
    return pool.free_pages, pool.used_pages, pool.reserved_pages


def test_rows_of_every_format_come_back_as_written(make_pool: MakePool, random_rows: RandomRows) -> None:
    """Rows written in two orders are gathered in a third, layer by layer, and their bytes are counted."""
    pool = make_pool(20, 16, ROW_BYTES)
    request = pool.admit(300)
    request.extend(300)
    order = np.random.default_rng(1).permutation(300)
    picked = np.random.default_rng(2).integers(0, 300, 500)
    for layer, row_bytes in enumerate(ROW_BYTES):
        data = random_rows(300, row_bytes, layer)
        pool.write(layer, request.rows(np.arange(300)), random_rows(300, row_bytes, 99))
        pool.write(layer, request.rows(order), data[order])
        out = np.zeros((500, row_bytes), np.uint8)
        assert pool.read(layer, request.rows(picked), out) == 500 * row_bytes
        np.testing.assert_array_equal(out, data[picked])


def test_a_gather_may_scatter(make_pool: MakePool, random_rows: RandomRows) -> None:
    """Rows go to the places asked for, and no other place is touched."""
    pool = make_pool(4, 8, (656,))
    request = pool.admit(32)
    request.extend(32)
    data = random_rows(32, 656)
    pool.write(0, request.rows(np.arange(32)), data)
    out = np.full((10, 656), 7, np.uint8)
    places = np.array([9, 0, 4], np.int32)
    pool.gather(0, request.rows(np.array([31, 5, 8])), out, places)
    np.testing.assert_array_equal(out[places], data[[31, 5, 8]])
    assert (np.delete(out, places, axis=0) == 7).all()


def test_the_last_of_equal_rows_wins(make_pool: MakePool, random_rows: RandomRows) -> None:
    """A row written twice in one call holds the later bytes."""
    pool = make_pool(1, 8, (577,))
    request = pool.admit(8)
    request.extend(8)
    data = random_rows(5, 577)
    rows = request.rows(np.array([3, 4, 3, 4, 3]))
    pool.write(0, rows, data)
    out = np.empty((2, 577), np.uint8)
    pool.read(0, rows[:2], out)
    np.testing.assert_array_equal(out, data[[4, 3]])


def test_empty_calls_do_nothing(make_pool: MakePool) -> None:
    """No rows written or gathered is no error and no bytes."""
    pool = make_pool(1, 8)
    none = pool.admit(8).rows(np.empty(0, np.int32))
    pool.write(0, none, np.empty((0, 1152), np.uint8))
    assert pool.read(0, none, np.empty((0, 1152), np.uint8)) == 0


def test_a_full_pool_refuses_and_changes_nothing(make_pool: MakePool) -> None:
    """The refusal names pages needed, free, capacity and knobs; an exact fit and a retry are admitted."""
    pool = make_pool(10, 16)
    first = pool.admit(100)
    first.extend(50)
    assert counts(pool) == (3, 4, 3)
    with pytest.raises(HostPoolFullError, match=r"4 pages needed, 3 free of 10 .*host_pool_bytes.*max_positions"):
        pool.admit(49)
    assert counts(pool) == (3, 4, 3)
    exact = pool.admit(48)
    assert counts(pool) == (0, 4, 6)
    first.extend(100)
    exact.extend(48)
    assert counts(pool) == (0, 10, 0)
    first.close()
    assert counts(pool) == (7, 3, 0)
    pool.admit(112)


def test_requests_in_turn_leave_the_pool_as_it_was(make_pool: MakePool) -> None:
    """A hundred requests that each take most of the pool find it whole every time."""
    pool = make_pool(12, 4)
    for length in range(1, 101):
        request = pool.admit(44)
        request.extend(length % 44 + 1)
        request.truncate(length % 7 % request.length)
        request.close()
        request.close()
        assert counts(pool) == (12, 0, 0)


def test_bytes_follow_pages_and_layers(make_pool: MakePool) -> None:
    """Capacity and use in bytes are pages times the row bytes of all layers."""
    pool = make_pool(10, 16, (1152, 577))
    request = pool.admit(40)
    request.extend(17)
    assert pool.capacity_bytes == 10 * 16 * 1729
    assert pool.used_bytes == 2 * 16 * 1729


def test_wrong_arrays_are_refused(make_pool: MakePool) -> None:
    """Every wrong dtype, shape or layout gets one sentence, expected then got, and nothing is written."""
    pool = make_pool(2, 8, (656,))
    request = pool.admit(16)
    request.extend(16)
    rows = request.rows(np.arange(3))
    pool.write(0, rows, np.full((3, 656), 5, np.uint8))
    out = np.empty((3, 656), np.uint8)
    with pytest.raises(ArrayError, match=r"data must be contiguous uint8\[3, 656\], got uint8\[3, 655\]"):
        pool.write(0, rows, np.zeros((3, 655), np.uint8))
    with pytest.raises(ArrayError, match=r"got int8\[3, 656\]"):
        pool.write(0, rows, np.zeros((3, 656), np.int8))
    with pytest.raises(ArrayError, match="contiguous"):
        pool.write(0, rows, np.zeros((3, 1312), np.uint8)[:, ::2])
    with pytest.raises(ArrayError, match=r"rows must be int64\[M\], got int32\[3\]"):
        pool.write(0, rows.astype(np.int32), np.zeros((3, 656), np.uint8))
    with pytest.raises(ArrayError, match=r"rows must be int64\[M\], got int32\[3\]"):
        pool.read(0, rows.astype(np.int32), out)
    with pytest.raises(ArrayError, match="out must be"):
        pool.read(0, rows, np.empty((3, 655), np.uint8))
    with pytest.raises(ArrayError, match=r"positions must be int\[M\], got float64\[2\]"):
        request.rows(np.zeros(2))
    pool.read(0, rows, out)
    assert (out == 5).all()


def test_rows_that_nobody_holds_are_refused(make_pool: MakePool) -> None:
    """A row outside the pool, or in a page that is free or only reserved, is neither read nor written."""
    pool = make_pool(4, 8)
    request = pool.admit(24)
    request.extend(16)
    stale = request.rows(np.array([3, 12]))
    request.truncate(8)
    data = np.zeros((2, 1152), np.uint8)
    for act in (pool.write, pool.read):
        with pytest.raises(PositionError, match=r"row 12 lies in page 1, which no request holds"):
            act(0, stale, data)
        for row in (-1, 32, 2**40):
            with pytest.raises(PositionError, match=rf"row {row} is outside 0 to 31"):
                act(0, np.array([0, row]), data)
        for layer in (-1, 1):
            with pytest.raises(PositionError, match=f"layer {layer} is outside 0 to 0"):
                act(layer, stale[:1], data[:1])


def test_settings_without_meaning_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each wrong setting is named with its value."""
    layers = [RowFormat("test", 576, 1152)]
    with pytest.raises(SettingError, match="1 to 2147483647 pages, got 0"):
        HostPool(0, 64, layers)
    with pytest.raises(SettingError, match="1 to 2147483647 pages, got 2147483648"):
        HostPool(2**31, 64, layers)
    with pytest.raises(SettingError, match="page_rows must be at least 1, got 0"):
        HostPool(1, 0, layers)
    with pytest.raises(SettingError, match="at least 1 layer, got none"):
        HostPool(1, 64, [])
    for storage in ("disk", "disk:", "tape:/x", ""):
        with pytest.raises(SettingError, match=f"got '{storage}'"):
            HostPool(1, 64, layers, storage)
    directory = tmp_path_factory.mktemp("unused")
    with pytest.raises(SettingError, match="allocate provides memory"):
        HostPool(1, 64, layers, f"disk:{directory}", allocate=lambda size: np.zeros(size, np.uint8))
    assert list(directory.iterdir()) == []
    with HostPool(1, 64, layers) as pool, pytest.raises(PositionError, match="at least 1, got 0"):
        pool.admit(0)


def test_a_closed_pool_says_so(make_pool: MakePool) -> None:
    """Closing twice is harmless; every other use of the pool or of its requests is a StateError."""
    pool = make_pool(2, 8)
    request = pool.admit(16)
    request.extend(3)
    rows, data = request.rows(np.arange(3)), np.zeros((3, 1152), np.uint8)
    pool.close()
    pool.close()
    for use in (
        lambda: pool.admit(1),
        lambda: pool.write(0, rows, data),
        lambda: pool.read(0, rows, data),
        lambda: pool.rearrange([request], [0, 0]),
        lambda: request.extend(5),
        lambda: request.truncate(0),
        lambda: request.rows(np.arange(3)),
    ):
        with pytest.raises(StateError, match="closed"):
            use()
    request.close()
    assert counts(pool) == (2, 0, 0)


def test_memory_may_be_provided(random_rows: RandomRows) -> None:
    """A pool asks for each layer's bytes once, uses what it is given, and refuses what does not fit."""
    given = []

    def allocate(num_bytes: int) -> np.ndarray:
        given.append(np.zeros(num_bytes + 5, np.uint8))
        return given[-1]

    layers = [RowFormat("test", 1, 1152), RowFormat("test", 1, 577)]
    with HostPool(2, 8, layers, allocate=allocate) as pool:
        assert [array.size for array in given] == [16 * 1152 + 5, 16 * 577 + 5]
        request = pool.admit(16)
        request.extend(16)
        data = random_rows(16, 577)
        pool.write(1, request.rows(np.arange(16)), data)
        np.testing.assert_array_equal(given[1][:-5].reshape(16, 577), data)
    with pytest.raises(ArrayError, match=r"contiguous uint8\[18432\], got uint8\[1\]"):
        HostPool(2, 8, layers, allocate=lambda _: np.zeros(1, np.uint8))
    with pytest.raises(ArrayError, match=r"contiguous uint8\[18432\], got int8\[18432\]"):
        HostPool(2, 8, layers, allocate=lambda size: np.zeros(size, np.int8))


def test_memory_costs_nothing_until_it_is_used() -> None:
    """A pool of more address space than memory is page-aligned and occupies next to nothing."""
    addresses = []

    def resident_bytes() -> int:
        with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123  a kernel file
            return int(statm.read().split()[1]) * mmap.PAGESIZE

    before = resident_bytes()
    with HostPool(2**14, 64, [RowFormat("test", 576, 1152)] * 4) as pool:
        addresses = [pool._storage.rows(layer).ctypes.data for layer in range(4)]
        assert pool.capacity_bytes > 4 << 30
        assert resident_bytes() - before < 64 << 20
    assert [address % mmap.PAGESIZE for address in addresses] == [0] * 4


def test_a_large_pool_is_addressed_to_its_end(random_rows: RandomRows) -> None:
    """Pages beyond 2^32 bytes are found by position, and their rows come back exactly."""
    with HostPool(62_000, 64, [RowFormat("test", 576, 1152)]) as pool:
        filler, last = pool.admit(61_990 * 64), pool.admit(640)
        filler.extend(61_990 * 64)
        last.extend(640)
        rows = last.rows(np.random.default_rng(0).permutation(640))
        assert rows.min() == 61_990 * 64 > 3_728_270
        assert rows.max() * 1152 > 2**32
        data = random_rows(640, 1152)
        pool.write(0, rows, data)
        out = np.zeros_like(data)
        pool.read(0, rows, out)
        np.testing.assert_array_equal(out, data)
        pool.check()
