"""Pools whose published pages outlive them: what comes back, what is proven first, what is never served."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hisparse.errors import CorruptPoolError, DiskFullError, HostPoolFullError, StateError, StorageError
from hisparse.host import HostPool, RequestPages
from hisparse.host.persist import KeptStorage
from hisparse.layout import PageKey, RowFormat, page_keys

PAGES, PAGE_ROWS = 16, 4
LAYERS = [RowFormat("latent", 97, 97), RowFormat("index", 48, 48)]
OpenPool = Callable[..., HostPool]


def keys_of(text: str) -> list[PageKey]:
    """Return the keys of a document, a page for each letter."""
    tokens = np.repeat(np.frombuffer(text.encode(), np.uint8), PAGE_ROWS)
    return page_keys(tokens, PAGE_ROWS, model="m", revision=None, dtype="u1", row_format=LAYERS)


def content(keys: Sequence[PageKey], layer: int) -> NDArray[np.uint8]:
    """Return the rows that pages must have; they follow from the keys."""
    shape = (PAGE_ROWS, LAYERS[layer].row_bytes)
    pages = [np.random.default_rng([layer, *key]).integers(0, 256, shape, np.uint8) for key in keys]
    return np.concatenate(pages) if pages else np.empty((0, shape[1]), np.uint8)


def write(pool: HostPool, text: str) -> RequestPages:
    """Admit a document, write what was not found, publish it; returns the open request."""
    keys = keys_of(text)
    request = pool.admit(len(keys) * PAGE_ROWS, keys=keys)
    first = request.length
    request.extend(len(keys) * PAGE_ROWS)
    for layer in range(len(LAYERS)):
        positions = np.arange(first, request.length)
        pool.write(layer, request.rows(positions), content(keys, layer)[first:])
    request.publish(keys)
    return request


def read(pool: HostPool, text: str) -> int:
    """Return how many pages of a document are found; all of their bytes are right."""
    keys = keys_of(text)
    request = pool.admit(len(keys) * PAGE_ROWS, keys=keys)
    found = request.length // PAGE_ROWS
    for layer, row_format in enumerate(LAYERS):
        out = np.empty((request.length, row_format.row_bytes), np.uint8)
        pool.read(layer, request.rows(np.arange(request.length)), out)
        np.testing.assert_array_equal(out, content(keys[:found], layer))
    request.close()
    return found


def kept(pool: HostPool) -> KeptStorage:
    """Return the storage of a pool, which is kept."""
    assert isinstance(pool._storage, KeptStorage)
    return pool._storage


def spoil(pool: HostPool, page: int, *, layer: int = 0, data: bytes = b"\0") -> None:
    """Write bytes into the last row of a page behind the pool's back."""
    storage = kept(pool)
    offset = storage._file.offsets[layer] + (page + 1) * PAGE_ROWS * LAYERS[layer].row_bytes - len(data)
    os.pwrite(storage._file.fd, data, offset)


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


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("verify", [True, False])
def test_altered_rows_are_a_miss(open_pool: OpenPool, layer: int, *, verify: bool) -> None:
    """A page with one changed byte in any layer ends the prefix that is found; it is counted, and gone for good."""
    with open_pool() as pool:
        pages = write(pool, "abcd").pages
        old = content(keys_of("abcd"), layer)[3 * PAGE_ROWS - 1, -1]
        spoil(pool, int(pages[2]), layer=layer, data=bytes([old ^ 1]))
    with open_pool(verify=verify) as pool:
        assert pool.recovery.pages == 4
        assert [read(pool, "abcd"), read(pool, "abcd")] == [2, 2]
        assert pool.recovery.ignored == {"altered": 1}
        assert (pool.prefix_queried_tokens, pool.prefix_hit_tokens) == (32, 16)
        pool.check()
    with open_pool() as pool:
        assert (pool.recovery.pages, pool.recovery.ignored) == (2, {"orphaned": 1})


def test_a_page_that_was_altered_is_published_anew(open_pool: OpenPool) -> None:
    """Its key is free at once: the next request computes the page, and later ones and starts find it."""
    with open_pool() as pool:
        spoil(pool, int(write(pool, "abcd").pages[1]), data=b"spoiled")
    with open_pool() as pool:
        write(pool, "abcd")
        assert read(pool, "abcd") == 4
        assert pool.recovery.ignored == {"altered": 1}
        pool.check()
    with open_pool() as pool:
        assert read(pool, "abcd") == 4


def test_lost_rows_are_a_miss(open_pool: OpenPool) -> None:
    """A page whose rows never reached the disk, all zeros, is not taken for one of zeros."""
    with open_pool() as pool:
        page = int(write(pool, "ab").pages[1])
        for layer, row_format in enumerate(LAYERS):
            spoil(pool, page, layer=layer, data=bytes(PAGE_ROWS * row_format.row_bytes))
    with open_pool() as pool:
        assert read(pool, "ab") == 1


def test_pages_that_a_plan_takes_unasked_are_proven(open_pool: OpenPool) -> None:
    """A claim opened beside the pool's own admission is refused an altered page at the first gather, not later."""
    with open_pool() as pool:
        spoil(pool, int(write(pool, "ab").pages[1]), layer=1, data=b"spoiled")
    with open_pool() as pool:
        pages = pool.ledger.index.lookup(keys_of("ab"))
        pool.ledger.open(8, pages)
        rows = (pages[:, None].astype(np.int64) * PAGE_ROWS + np.arange(PAGE_ROWS)).reshape(-1)
        out = np.full((8, 97), 9, np.uint8)
        with pytest.raises(CorruptPoolError, match=rf"page {pages[1]} is not what was published; end the requests"):
            pool.gather(0, rows, out)
        assert (out == 9).all()
        assert pool.gather(0, rows[:4], out[:4]) == 4 * 97
        np.testing.assert_array_equal(out[:4], content(keys_of("a"), 0))


def test_rows_that_cannot_be_read_are_a_miss(open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that the disk does not give is not found, and counted."""
    with open_pool() as pool:
        write(pool, "ab")
    with open_pool() as pool:
        page = int(pool.ledger.index.lookup(keys_of("ab"))[1])
        rows = {page * PAGE_ROWS + 2}

        def fetch(_plan: object, wanted: NDArray[np.int64], _scratch: object) -> int:
            return min(rows & set(wanted.tolist()), default=-1)

        with monkeypatch.context() as patch:
            patch.setattr("hisparse.host.persist.fetch_rows", fetch)
            assert read(pool, "ab") == 1
        assert read(pool, "ab") == 1
        assert pool.recovery.ignored == {"unreadable": 1}


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


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of three documents."""
    directory = tmp_path_factory.mktemp("published")
    with HostPool(PAGES, PAGE_ROWS, LAYERS, f"disk:{directory}?persist") as pool:
        for text in ("abcd", "abxy", "e"):
            write(pool, text).close()
    [path] = directory.iterdir()
    return path


damage = st.tuples(st.integers(0, 20_000), st.binary(min_size=1, max_size=40), st.integers(1, 40))


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(damage, max_size=6), length=st.none() | st.integers(0, 20_000))
def test_whatever_happens_to_a_file_no_wrong_byte_is_served(
    published: Path, tmp_path: Path, places: list[tuple[int, bytes, int]], length: int | None
) -> None:
    """A file with bytes written anywhere or its end cut off gives the pages that are right, and no others."""
    directory = tmp_path / "spoiled"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    data = bytearray(published.read_bytes())
    for offset, filling, times in places:
        at = offset % len(data)
        data[at : at + len(filling) * times] = (filling * times)[: len(data) - at]
    (directory / published.name).write_bytes(data[:length])
    (directory / published.name).chmod(0o600)
    with HostPool(PAGES, PAGE_ROWS, LAYERS, f"disk:{directory}?persist") as pool:
        found = [read(pool, text) for text in ("abcd", "abxy", "e")]
        pool.check()
        write(pool, "abxy").close()
        assert read(pool, "abxy") <= 4
        if not places and (length is None or length >= len(data)):
            assert found == [4, 4, 1]
