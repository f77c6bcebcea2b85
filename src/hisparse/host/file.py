"""Rows in a file: reserved before use, read ahead of use, checked before they are served."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import CorruptPoolError, DiskFullError, StateError
from hisparse.host.checksum import checksum_rows, checksum_weights, first_mismatch, row_checksum
from hisparse.host.geometry import Geometry
from hisparse.host.poolfile import PoolFile
from hisparse.host.readahead import fetch_rows
from hisparse.host.storage import Rows
from hisparse.kernels import gather_rows

# Disk space is taken for this much of every layer at a time, so that a decode step seldom asks for it.
_BATCH_BYTES = 1 << 20


class FileStorage:
    """Rows in a private file of their own, one region per layer, mapped for reading and written by system calls.

    Checksums of all rows are kept in memory, 8 B a row.
    """

    def __init__(self, geometry: Geometry, directory: str, *, verify: bool = True) -> None:
        """Make the file in `directory`, which is made if missing.

        Raises:
            StorageError: The directory or file cannot be used.
            DiskFullError: Not even the header fits.
        """
        self.geometry = geometry
        self._verify = verify
        self._file = PoolFile(Path(directory).expanduser(), geometry)
        everything = np.frombuffer(self._file.map(), np.uint8)
        self._regions: tuple[Rows, ...] = tuple(
            everything[offset : offset + geometry.rows * row_bytes].reshape(geometry.rows, row_bytes)
            for offset, row_bytes in zip(self._file.offsets, geometry.row_bytes, strict=False)
        )
        self._checksums = tuple(np.zeros(geometry.rows, np.uint64) for _ in geometry.row_bytes)
        self._weights = checksum_weights(max(geometry.row_bytes))
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
        try:
            self._reserve(min(self.geometry.pages, max(pages, self._reserved_pages + batch)))
        except DiskFullError:
            self._reserve(pages)

    def _reserve(self, pages: int) -> None:
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
        checksums = checksum_rows(data, self._weights)
        starts = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), rows.size], strict=True):
            first = int(rows[start])
            self._file.write(self._file.offsets[layer] + first * row_bytes, data[start:stop].data.cast("B"))
            self._checksums[layer][first : first + stop - start] = checksums[start:stop]

    def gather(
        self, layer: int, rows: NDArray[np.int64], out: Rows, out_rows: NDArray[np.integer] | None
    ) -> int:
        """Read rows ahead, check them, then copy them to ``out``; returns the bytes copied.

        Raises:
            CorruptPoolError: The file was cut or replaced, or a row is not what was written; nothing was copied.
        """
        region = self.rows(layer)
        self._file.check_intact()
        fetch_rows(self._file.fd, self._file.offsets[layer], region, rows)
        if self._verify:
            idx = first_mismatch(region, rows, self._checksums[layer], self._weights)
            if idx >= 0:
                raise self._corrupt(layer, int(rows[idx]))
        return gather_rows(region, rows, out, out_rows=out_rows)

    def _corrupt(self, layer: int, row: int) -> CorruptPoolError:
        expected = int(self._checksums[layer][row])
        found = int(row_checksum(self._regions[layer], row, self._weights))
        return CorruptPoolError(
            f"{self.path}: layer {layer} row {row} is not what was written: "
            f"checksum {expected:#018x} expected, {found:#018x} found; end the requests that hold it"
        )

    def close(self) -> None:
        """Remove the file.  Arrays that `rows` gave keep its bytes on disk until they are gone."""
        self._file.close()
        self._regions = ()
