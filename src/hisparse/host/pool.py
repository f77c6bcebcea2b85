"""The host pool: admission, rows in and out, and the rearrangement of requests."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import ArrayError, PositionError, StateError
from hisparse.host._compiled import compiled
from hisparse.host.geometry import Geometry
from hisparse.host.ledger import PageLedger
from hisparse.host.opening import identity_of, open_storage
from hisparse.host.request import RequestPages
from hisparse.host.storage import Allocate, Recovery, Rows
from hisparse.layout import PageKey, RowFormat, pages_for

_BYTE, _INT64 = np.dtype(np.uint8), np.dtype(np.int64)
_ANY_NUMBER = 2**31 - 1


class HostPool:
    """Pages of rows for many requests, in memory or in a file.

    ``free + used + reserved == pages`` at all times: a page is used while a request holds it, reserved while
    it is promised to one that has been admitted, free otherwise.  Free pages may hold rows of requests that
    ended, cached for later ones that begin alike.  One thread at a time may call a pool.
    """

    def __init__(  # noqa: PLR0913  each is a setting, named where a pool is made
        self,
        pages: int,
        page_rows: int,
        layers: Sequence[RowFormat],
        storage: str = "ram",
        *,
        allocate: Allocate | None = None,
        verify: bool = True,
        identity: str = "",
        policy: str = "lru",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make an empty pool.

        Args:
            pages: Pages in the pool.
            page_rows: Rows in a page.
            layers: The row format of each layer.
            storage: ``"ram"``, or ``"disk:DIR"`` for a file in that directory, made if missing; with
                ``"disk:DIR?persist"`` published pages outlive the process.
            allocate: For ``"ram"``: provides each layer's memory, ``allocate(num_bytes) -> uint8 array``.
            verify: For ``"disk:DIR"``: whether rows read back are checked against what was written.
            identity: For ``?persist``: whose rows they are, such as model, revision and rank. Other rows have
                another file, and a page is found only by who wrote it.
            policy: Which cached pages give way first, a name of `hisparse.policies.POLICIES`.
            clock: Seconds, for the times that cached pages are kept and used.

        Raises:
            SettingError: A setting has no meaning.
            StorageError: The memory, the directory or the file cannot be used.
            DiskFullError: The disk has no room even for an empty pool.
        """
        self._geometry = Geometry.of(pages, page_rows, layers)
        self._ledger = PageLedger(pages, page_rows, policy=policy, clock=clock)
        self._storage = open_storage(
            self._geometry, storage, allocate=allocate, verify=verify, identity=identity_of(identity, layers)
        )
        self._ledger.adopt(self._storage.recovered())

    def __enter__(self) -> Self:
        """Return the pool itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the pool."""
        self.close()

    @property
    def pages(self) -> int:
        """Pages in the pool."""
        return self._geometry.pages

    @property
    def page_rows(self) -> int:
        """Rows in a page."""
        return self._geometry.page_rows

    @property
    def ledger(self) -> PageLedger:
        """Who holds which page; its `index` finds pages by key."""
        return self._ledger

    @property
    def free_pages(self) -> int:
        """Pages that new requests can be promised, cached ones included."""
        return self._ledger.free_pages

    @property
    def used_pages(self) -> int:
        """Pages that requests hold, a shared one counted once."""
        return self._ledger.used_pages

    @property
    def reserved_pages(self) -> int:
        """Pages promised to admitted requests and not yet used."""
        return self._ledger.reserved_pages

    @property
    def cached_pages(self) -> int:
        """Pages that no request holds, kept for later ones; they give way when their room is needed."""
        return self._ledger.cached_pages

    @property
    def prefix_queried_tokens(self) -> int:
        """Tokens of full pages that admitted requests asked for by key, each request once."""
        return self._ledger.index.queried_tokens

    @property
    def prefix_hit_tokens(self) -> int:
        """Tokens of those that were found, and did not have to be computed."""
        return self._ledger.index.hit_tokens

    @property
    def capacity_bytes(self) -> int:
        """Bytes of all rows of all layers."""
        return self._geometry.capacity_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of the used pages over all layers."""
        return self._ledger.used_pages * self._geometry.page_bytes

    @property
    def recovery(self) -> Recovery | None:
        """What the start found in a file that an earlier process left; None without ``?persist``."""
        return self._storage.recovery

    def admit(self, max_positions: int, *, keys: Sequence[PageKey] = ()) -> RequestPages:
        """Promise room for a request of up to `max_positions` positions; free pages become reserved.

        Args:
            max_positions: The longest it may become.
            keys: The keys of its first pages, to begin with those that an earlier request published. The
                request's length is then what was found, whole pages. Leave out the page of the last token,
                which has to be computed to get the next one.

        Raises:
            HostPoolFullError: Too few pages are free; nothing was changed.
            DiskFullError: The disk under the pool has no room for them; nothing was changed.
            PositionError: `max_positions` is below 1.
            StateError: The pool is closed.
        """
        self._check_open()
        if max_positions < 1:
            raise PositionError(f"max_positions must be at least 1, got {max_positions}")
        needed = pages_for(max_positions, self.page_rows)
        self._ledger.check_room(needed)
        self._storage.check_room(self._ledger.promised_pages + needed)
        if self._storage.in_doubt:
            self._discard_unsound(keys[: max_positions // self.page_rows])
        return RequestPages(self._ledger, self._storage, self._ledger.admit(max_positions, keys))

    def rearrange(self, requests: Sequence[RequestPages], sources: Sequence[int]) -> list[RequestPages]:
        """Reorder, repeat or drop requests; item i of the result continues ``requests[sources[i]]``.

        The first item that continues a request keeps its handle.  Each further one is a new handle that
        shares all pages; the last, partly filled page is copied when one of the sharers next extends.
        Requests that nothing continues are closed.  A permutation needs no room at all.

        Raises:
            HostPoolFullError: Too few pages are free for the repeated requests; nothing was changed.
            DiskFullError: The disk has no room for them; nothing was changed.
            PositionError: A source is out of range.
            StateError: A request is closed, given twice or of another pool, or the pool is closed.
        """
        self._check_open()
        for source in sources:
            if not 0 <= source < len(requests):
                raise PositionError(f"source {source} is outside 0 to {len(requests) - 1}")
        if not all(request.is_open and request.belongs_to(self._ledger) for request in requests):
            raise StateError("a request to be rearranged is closed or of another pool")
        if len({id(request) for request in requests}) != len(requests):
            raise StateError("a request to be rearranged is given twice")
        kept = set(sources)
        dropped = [request for idx, request in enumerate(requests) if idx not in kept]
        returning = sum(request.promised_pages for request in dropped)
        # A page in flight is not given back with its request, and can't be promised to another.
        returning -= self._ledger.count_staying(*(request.pages for request in dropped))
        repeated = sum(requests[source].promised_pages for source in sources)
        repeated -= sum(requests[source].promised_pages for source in kept)
        self._ledger.check_room(repeated, returning=returning)
        self._storage.check_room(self._ledger.promised_pages + repeated - returning)
        for request in dropped:
            request.close()
        return [
            requests[source] if source not in sources[:idx] else requests[source].fork()
            for idx, source in enumerate(sources)
        ]

    def write(self, layer: int, rows: NDArray[np.int64], data: Rows) -> None:
        """Store rows of one layer.

        Args:
            layer: Index into the layers the pool was made with.
            rows: int64 ``[M]`` pool rows, as `RequestPages.rows` gives them; of equal ones the last wins.
            data: uint8 ``[M, row_bytes]``, contiguous.

        Raises:
            ArrayError: Wrong dtype, shape or layout; nothing was written.
            PositionError: The layer is out of range, or no request holds a row; nothing was written.
            StateError: A row's page is shared or in the prefix index (extend its request first), or the pool is
                closed.
            DiskFullError: The disk became full; rows it could not take are refused when gathered.
            StorageError: The file cannot be written; as above.
        """
        expected = (rows.size, self._row_bytes(layer))
        if data.dtype != _BYTE or data.shape != expected or not data.flags.c_contiguous:
            raise ArrayError(f"data must be contiguous uint8{list(expected)}, got {data.dtype}{list(data.shape)}")
        self._check_held(rows, self._ledger.shares, at_most=1)
        self._storage.write(layer, rows, data)

    def gather(
        self, layer: int, rows: NDArray[np.int64], out: Rows, out_rows: NDArray[np.integer] | None = None
    ) -> int:
        """Copy rows of one layer out of the pool.

        Args:
            layer: Index into the layers the pool was made with.
            rows: int64 ``[M]`` pool rows, as `RequestPages.rows` gives them.
            out: uint8 ``[N, row_bytes]``, written; row m goes to ``out[m]``, or to ``out[out_rows[m]]``.
            out_rows: Integers ``[M]`` or None.

        Returns:
            The bytes copied.

        Raises:
            ArrayError: Wrong dtype, shape or layout; nothing was copied.
            PositionError: The layer is out of range, or no request holds a row; nothing was copied.
            CorruptPoolError: Rows of a file are not what was written; nothing was copied.
            StateError: The pool is closed.
        """
        self._row_bytes(layer)
        self._check_held(rows, self._ledger.references, at_most=_ANY_NUMBER)
        return self._storage.gather(layer, rows, out, out_rows=out_rows)

    def read(self, layer: int, rows: NDArray[np.int64], out: Rows) -> int:
        """Copy rows of one layer to ``out[0]``, ``out[1]``, ...: `gather` without a scatter."""
        return self.gather(layer, rows, out)

    def check(self) -> None:
        """Recount all pages.  Reads only.

        Raises:
            AccountingError: A sum does not hold; the message prints it.
        """
        self._ledger.check()

    def close(self) -> None:
        """Give memory or file back; the pool's requests are of no use afterwards.  Harmless when closed."""
        self._storage.close()

    def _discard_unsound(self, keys: Sequence[PageKey]) -> None:
        """Forget the first page of a chain whose rows are not what was published, and what follows it."""
        pages = self._ledger.index.lookup(keys)
        sound = self._storage.sound(pages)
        if sound < pages.size:
            self._ledger.discard(int(pages[sound]))

    def _check_open(self) -> None:
        self._storage.rows(0)

    def _row_bytes(self, layer: int) -> int:
        if not 0 <= layer < len(self._geometry.row_bytes):
            raise PositionError(f"layer {layer} is outside 0 to {len(self._geometry.row_bytes) - 1}")
        return self._geometry.row_bytes[layer]

    def _check_held(self, rows: NDArray[np.int64], holders: NDArray[np.int32], *, at_most: int) -> None:
        """Refuse rows that no request holds, or whose page more than `at_most` requests hold."""
        self._check_open()
        if rows.dtype != _INT64 or rows.ndim != 1:
            raise ArrayError(f"rows must be int64[M], got {rows.dtype}{list(rows.shape)}")
        idx = _first_refused(rows, holders, self._ledger.page_rows, at_most)
        if idx < 0:
            return
        row, page = int(rows[idx]), int(rows[idx]) // self.page_rows
        if not 0 <= row < self._geometry.rows:
            raise PositionError(f"row {row} is outside 0 to {self._geometry.rows - 1}, the rows of the pool")
        sharing = int(self._ledger.references[page])
        if sharing == 0:
            raise PositionError(f"row {row} lies in page {page}, which no request holds")
        raise StateError(
            f"row {row} lies in page {page}, which {f'{sharing} requests share' if sharing > 1 else 'is published'}; "
            "truncate its request to before the row and extend it again to own the page"
        )


@compiled
def _first_refused(rows: NDArray[np.int64], references: NDArray[np.int32], page_rows: int, at_most: int) -> int:
    # Four arguments and no tuple of them, which numba takes 2 us longer to hand over, 13 us in cold caches.
    num_rows = references.shape[0] * page_rows
    for idx in range(rows.shape[0]):
        row = rows[idx]
        if row < 0 or row >= num_rows:
            return idx
        holders = references[row // page_rows]
        if holders == 0 or holders > at_most:
            return idx
    return -1
