"""Rows in a file: reserved before use, read ahead of use, checked before they are served."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import CorruptPoolError, DiskFullError, StateError
from hisparse.host._compiled import Region
from hisparse.host.checksum import Expected, checksum_rows, checksum_weights, first_mismatch
from hisparse.host.geometry import Geometry
from hisparse.host.poolfile import PoolFile, private_file
from hisparse.host.readahead import fetch_rows, scratch_words
from hisparse.host.storage import PassingStorage, Rows
from hisparse.kernels import gather_rows

# Disk space is taken for this much of every layer at a time, so that a decode step seldom asks for it.
_BATCH_BYTES = 1 << 20


class FileStorage(PassingStorage):
    """Rows in a private file, one region per layer, mapped for reading and written by system calls.

    Checksums of all rows are kept in memory, 8 B a row.
    """

    def __init__(self, geometry: Geometry, where: str | PoolFile, *, verify: bool = True) -> None:
        """Use an open file, or make one in the directory `where`, which is made if missing.

        Raises:
            StorageError: The directory or file cannot be used.
            DiskFullError: Not even the header fits.
        """
        self.geometry = geometry
        self._verify = verify
        self._file = private_file(Path(where).expanduser(), geometry) if isinstance(where, str) else where
        everything = np.frombuffer(self._file.map(), np.uint8)
        self._regions: tuple[Rows, ...] = tuple(
            everything[offset : offset + geometry.rows * row_bytes].reshape(geometry.rows, row_bytes)
            for offset, row_bytes in zip(self._file.offsets, geometry.row_bytes, strict=False)
        )
        self._plans: tuple[Region, ...] = tuple(
            Region(region.ctypes.data, region.shape[1], self._file.fd, offset)
            for offset, region in zip(self._file.offsets, self._regions, strict=False)
        )
        self._checksums = np.zeros((len(geometry.row_bytes), geometry.rows), np.uint64)
        self._expected = tuple(
            Expected(checksums, checksum_weights(row_bytes))
            for checksums, row_bytes in zip(self._checksums, geometry.row_bytes, strict=True)
        )
        self._scratch = scratch_words()
        self._reserved_pages = 0

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    @property
    def reserved_pages(self) -> int:
        """Pages, from page 0 on, that have disk space."""
        return self._reserved_pages

    def rows(self, layer: int) -> Rows:
        """uint8 ``[R, row_bytes]``: all rows of a layer, read-only and not checked."""
        if self._file.closed:
            raise StateError("the host pool is closed")
        return self._regions[layer]

    def check_room(self, pages: int) -> None:
        """Refuse if the disk has no room for pages 0 to `pages` - 1.  Reads only.

        Raises:
            DiskFullError: It has not.
        """
        self.rows(0)
        needed = max(0, pages - self._reserved_pages) * self.geometry.page_bytes
        free = self._file.free_bytes() if needed else 0
        if needed > free:
            raise DiskFullError(
                f"{self.path} needs {needed} B more for {pages} pages, the disk has {free} B free; "
                "free disk space, lower max_positions, or move the pool"
            )

    def ensure(self, pages: int) -> None:
        """Reserve disk space for pages 0 to `pages` - 1, and some more where there is room.

        Raises:
            DiskFullError: There is none.
            CorruptPoolError: The file was cut or replaced.
        """
        self.rows(0)
        if pages <= self._reserved_pages:
            return
        self._file.check_intact()
        batch = max(1, _BATCH_BYTES // (self.geometry.page_rows * max(self.geometry.row_bytes)))
        batched = min(self.geometry.pages, max(pages, self._reserved_pages + batch))
        # Near a full disk only what is needed is taken: a batch that fails half way would use up the rest.
        ample = 2 * (batched - self._reserved_pages) * self.geometry.page_bytes <= self._file.free_bytes()
        pages = batched if ample else pages
        first = self._reserved_pages * self.geometry.page_rows
        last = pages * self.geometry.page_rows
        for offset, row_bytes in zip(self._file.offsets, self.geometry.row_bytes, strict=False):
            self._file.reserve(offset + first * row_bytes, (last - first) * row_bytes)
        self._reserved_pages = pages

    def write(self, layer: int, rows: NDArray[np.int64], data: Rows) -> None:
        """Store data ``[M, row_bytes]`` as the given rows, run by run of neighbouring rows."""
        self.rows(layer)
        if not rows.size:
            return
        self._file.check_intact()
        row_bytes = self.geometry.row_bytes[layer]
        expected, weights = self._expected[layer]
        checksums = checksum_rows(data, weights)
        starts = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), rows.size], strict=True):
            first = int(rows[start])
            self._file.write(self._file.offsets[layer] + first * row_bytes, data[start:stop].data.cast("B"))
            expected[first : first + stop - start] = checksums[start:stop]

    def gather(
        self, layer: int, rows: NDArray[np.int64], out: Rows, *, out_rows: NDArray[np.integer] | None = None
    ) -> int:
        """Read rows ahead, check them, then copy them to ``out``; returns the bytes copied.

        Raises:
            CorruptPoolError: The file was cut or replaced, or a row is not what was written; nothing was
                copied.
            StorageError: The disk failed to read a row; nothing was copied.
        """
        region = self.rows(layer)
        self._file.check_intact()
        row = fetch_rows(self._plans[layer], rows, self._scratch)
        if row >= 0:
            row_bytes = self.geometry.row_bytes[layer]
            raise self._file.failed_read(self._file.offsets[layer] + row * row_bytes, row_bytes)
        if self._verify:
            idx = first_mismatch(self._plans[layer], rows, self._expected[layer])
            if idx >= 0:
                raise self._corrupt(layer, int(rows[idx]))
        return gather_rows(region, rows, out, out_rows=out_rows)

    def _corrupt(self, layer: int, row: int) -> CorruptPoolError:
        checksums, weights = self._expected[layer]
        expected = int(checksums[row])
        found = int(checksum_rows(self._regions[layer][row : row + 1], weights)[0])
        return CorruptPoolError(
            f"{self.path}: layer {layer} row {row} is not what was written: "
            f"checksum {expected:#018x} expected, {found:#018x} found; end the requests that hold it"
        )

    def close(self) -> None:
        """Remove the file.  Arrays that `rows` gave keep its bytes on disk until they are gone."""
        self._file.close()
        self._regions = ()
        self._plans = ()
