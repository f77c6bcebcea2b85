"""Pools whose published pages outlive them: what comes back, in which order, and what a full disk does."""

import os
from pathlib import Path

import numpy as np
import pytest
from kept_pools import LAYERS, PAGE_ROWS, PAGES, OpenPool, content, kept, keys_of, read, write

from hisparse.errors import DiskFullError, HostPoolFullError, StateError, StorageError
from hisparse.host import HostPool
from hisparse.layout import RowFormat


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory that does not exist yet."""
    return tmp_path / "pools"


@pytest.fixture
def open_pool(directory: Path) -> OpenPool:
    """Return a maker of kept pools in one directory."""

    def make(options: str = "", pages: int = PAGES, **settings: str | bool) -> HostPool:
        return HostPool(pages, PAGE_ROWS, LAYERS, f"disk:{directory}?persist{options}", **settings)

    return make


def test_published_pages_come_back(open_pool: OpenPool) -> None:
    """What was published is cached at the next start under its keys, byte for byte; what was not is gone."""
    with open_pool() as pool:
        assert (pool.recovery.pages, pool.recovery.ignored) == (0, {})
        write(pool, "abc").close()
        write(pool, "abxy")
        request = pool.admit(4)
        request.extend(4)
        pool.write(0, request.rows(np.arange(4)), content(keys_of("u"), 0))
    with open_pool() as pool:
        assert (pool.recovery.pages, pool.cached_pages, pool.used_pages) == (5, 5, 0)
        assert [read(pool, text) for text in ("abc", "abxy", "abxyz", "xy", "u")] == [3, 4, 4, 0, 0]
        pool.check()
        assert pool.recovery.ignored == {}
        assert pool.recovery.seconds > 0


def test_pools_that_end_with_their_process_recover_nothing(directory: Path) -> None:
    """Memory and private files have no recovery, and publish as before."""
    for storage in ("ram", f"disk:{directory}"):
        with HostPool(PAGES, PAGE_ROWS, LAYERS, storage) as pool:
            write(pool, "abc").close()
            assert pool.recovery is None
            assert read(pool, "abc") == 3
    assert [*directory.iterdir()] == []


def test_other_identities_and_formats_share_nothing(open_pool: OpenPool, directory: Path) -> None:
    """Pools of another identity or row format in one directory find nothing and take nothing away."""
    with open_pool(identity="one") as pool:
        write(pool, "abc")
    with open_pool(identity="two") as pool:
        assert (pool.recovery.pages, pool.recovery.ignored) == (0, {})
    other = [RowFormat("other", 97, 97), LAYERS[1]]
    with HostPool(PAGES, PAGE_ROWS, other, f"disk:{directory}?persist", identity="one") as pool:
        assert (pool.recovery.pages, pool.recovery.ignored) == (0, {})
    with open_pool(identity="one") as pool:
        assert read(pool, "abc") == 3
    assert len([*directory.iterdir()]) == 3


def test_another_size_starts_anew_and_says_so(open_pool: OpenPool) -> None:
    """A pool of more pages finds nothing, counts the reason, and works."""
    with open_pool() as pool:
        write(pool, "abc")
    with open_pool(pages=PAGES + 1) as pool:
        assert (pool.recovery.pages, pool.recovery.ignored) == (0, {"geometry": 1})
        write(pool, "abcd").close()
        assert read(pool, "abcd") == 4


def test_a_page_that_is_written_again_is_withdrawn_first(open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first row of a reused page changes, its entry is off the file; a failure to do so changes no row."""
    with open_pool(pages=4) as pool:
        write(pool, "abcd").close()
        storage = kept(pool)
        calls = []
        put = storage._file.write

        def note(offset: int, data: memoryview) -> None:
            calls.append("rows" if offset >= storage._file.offsets[0] else "entry")
            put(offset, data)

        def refuse(offset: int, data: memoryview) -> None:
            raise StorageError(f"{len(data)} B at {offset}")

        request = pool.admit(8)
        request.extend(8)
        monkeypatch.setattr(storage._file, "write", refuse)
        with pytest.raises(StorageError, match="128 B"):
            pool.write(0, request.rows(np.arange(4)), content(keys_of("z"), 0))
        monkeypatch.setattr(storage._file, "write", note)
        pool.write(0, request.rows(np.arange(4)), content(keys_of("z"), 0))
        pool.write(1, request.rows(np.arange(4)), content(keys_of("z"), 1))
        assert calls == ["entry", "rows", "rows"]
    with open_pool(pages=4) as pool:
        assert pool.recovery.pages + pool.recovery.ignored["orphaned"] == 3
        assert read(pool, "abcd") == pool.recovery.pages


def test_pages_that_gave_way_and_were_not_written_again_come_back(open_pool: OpenPool) -> None:
    """An eviction alone costs nothing: the rows are there, and so is the entry at the next start."""
    with open_pool() as pool:
        write(pool, "abcd").close()
        pool.ledger.evict(4)
        assert read(pool, "abcd") == 0
    with open_pool() as pool:
        assert read(pool, "abcd") == 4


def test_the_oldest_pages_give_way_first_again(open_pool: OpenPool) -> None:
    """After a start the pages published first are the first to go."""
    with open_pool() as pool:
        for text in ("ab", "cd", "ef"):
            write(pool, text).close()
    with open_pool() as pool:
        pool.ledger.evict(2)
        assert [pool.ledger.index.lookup(keys_of(text)).size for text in ("ab", "cd", "ef")] == [0, 2, 2]


def test_kept_pages_make_room_for_requests(open_pool: OpenPool) -> None:
    """Pages that came back are promised to new requests like free ones, all of them, and no more."""
    with open_pool() as pool:
        write(pool, "abcdefgh").close()
    with open_pool() as pool:
        assert pool.free_pages == PAGES
        with pytest.raises(HostPoolFullError):
            pool.admit(PAGES * PAGE_ROWS + 1)
        write(pool, "ijklmnopqrstuvwx").close()
        pool.check()
    with open_pool() as pool:
        assert (read(pool, "abcdefgh"), read(pool, "ijklmnopqrstuvwx")) == (0, 16)


def test_publishing_waits_for_the_disk_if_asked(open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``fsync`` rows are on the disk before their entry is written, and the entry before the call returns."""
    calls: list[str] = []
    write_through, put = os.fdatasync, os.pwrite

    def sync(fd: int) -> None:
        calls.append("sync")
        write_through(fd)

    def note(fd: int, data: bytes, offset: int) -> int:
        calls.append("write")
        return put(fd, data, offset)

    for options, expected in (("&fsync", ["write", "write", "sync", "write", "sync"]), ("", ["write"] * 3)):
        with open_pool(options, identity=options) as pool, monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", sync)
            patch.setattr(os, "pwrite", note)
            calls.clear()
            write(pool, "abc")
            assert calls == expected


@pytest.mark.parametrize(("options", "found"), [("&fsync", 4), ("", 0)])
def test_what_was_waited_for_outlives_the_machine(
    open_pool: OpenPool, options: str, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``fsync`` a disk that has only what it was made to write has all that was published; without, nothing."""
    on_disk = []
    write_through = os.fdatasync

    def sync(fd: int) -> None:
        write_through(fd)
        on_disk.append(os.pread(fd, os.fstat(fd).st_size, 0))

    monkeypatch.setattr(os, "fdatasync", sync)
    with open_pool(options) as pool:
        path = kept(pool).path
        write(pool, "abcd").close()
        request = pool.admit(16)
        request.extend(16)
        pool.write(0, request.rows(np.arange(16)), content(keys_of("wxyz"), 0))
    path.write_bytes(on_disk[-1])
    with open_pool(options) as pool:
        assert read(pool, "abcd") == found
        assert pool.recovery.ignored == {}


@pytest.mark.parametrize("error", [DiskFullError("full"), StorageError("broken")])
def test_pages_the_disk_does_not_take_cost_nothing_else(
    open_pool: OpenPool, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publication that fails half way is counted; the request goes on, and what was written goes before its rows."""
    with open_pool() as pool:
        storage = kept(pool)
        filler = [write(pool, text) for text in ("a", "b", "c")]
        filler[1].close()
        pool.ledger.evict(1)
        put, writes = storage._file.write, []

        def refuse_second(offset: int, data: memoryview) -> None:
            if offset < storage._file.offsets[0]:
                writes.append(offset)
                if len(writes) > 1:
                    raise error
            put(offset, data)

        with monkeypatch.context() as patch:
            patch.setattr(storage._file, "write", refuse_second)
            request = write(pool, "xy")
        assert pool.recovery.ignored == {"unwritten": 2}
        assert read(pool, "xy") == 2
        request.close()
        pool.ledger.evict(2)
        write(pool, "uv").close()
        pool.check()
    with open_pool() as pool:
        assert [read(pool, text) for text in ("a", "c", "xy", "uv")] == [1, 1, 0, 2]
        assert "altered" not in pool.recovery.ignored


def test_a_nearly_full_disk_does_not_stop_a_second_start(open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that have their blocks from the earlier process need no room from the disk."""
    with open_pool() as pool:
        write(pool, "abcdefgh").close()
    with open_pool() as pool:

        def refuse(_offset: int, _num_bytes: int) -> None:
            raise DiskFullError("full")

        monkeypatch.setattr(kept(pool)._file, "free_bytes", lambda: 0)
        monkeypatch.setattr(kept(pool)._file, "reserve", refuse)
        write(pool, "ijklmnop")
        with pytest.raises(DiskFullError):
            pool.admit(PAGE_ROWS)


def test_a_closed_pool_keeps_nothing_more(open_pool: OpenPool) -> None:
    """Publishing and proving after the close is a StateError, and the file is free for the next pool."""
    pool = open_pool()
    storage = kept(pool)
    pool.close()
    with pytest.raises(StateError, match="closed"):
        storage.publish(np.zeros(1, np.int32), keys_of("a"), parents=[None])
    with pytest.raises(StateError, match="closed"):
        storage.sound(np.zeros(1, np.int32))
    open_pool().close()
