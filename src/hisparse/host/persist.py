"""Rows in a file that outlives its process: published pages are found again, proven before they are served."""

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import CorruptPoolError, DiskFullError, StorageError
from hisparse.host.checksum import checksums_of
from hisparse.host.directory import DIGEST_BYTES, PageDirectory, chains
from hisparse.host.file import FileStorage
from hisparse.host.geometry import Geometry
from hisparse.host.keptfile import open_kept
from hisparse.host.place import Place
from hisparse.host.readahead import fetch_rows
from hisparse.host.storage import Pages, Recovery, Rows
from hisparse.layout import PageKey

# Rows of this many pages are asked for at once when they are proven.
_PROVEN_AT_ONCE = 16

logger = logging.getLogger("hisparse")


class KeptStorage(FileStorage):
    """Rows in a file with a directory of published pages.

    The order of writes: rows, then the entry of their page; the entry goes before a row of its page changes.
    A process that is killed leaves written what it wrote, in that order.  A machine that fails may leave
    anything: an entry has the digest of its page's rows, and no page is served before its rows were summed.
    """

    def __init__(self, geometry: Geometry, place: Place, identity: str, *, verify: bool = True) -> None:
        """Open the file of `identity` in the directory of `place`, or make it; see `open_kept` for errors."""
        began = time.perf_counter()
        kept = open_kept(place, geometry, identity)
        super().__init__(geometry, kept.file, verify=verify)
        self._directory = PageDirectory(kept.file, kept.directory_offset, pages=geometry.pages, stamp=kept.header.stamp)
        self._fsync = place.fsync
        # Pages of the earlier process whose rows nobody has summed yet, and those with other rows than published.
        self._doubtful = self._directory.live.copy()
        self._altered = np.zeros(geometry.pages, np.bool_)
        # Pages are taken from the first on, so all up to the last live one have their room.
        self._reserved_pages = int(np.flatnonzero(self._directory.live).max(initial=-1)) + 1
        self._ignored = Counter([kept.refused] if kept.refused else ()) + self._directory.ignored
        seconds = time.perf_counter() - began
        self.recovery = Recovery(self.path, len(self._directory.recovered), seconds, self._ignored)

    def recovered(self) -> list[tuple[list[PageKey], Pages]]:
        """Return the chains of keys and pages that an earlier process left, the newest last.  Reads only."""
        return chains(self._directory.recovered)

    def write(self, layer: int, rows: NDArray[np.int64], data: Rows) -> None:
        """Store rows; pages of theirs that were published are not kept any more.

        Raises:
            StorageError: The file cannot be written.
        """
        pages = rows // self.geometry.page_rows
        touched = self._directory.live[pages] | self._doubtful[pages]
        if touched.any():
            self._file.check_intact()
            changing = np.unique(pages[touched]).astype(np.int32)
            self._directory.withdraw(changing)
            self._doubtful[changing] = self._altered[changing] = False
        super().write(layer, rows, data)

    def gather(
        self, layer: int, rows: NDArray[np.int64], out: Rows, *, out_rows: NDArray[np.integer] | None = None
    ) -> int:
        """Copy rows to ``out``; those of an earlier process are proven first, page by page.

        Raises:
            CorruptPoolError: A row is not what was written; nothing was copied.
            StorageError: The disk failed to read a row; nothing was copied.
        """
        pages = rows // self.geometry.page_rows
        if self._doubtful[pages].any():
            self._check_sound(np.unique(pages).astype(np.int32))
        return super().gather(layer, rows, out, out_rows=out_rows)

    def publish(self, pages: Pages, keys: Sequence[PageKey], *, parents: Sequence[PageKey | None]) -> None:
        """Enter pages into the directory; with ``fsync`` their rows and entries are on the disk afterwards.

        What the disk does not take is not kept, and counted in `recovery`: nothing else depends on it.

        Raises:
            SettingError: A key has not 32 bytes.
            StateError: The pool is closed.
        """
        self.rows(0)
        if not len(pages):
            return
        try:
            if self._fsync:
                self._file.sync()
            self._directory.publish(pages, keys, parents=parents, digests=self._digests(pages))
            if self._fsync:
                self._file.sync()
        except (DiskFullError, StorageError) as error:
            if not self._ignored["unwritten"]:
                logger.warning("pages are not kept beyond this process: %s", error)
            self._ignored["unwritten"] += len(pages)

    @property
    def in_doubt(self) -> bool:
        """Whether there are pages of an earlier process that nobody has proven, or that are not what they were."""
        return bool(self._doubtful.any())

    def sound(self, pages: Pages) -> int:
        """Return how many of the first pages have rows that can be served.

        Rows of an earlier process are read and summed, once; pages with other rows than were published are
        counted in `recovery` and not kept any more.
        """
        self.rows(0)
        while True:
            altered = np.flatnonzero(self._altered[pages])
            first = pages[: altered[0]] if altered.size else pages
            unproven = first[self._doubtful[first]]
            if not unproven.size:
                return len(first)
            self._prove(unproven[:_PROVEN_AT_ONCE])

    def _check_sound(self, pages: Pages) -> None:
        sound = self.sound(pages)
        if sound < len(pages):
            raise CorruptPoolError(
                f"{self.path}: page {pages[sound]} is not what was published; end the requests that hold it"
            )

    def _prove(self, pages: Pages) -> None:
        """Sum the rows of pages; those that are as published, or one that is not, are settled."""
        self._file.check_intact()
        rows = self._rows_of(pages)
        for plan, (expected, weights) in zip(self._plans, self._expected, strict=True):
            row = fetch_rows(plan, rows, self._scratch)
            if row >= 0:
                self._give_up(pages[pages == row // self.geometry.page_rows], "unreadable")
                return
            expected[rows] = checksums_of(plan, rows, weights)
        altered = pages[(self._digests(pages) != self._directory.digests[pages]).any(1)]
        self._doubtful[pages] = False
        if altered.size:
            self._give_up(altered, "altered")

    def _give_up(self, pages: Pages, reason: str) -> None:
        logger.warning("%s: page %d and %d more are %s", self.path, pages[0], pages.size - 1, reason)
        self._ignored[reason] += pages.size
        self._doubtful[pages] = self._altered[pages] = True
        self._directory.withdraw(pages)

    def _digests(self, pages: Pages) -> NDArray[np.uint8]:
        """uint8 ``[P, 16]``: what the row checksums of each page come to, over all layers."""
        sums = self._checksums[:, self._rows_of(pages)].reshape(len(self._checksums), len(pages), -1)
        digests = [
            hashlib.blake2b(sums[:, idx].tobytes(), digest_size=DIGEST_BYTES).digest() for idx in range(len(pages))
        ]
        return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)

    def _rows_of(self, pages: Pages) -> NDArray[np.int64]:
        """int64: all rows of pages, page by page."""
        page_rows = self.geometry.page_rows
        return (pages[:, None].astype(np.int64) * page_rows + np.arange(page_rows)).reshape(-1)
