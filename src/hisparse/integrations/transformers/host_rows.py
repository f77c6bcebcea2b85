"""The batch's rows in the host pool: where each one is, and how it gets in and out."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hisparse.errors import PositionError
from hisparse.host import HostPool, RequestPages
from hisparse.integrations.transformers.tensors import to_host_bytes
from hisparse.kernels import PageTable
from hisparse.layout import PageKey, pages_for

_NOTHING_WRITTEN = ((0, 0), np.zeros(0, np.int64))


class HostRows:
    """Rows of a batch of equally long requests in one pool; the row source of its index groups."""

    def __init__(
        self,
        pool: HostPool,
        layers: Sequence[int],
        index_layers: Sequence[int] = (),
        *,
        batch: int,
        max_rows: int,
        prefixes: Sequence[Sequence[PageKey]] = (),
    ) -> None:
        """Admit `batch` requests of up to `max_rows` rows, or change nothing.

        Args:
            pool: Where the rows go; it stays open when this batch ends.
            layers: Model layers, in the order of the pool's first layers.
            index_layers: Model layers whose index keys are the pool's other layers.
            batch: Requests to admit.
            max_rows: Rows each may reach.
            prefixes: For each request the keys of its first pages; all begin with as many as every one finds.

        Raises:
            CapacityError: The pool or the disk has too little room.
        """
        self._pool = pool
        self._pool_layers = {layer: i for i, layer in enumerate(layers)}
        self._index_layers = {layer: len(layers) + i for i, layer in enumerate(index_layers)}
        self._max_rows = max_rows
        self._is_moved = False
        self._written = _NOTHING_WRITTEN
        self._requests: list[RequestPages] = []
        try:
            for request in range(batch):
                keys = prefixes[request] if prefixes else ()
                self._requests.append(self._pool.admit(max_rows, keys=keys))
            self._length = min(request.length for request in self._requests)
            self._cut(self._length)
        except BaseException:
            self.close()
            raise
        self._pages = self._find_pages()

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

    def read_index_keys(self, layer: int, length: int, out: NDArray[np.uint8]) -> None:
        """Read the first `length` index keys of every request into `out` uint8 ``[B * length, bytes]``."""
        self._pool.read(self._index_layers[layer], self._rows_between(0, length), out)

    def complete(self, request: int, index_keys: Mapping[int, torch.Tensor], num_pages: int | None = None) -> None:
        """Write the index keys of a request's pages, before it shares them: of those that it alone can see.

        Args:
            request: Which.
            index_keys: ``[B, T, D]`` of each layer that has them.
            num_pages: How many of its first pages; default all.

        Raises:
            StorageError: The disk can't take them.
        """
        pages = self._requests[request].pages[:num_pages]
        own = np.flatnonzero(self._pool.ledger.shares[pages] == 1)
        if not own.size:
            return
        page_rows = self._pool.page_rows
        positions = (own[:, None] * page_rows + np.arange(page_rows)).reshape(-1)
        positions = positions[positions < self._length]
        rows = self._requests[request].rows(positions)
        for layer, pool_layer in self._index_layers.items():
            keys = index_keys[layer][request]
            self._pool.write(pool_layer, rows, to_host_bytes(keys[torch.from_numpy(positions).to(keys.device)]))

    def publish(self, request: int, keys: Sequence[PageKey], index_keys: Mapping[int, torch.Tensor]) -> int:
        """Let later requests find the first pages of `request` under `keys`; returns how many are new to them.

        Pages that several requests share must have been complete before.

        Raises:
            StorageError: The disk can't take the index keys; nothing was published.
        """
        if self._pool.ledger.index.lookup(keys).size == len(keys):
            return 0
        self.complete(request, index_keys, len(keys))
        return self._requests[request].publish(keys)

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
        """End the requests; what they published stays in the pool."""
        for request in self._requests:
            request.close()
        self._requests = []

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
