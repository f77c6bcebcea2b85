"""Rows in a file: large, damaged, cut, replaced."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hisparse.errors import CorruptPoolError
from hisparse.host import HostPool, RequestPages
from hisparse.host.file import FileStorage
from hisparse.host.geometry import Geometry

MakePool = Callable[..., HostPool]
RandomRows = Callable[..., np.ndarray]


def disk_bytes(path: Path) -> int:
    """Return the bytes that a file occupies."""
    return path.stat().st_blocks * 512


@pytest.fixture
def storage(tmp_path: Path) -> str:
    """Return a storage on disk only."""
    return f"disk:{tmp_path / 'pools'}"


@pytest.fixture
def written(make_pool: MakePool, random_rows: RandomRows) -> tuple[HostPool, RequestPages, Path]:
    """Return a pool of two layers with a hundred rows written in each, its request and its file."""
    pool = make_pool(16, 16, (1152, 577))
    request = pool.admit(112)
    request.extend(100)
    for layer, row_bytes in enumerate((1152, 577)):
        pool.write(layer, request.rows(np.arange(100)), random_rows(100, row_bytes, layer))
    return pool, request, pool._storage.path


def test_a_large_file_is_addressed_to_its_end(tmp_path: Path, random_rows: RandomRows) -> None:
    """Rows beyond 2^32 bytes and row numbers above 3,728,270 come back exactly, from a file that is sparse."""
    geometry = Geometry(62_000, 64, (1152, 656))
    storage = FileStorage(geometry, str(tmp_path))
    assert storage.path.stat().st_size >= geometry.capacity_bytes > 2**32
    assert disk_bytes(storage.path) < 1 << 20
    last = np.random.default_rng(0).permutation(640) + geometry.rows - 640
    rows = np.concatenate([last, [3_728_271, 0]])
    assert rows.max() * 1152 > 2**32
    for layer, row_bytes in enumerate(geometry.row_bytes):
        data = random_rows(642, row_bytes, layer)
        storage.write(layer, rows, data)
        out = np.zeros_like(data)
        assert storage.gather(layer, rows, out) == data.size
        np.testing.assert_array_equal(out, data)
        with storage.path.open("rb") as file:
            for idx in (0, 640, 641):
                file.seek(geometry.region_offsets(4096)[layer] + int(rows[idx]) * row_bytes)
                assert file.read(row_bytes) == data[idx].tobytes()
    assert disk_bytes(storage.path) < 16 << 20
    storage.close()


def test_disk_is_taken_as_pages_are(make_pool: MakePool) -> None:
    """A pool of gibibytes has no blocks until pages are taken, then at least theirs, before any row is written."""
    pool = make_pool(40_000, 64)
    path = pool._storage.path
    assert path.stat().st_size > 2 << 30
    request = pool.admit(1_000_000)
    assert disk_bytes(path) < 1 << 20
    request.extend(6400)
    assert 6400 * 1152 <= disk_bytes(path) < 16 << 20


def test_a_changed_byte_is_not_served(written: tuple[HostPool, RequestPages, Path]) -> None:
    """One flipped bit fails the gather with file, layer, row and both checksums; other rows are served."""
    pool, request, path = written
    row = int(request.rows(np.array([41]))[0])
    with path.open("rb+") as file:
        file.seek(pool._storage._file.offsets[1] + row * 577 + 576)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 16]))
    out = np.full((100, 577), 9, np.uint8)
    said = rf"{path}: layer 1 row {row} is not .* 0x[0-9a-f]{{16}} expected, 0x[0-9a-f]{{16}} found"
    with pytest.raises(CorruptPoolError, match=said):
        pool.gather(1, request.rows(np.arange(100)), out)
    assert (out == 9).all()
    positions = np.delete(np.arange(100), 41)
    assert pool.gather(1, request.rows(positions), out[:99]) == 99 * 577
    request.truncate(41)
    request.extend(42)
    pool.write(1, request.rows(np.array([41])), np.zeros((1, 577), np.uint8))
    assert pool.gather(1, request.rows(np.arange(42)), out[:42]) == 42 * 577


def test_garbage_and_holes_are_not_served(
    written: tuple[HostPool, RequestPages, Path], random_rows: RandomRows
) -> None:
    """A file overwritten with garbage or with zeros fails every gather of written rows."""
    pool, request, path = written
    out = np.empty((1, 1152), np.uint8)
    for garbage in (random_rows(1, path.stat().st_size, 5).tobytes(), bytes(path.stat().st_size)):
        with path.open("rb+") as file:
            file.write(garbage)
        for position in range(100):
            with pytest.raises(CorruptPoolError):
                pool.gather(0, request.rows(np.array([position])), out)


def test_damage_is_not_copied_along(written: tuple[HostPool, RequestPages, Path]) -> None:
    """A shared tail page with a damaged row is not copied: the extend fails and takes no page."""
    pool, request, path = written
    other = pool.rearrange([request], [0, 0])[1]
    row = int(request.rows(np.array([97]))[0])
    with path.open("rb+") as file:
        file.seek(pool._storage._file.offsets[0] + row * 1152)
        file.write(b"damage")
    with pytest.raises(CorruptPoolError, match=f"layer 0 row {row} "):
        other.extend(101)
    assert other.length == 100
    assert (pool.free_pages, pool.used_pages, pool.reserved_pages) == (2, 7, 7)


@pytest.mark.parametrize("change", [lambda size: size // 2, lambda _: 0, lambda size: size + 1])
def test_a_cut_file_is_an_error_and_not_a_signal(
    written: tuple[HostPool, RequestPages, Path], change: Callable[[int], int]
) -> None:
    """A file that was cut or grown fails gather and write with both sizes, and is left as it is."""
    pool, request, path = written
    size = path.stat().st_size
    os.truncate(path, change(size))
    rows, data = request.rows(np.arange(100)), np.zeros((100, 1152), np.uint8)
    said = rf"{path} was cut or grown .*: {size} B expected, {change(size)} B found"
    for act in (pool.read, pool.write):
        with pytest.raises(CorruptPoolError, match=said):
            act(0, rows, data)
    assert path.stat().st_size == change(size)


def test_a_file_cut_after_its_size_was_checked_is_an_error(
    written: tuple[HostPool, RequestPages, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut between the check and the read fails the gather with the bytes found; nothing is copied."""
    pool, request, path = written
    monkeypatch.setattr(pool._storage._file, "check_intact", lambda: os.truncate(path, 4096))
    out = np.full((100, 1152), 9, np.uint8)
    with pytest.raises(CorruptPoolError, match=rf"{path} was cut while it was read: 1152 B expected at \d+, 0 B found"):
        pool.read(0, request.rows(np.arange(100)), out)
    assert (out == 9).all()


def test_a_replaced_file_is_refused_and_left_alone(written: tuple[HostPool, RequestPages, Path]) -> None:
    """Another file under the pool's name fails the gather, and is not removed at close."""
    pool, request, path = written
    other = path.with_name("other")
    other.write_bytes(b"not a pool")
    other.replace(path)
    with pytest.raises(CorruptPoolError, match=f"{path} was replaced"):
        pool.read(0, request.rows(np.arange(1)), np.empty((1, 1152), np.uint8))
    pool.close()
    assert path.read_bytes() == b"not a pool"


def test_a_removed_directory_takes_no_rows(
    written: tuple[HostPool, RequestPages, Path], random_rows: RandomRows
) -> None:
    """With file and directory removed, rows are still served and taken, and the pool closes."""
    pool, request, path = written
    path.unlink()
    path.parent.rmdir()
    out = np.empty((100, 1152), np.uint8)
    pool.read(0, request.rows(np.arange(100)), out)
    np.testing.assert_array_equal(out, random_rows(100, 1152, 0))
    request.extend(112)
    pool.close()


def test_checking_can_be_turned_off(make_pool: MakePool) -> None:
    """Without verification a changed row is served as it is found."""
    pool = make_pool(1, 8, (577,), verify=False)
    request = pool.admit(8)
    request.extend(8)
    rows = request.rows(np.arange(8))
    pool.write(0, rows, np.full((8, 577), 3, np.uint8))
    with pool._storage.path.open("rb+") as file:
        file.seek(pool._storage._file.offsets[0])
        file.write(b"\x04")
    out = np.empty((8, 577), np.uint8)
    pool.read(0, rows, out)
    assert out[0, 0] == 4
    assert (out.reshape(-1)[1:] == 3).all()
