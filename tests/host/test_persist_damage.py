"""Kept pools whose file was altered: what is not right counts as not found, and is never served."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kept_pools import LAYERS, PAGE_ROWS, PAGES, OpenPool, content, keys_of, read, spoil, write
from numpy.typing import NDArray

from hisparse.errors import CorruptPoolError
from hisparse.host import HostPool


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
