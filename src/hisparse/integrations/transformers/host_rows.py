"""The batch's rows in the host pool: where each one is, and how it gets in and out."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import PositionError
from hisparse.host import HostPool, RequestPages
from hisparse.kernels import PageTable
from hisparse.layout import pages_for

_NOTHING_WRITTEN = ((0, 0), np.zeros(0, np.int64))


class HostRows:
    """Rows of a batch of equally long requests in one pool; the row source of its index groups."""

    def __init__(self, open_pool: Callable[[], HostPool], layers: Sequence[int], *, batch: int, max_rows: int) -> None:
        """Open a pool and admit `batch` requests of up to `max_rows` rows, or change nothing.

        Args:
            open_pool: Opens the pool; it is closed again if admission fails.
            layers: Model layers, in the order of the pool's layers.
            batch: Requests to admit.
            max_rows: Rows each may reach.

        Raises:
            CapacityError: The pool or the disk has too little room.
            StorageError: The pool can't be opened.
        """
        self._pool = open_pool()
        self._pool_layers = {layer: i for i, layer in enumerate(layers)}
        self._max_rows = max_rows
        self._length = 0
        self._pages = PageTable(np.zeros((batch, 0), np.int64), self._pool.page_rows)
        self._is_moved = False
        self._written = _NOTHING_WRITTEN
        self._requests: list[RequestPages] = []
        try:
            for _ in range(batch):
                self._requests.append(self._pool.admit(max_rows))
        except BaseException:
            self.close()
            raise

    @property
    def batch(self) -> int:
        """Requests in the batch."""
        return len(self._requests)

    @property
    def pool(self) -> HostPool:
        """The pool the rows are in."""
        return self._pool

    @property
    def length(self) -> int:
        """Rows every request has room for."""
        return self._length

    @property
    def pages(self) -> PageTable:
        """Where the rows of every request are."""
        return self._pages

    def extend(self, length: int) -> None:
        """Make room for `length` rows in every request, or change nothing.

        Raises:
            PositionError: `length` is beyond what was admitted.
            DiskFullError: The disk has no room for the pages.
        """
        if length <= self._length:
            return
        if length > self._max_rows:
            raise PositionError(
                f"row {length - 1} is beyond the {self._max_rows} rows this cache was admitted for; raise max_positions"
            )
        try:
            for request in self._requests:
                request.extend(length)
        except BaseException:
            self._cut(self._length)
            raise
        if self._is_moved or pages_for(length, self._pool.page_rows) != self._pages.first_rows.shape[1]:
            self._pages = self._find_pages()
            self._is_moved = False
            self._written = _NOTHING_WRITTEN
        self._length = length

    def write(self, layer: int, start: int, data: NDArray[np.uint8]) -> None:
        """Write `data` uint8 ``[B * S, row_bytes]`` at rows ``start ..`` of every request."""
        span = (start, start + len(data) // self.batch)
        if span != self._written[0]:
            # Every layer of a step writes the same rows.
            self._written = (span, self._rows_between(*span))
        self._pool.write(self._pool_layers[layer], self._written[1], data)

    def read(self, layer: int, length: int, out: NDArray[np.uint8]) -> None:
        """Read the first `length` rows of every request into `out` uint8 ``[B * length, row_bytes]``."""
        self._pool.read(self._pool_layers[layer], self._rows_between(0, length), out)

    def gather(self, layer: int, rows: NDArray[np.int64], out: NDArray[np.uint8], out_rows: NDArray[np.int64]) -> int:
        """Copy pool rows of `layer` to ``out[out_rows]``; returns the bytes copied."""
        return self._pool.gather(self._pool_layers[layer], rows, out, out_rows)

    def truncate(self, length: int) -> None:
        """Keep the first `length` rows of every request."""
        self._cut(length)
        self._length = min(self._length, length)

    def reindex(self, sources: Sequence[int]) -> None:
        """Let request ``i`` continue request ``sources[i]``; full pages are shared."""
        self._requests = self._pool.rearrange(self._requests, sources)
        self._pages = self._find_pages()
        self._is_moved = True

    def check(self) -> None:
        """Recount the pool's pages."""
        self._pool.check()

    def close(self) -> None:
        """End the requests and close the pool."""
        for request in self._requests:
            request.close()
        self._requests = []
        self._pool.close()

    def _cut(self, length: int) -> None:
        """Truncate the requests that are longer than `length`."""
        for request in self._requests:
            if request.length > length:
                request.truncate(length)
        self._is_moved = True

    def _find_pages(self) -> PageTable:
        """Return where the rows are now; pages move when a shared one is copied."""
        pages = np.stack([request.pages.astype(np.int64) for request in self._requests])
        return PageTable(pages * self._pool.page_rows, self._pool.page_rows)

    def _rows_between(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the pool rows ``start .. stop - 1`` of every request, int64 ``[B * (stop - start)]``."""
        page, offset = np.divmod(np.arange(start, stop), self._pages.page_rows)
        return (self._pages.first_rows[:, page] + offset).reshape(-1)
