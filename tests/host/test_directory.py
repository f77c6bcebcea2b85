"""The page directory of a kept file: what is found again, what is not, and why."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hisparse.errors import SettingError
from hisparse.host.directory import ENTRY_BYTES, KeptPage, PageDirectory, chains
from hisparse.host.geometry import Geometry
from hisparse.host.keptfile import KeptFile, open_kept
from hisparse.host.place import Place

PAGES = 12


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[KeptFile]:
    """Return an open file of a dozen pages without entries."""
    kept = open_kept(Place(tmp_path, persist=True), Geometry(PAGES, 4, (32,)), "me")
    yield kept
    kept.file.close()


def read(kept: KeptFile, stamp: int | None = None) -> PageDirectory:
    """Read the directory as a start does."""
    stamp = kept.header.stamp if stamp is None else stamp
    return PageDirectory(kept.file, kept.directory_offset, pages=PAGES, stamp=stamp)


def key(number: int) -> bytes:
    """Return a key."""
    return bytes([number]) * 32


def digests(*numbers: int) -> NDArray[np.uint8]:
    """Return a digest for each number."""
    return np.repeat(np.array(numbers, np.uint8)[:, None], 16, axis=1)


def publish(directory: PageDirectory, *entries: tuple[int, int, int | None]) -> None:
    """Publish pages, keys and parents, the digest being the page's number."""
    pages, keys, parents = zip(*entries, strict=True)
    directory.publish(
        np.array(pages, np.int32),
        [key(number) for number in keys],
        parents=[None if number is None else key(number) for number in parents],
        digests=digests(*pages),
    )


def found(directory: PageDirectory) -> list[tuple[int, int]]:
    """Return the page and the key's number of all that was recovered, in order."""
    return [(kept.page, kept.key[0]) for kept in directory.recovered]


def test_entries_are_found_again(kept: KeptFile) -> None:
    """Key, parent, page, order and digest of every entry come back, in the order of publication."""
    directory = read(kept)
    assert (directory.recovered, directory.live.any(), +directory.ignored) == ((), False, {})
    publish(directory, (5, 1, None), (6, 2, 1), (2, 3, 2))
    publish(directory, (0, 0, None))
    again = read(kept)
    assert again.recovered == (
        KeptPage(key(1), None, 5, 1),
        KeptPage(key(2), key(1), 6, 2),
        KeptPage(key(3), key(2), 2, 3),
        KeptPage(key(0), None, 0, 4),
    )
    assert np.flatnonzero(again.live).tolist() == [0, 2, 5, 6]
    np.testing.assert_array_equal(again.digests[[0, 2, 5, 6]], digests(0, 2, 5, 6))
    publish(again, (1, 4, None))
    assert read(kept).recovered[-1].order == 5


def test_what_is_withdrawn_is_gone_with_what_follows_it(kept: KeptFile) -> None:
    """A withdrawn entry is not found, nor are the pages behind it, until its key is published again."""
    directory = read(kept)
    publish(directory, (0, 1, None), (1, 2, 1), (2, 3, 2), (3, 4, 1))
    directory.withdraw(np.array([1], np.int32))
    again = read(kept)
    assert found(again) == [(0, 1), (3, 4)]
    assert +again.ignored == {"orphaned": 1}
    publish(again, (9, 2, 1))
    last = read(kept)
    assert found(last) == [(0, 1), (2, 3), (3, 4), (9, 2)]
    assert [pages.tolist() for _, pages in chains(last.recovered)] == [[0, 9, 2], [0, 3]]


def test_the_newest_of_equal_keys_is_found(kept: KeptFile) -> None:
    """A key that was published in two pages leads to the later one."""
    directory = read(kept)
    publish(directory, (0, 1, None), (1, 2, 1))
    publish(directory, (7, 1, None))
    again = read(kept)
    assert found(again) == [(1, 2), (7, 1)]
    assert +again.ignored == {"superseded": 1}
    assert again.live[[0, 1, 7]].all()


def test_entries_of_other_files_and_pages_do_not_count(kept: KeptFile) -> None:
    """An entry copied to another page's place, or read under another file's stamp, is torn."""
    publish(read(kept), (3, 1, None))
    assert found(read(kept)) == [(3, 1)]
    other = read(kept, stamp=kept.header.stamp ^ 1)
    assert (found(other), +other.ignored) == ([], {"torn": 1})
    entry = kept.file.read(kept.directory_offset + 3 * ENTRY_BYTES, ENTRY_BYTES)
    kept.file.write(kept.directory_offset + 4 * ENTRY_BYTES, memoryview(entry))
    again = read(kept)
    assert (found(again), +again.ignored) == ([(3, 1)], {"torn": 1})


@pytest.mark.parametrize("at", range(ENTRY_BYTES))
def test_an_entry_with_a_changed_byte_does_not_count(kept: KeptFile, at: int) -> None:
    """Whichever byte of an entry differs, it is torn, and the others are found."""
    publish(read(kept), (0, 1, None), (1, 2, None), (2, 3, 2))
    entry = bytearray(kept.file.read(kept.directory_offset + ENTRY_BYTES, ENTRY_BYTES))
    entry[at] ^= 1 << at % 8
    kept.file.write(kept.directory_offset + ENTRY_BYTES, memoryview(entry))
    again = read(kept)
    assert (found(again), +again.ignored) == ([(0, 1)], {"torn": 1, "orphaned": 1})


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, ENTRY_BYTES), old=st.booleans())
def test_a_half_written_entry_does_not_count(kept: KeptFile, cut: int, *, old: bool) -> None:
    """An entry of which only the first bytes were written, over nothing or over an older one, is old, new or torn."""
    at = kept.directory_offset + 6 * ENTRY_BYTES
    kept.file.write(kept.directory_offset, memoryview(bytes(PAGES * ENTRY_BYTES)))
    directory = read(kept)
    before = bytes(ENTRY_BYTES)
    if old:
        publish(directory, (6, 1, None))
        before = kept.file.read(at, ENTRY_BYTES)
    publish(directory, (6, 2, None))
    after = kept.file.read(at, ENTRY_BYTES)
    kept.file.write(at, memoryview(after[:cut] + before[cut:]))
    assert found(read(kept)) in ([(6, 2)], [(6, 1)] if old else [], [])


@pytest.mark.parametrize("wrong", [b"", b"short", bytes(33)])
def test_keys_of_another_length_are_refused(kept: KeptFile, wrong: bytes) -> None:
    """A key or parent that would be cut or filled up is refused before anything is written."""
    directory = read(kept)
    for keys, parents in (([wrong], [None]), ([key(1)], [wrong])):
        with pytest.raises(SettingError, match=r"must have 32 bytes, got b'"):
            directory.publish(np.zeros(1, np.int32), keys, parents=parents, digests=digests(0))
    assert not directory.live.any()
    assert not any(kept.file.read(kept.directory_offset, PAGES * ENTRY_BYTES))


@settings(deadline=None, max_examples=60)
@given(parents=st.lists(st.integers(-1, 30), min_size=1, max_size=30))
def test_chains_cover_every_page_from_its_beginning(parents: list[int]) -> None:
    """Chains begin where no page is before, follow parents, end where nothing follows, the newest end last."""
    above = [parent if parent < idx else -1 for idx, parent in enumerate(parents)]
    kept = [KeptPage(key(idx), key(up) if up >= 0 else None, idx, idx + 1) for idx, up in enumerate(above)]
    ends = [idx for idx in range(len(above)) if idx not in above]
    paths = [pages.tolist() for _, pages in chains(kept)]
    assert [path[-1] for path in paths] == ends
    for path, (keys, _) in zip(paths, chains(kept), strict=True):
        assert [above[page] for page in path] == [-1, *path[:-1]]
        assert keys == [key(page) for page in path]
    assert set().union(*paths) == set(range(len(above)))
