"""Which pages of a file have rows worth keeping, and under which keys: one entry a page, in the file itself."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import SettingError
from hisparse.host.checksum import checksum_rows, checksum_weights
from hisparse.host.poolfile import PoolFile
from hisparse.layout import PageKey
from hisparse.layout.keys import KEY_BYTES

DIGEST_BYTES = 16
# Little-endian; 128 B, so that no entry lies in two sectors. The order counts from 1: zero is no entry.
ENTRY = np.dtype(
    [
        ("order", "<u8"),
        ("page", "<u8"),
        ("key", "u1", KEY_BYTES),
        ("parent", "u1", KEY_BYTES),
        ("digest", "u1", DIGEST_BYTES),
        ("has_parent", "<u8"),
        ("unused", "<u8"),
        ("stamp", "<u8"),
        ("checksum", "<u8"),
    ]
)
ENTRY_BYTES = ENTRY.itemsize
_SUMMED_BYTES = ENTRY_BYTES - 8

Pages = NDArray[np.int32]
Digests = NDArray[np.uint8]


class KeptPage(NamedTuple):
    """A page that an earlier process published.

    Attributes:
        key: Its key.
        parent: The key of the page before; None where a chain begins.
        page: Its number.
        order: Publications before it, and one.
    """

    key: PageKey
    parent: PageKey | None
    page: int
    order: int


class PageDirectory:
    """Entries of published pages.  An entry is there only while the rows of its page are what it says.

    Rows first, then the entry; and away with the entry before a row changes.  An entry has a checksum, the
    number of its page and the stamp of its file, so neither a torn nor a misplaced one counts.

    Attributes:
        live: bool ``[pages]``, the pages that have an entry, or may have one.
        digests: uint8 ``[pages, 16]``, what the rows of each live page must sum to.
        recovered: The entries that were there at the start, in order of publication.
        ignored: How many of those were not taken, by reason.
    """

    def __init__(self, file: PoolFile, offset: int, *, pages: int, stamp: int) -> None:
        """Read the entries of `pages` pages, which begin at `offset`.

        Raises:
            StorageError: They cannot be read.
        """
        self._file = file
        self._offset = offset
        self._stamp = stamp
        self._weights = checksum_weights(_SUMMED_BYTES)
        entries = np.frombuffer(file.read(offset, pages * ENTRY_BYTES), ENTRY)
        self.live = self._valid(entries)
        self.digests: Digests = entries["digest"].copy()
        self.ignored = Counter(
            {"torn": int(np.count_nonzero(entries.view(np.uint64).reshape(pages, -1).any(1) & ~self.live))}
        )
        found = entries[self.live]
        self.recovered = self._newest(found[np.argsort(found["order"], kind="stable")])
        self._order = int(found["order"].max(initial=0))

    def publish(
        self, pages: Pages, keys: Sequence[PageKey], *, parents: Sequence[PageKey | None], digests: Digests
    ) -> None:
        """Write entries for pages whose rows are in the file; one after the other, in the order given.

        Args:
            pages: int32 ``[P]``, each once.
            keys: The key of each.
            parents: The key of the page before each; None where a chain begins.
            digests: uint8 ``[P, 16]``, what their rows sum to.

        Raises:
            SettingError: A key has not 32 bytes; nothing was written.
            DiskFullError: The disk has no room; some pages may have no entry.
            StorageError: The file cannot be written; some pages may have no entry.
        """
        for key in (*keys, *(parent for parent in parents if parent is not None)):
            if len(key) != KEY_BYTES:
                raise SettingError(f"the key of a page that is kept must have {KEY_BYTES} bytes, got {key!r}")
        entries = np.zeros(len(pages), ENTRY)
        entries["order"] = self._order + 1 + np.arange(len(pages))
        entries["page"] = pages
        entries["key"] = _matrix(list(keys))
        entries["parent"] = _matrix([parent or bytes(KEY_BYTES) for parent in parents])
        entries["has_parent"] = [parent is not None for parent in parents]
        entries["digest"] = digests
        entries["stamp"] = self._stamp
        entries["checksum"] = self._sums(entries)
        # Before they are written: of those that fail, some may be there, and have to go before a row changes.
        self.live[pages] = True
        self.digests[pages] = digests
        self._order += len(pages)
        self._write(pages, entries)

    def withdraw(self, pages: Pages) -> None:
        """Take entries away, before a row of their pages changes.

        Raises:
            StorageError: The file cannot be written; the rows must not be changed.
        """
        self._write(pages, np.zeros(len(pages), ENTRY))
        self.live[pages] = False

    def _write(self, pages: Pages, entries: NDArray[np.void]) -> None:
        """Write entries, those of neighbouring pages together."""
        starts = np.flatnonzero(np.diff(pages, prepend=np.int32(-2)) != 1).tolist() if len(pages) else []
        for start, stop in zip(starts, [*starts[1:], len(pages)], strict=False):
            offset = self._offset + int(pages[start]) * ENTRY_BYTES
            self._file.write(offset, memoryview(entries[start:stop].tobytes()))

    def _sums(self, entries: NDArray[np.void]) -> NDArray[np.uint64]:
        data = np.ascontiguousarray(entries.view(np.uint8).reshape(len(entries), ENTRY_BYTES)[:, :_SUMMED_BYTES])
        return checksum_rows(data, self._weights)

    def _valid(self, entries: NDArray[np.void]) -> NDArray[np.bool_]:
        right_place = (entries["stamp"] == self._stamp) & (entries["page"] == np.arange(len(entries)))
        valid: NDArray[np.bool_] = right_place & (entries["order"] > 0) & (entries["checksum"] == self._sums(entries))
        return valid

    def _newest(self, entries: NDArray[np.void]) -> tuple[KeptPage, ...]:
        """Return entries as pages; of those with equal keys the newest, and only what a beginning leads to."""
        keys, parents = entries["key"].tobytes(), entries["parent"].tobytes()
        spans = [slice(at, at + KEY_BYTES) for at in range(0, len(keys), KEY_BYTES)]
        begun, pages, orders = (entries[name].tolist() for name in ("has_parent", "page", "order"))
        newest = {
            keys[span]: KeptPage(keys[span], parents[span] if has_parent else None, page, order)
            for span, has_parent, page, order in zip(spans, begun, pages, orders, strict=True)
        }
        rooted = _rooted(newest)
        self.ignored["superseded"] = len(spans) - len(newest)
        self.ignored["orphaned"] = len(newest) - len(rooted)
        return tuple(sorted(rooted, key=lambda kept: kept.order))


def _rooted(pages: dict[PageKey, KeptPage]) -> list[KeptPage]:
    """Return the pages whose chains are there from their beginnings, parents first."""
    following: dict[PageKey | None, list[KeptPage]] = {}
    for kept in pages.values():
        following.setdefault(kept.parent, []).append(kept)
    found = list(following.get(None, ()))
    for kept in found:
        found += following.get(kept.key, ())
    return found


def chains(pages: Sequence[KeptPage]) -> list[tuple[list[PageKey], Pages]]:
    """Return every chain from its beginning to a page that no other follows, the newest end last.

    Args:
        pages: Pages as `PageDirectory.recovered` has them.

    Returns:
        Keys and int32 pages of each chain; what two chains share is in both.
    """
    by_key = {kept.key: kept for kept in pages}
    inner = {kept.parent for kept in pages}
    found = []
    for end in pages:
        if end.key in inner:
            continue
        path, kept = [end], end
        while kept.parent is not None:
            kept = by_key[kept.parent]
            path.append(kept)
        path.reverse()
        found.append(([kept.key for kept in path], np.array([kept.page for kept in path], np.int32)))
    return found


def _matrix(keys: list[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY_BYTES)
