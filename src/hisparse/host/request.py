"""One request's pages: its table, how it grows, shrinks and shares."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import ArrayError, DiskFullError, HostPoolFullError, PositionError, StateError
from hisparse.host.claim import Claim
from hisparse.host.ledger import PageLedger
from hisparse.host.storage import Storage
from hisparse.layout import PageKey, pages_for, rows_of


class RequestPages:
    """The page table of one request, made by `HostPool.admit` and `HostPool.rearrange`.

    Pages may be shared with other requests.  The rows at or after the length of the last `extend` are the
    request's own; before that, sharing shows only in that `HostPool.write` refuses a shared page.
    """

    def __init__(self, ledger: PageLedger, storage: Storage, claim: Claim) -> None:
        """Wrap an open claim of `ledger`, whose rows lie in `storage`."""
        self._ledger = ledger
        self._storage = storage
        self._claim = claim

    @property
    def length(self) -> int:
        """Positions the request has now."""
        return self._claim.length

    @property
    def max_positions(self) -> int:
        """The longest the request may become."""
        return self._claim.max_positions

    @property
    def promised_pages(self) -> int:
        """Pages the request may hold at most."""
        return self._claim.promised

    @property
    def pages(self) -> NDArray[np.int32]:
        """int32 ``[P]``: the pool page of each page of the request (a copy)."""
        return self._claim.table.copy()

    @property
    def is_open(self) -> bool:
        """Whether the request still holds its promise."""
        return self._ledger.is_open(self._claim)

    def belongs_to(self, ledger: PageLedger) -> bool:
        """Whether `ledger` is the one that counts this request's pages.  Reads only."""
        return self._ledger is ledger

    def extend(self, length: int) -> None:
        """Grow to `length` positions.

        Reserved pages become used.  Afterwards the request alone holds the pages of positions
        ``[old length, length)``: a partly filled last page that is shared, or in the prefix index, is copied first.

        Raises:
            PositionError: `length` is below the present length.
            HostPoolFullError: `length` is above `max_positions`, or the last page is to be copied, is in flight,
                and there is no page to promise in its place.
            DiskFullError: The disk has no room for the pages.
            StateError: The request or its pool is closed.
            CorruptPoolError: The rows to be copied are damaged.
        """
        claim = self._open_claim()
        if length < claim.length:
            raise PositionError(f"extend to {length} is below the length {claim.length}; use truncate")
        if length > claim.max_positions:
            raise HostPoolFullError(
                f"extend to {length} positions exceeds the {claim.max_positions} ({claim.promised} pages) "
                "that were reserved; raise max_positions"
            )
        if length == claim.length:
            return
        tail_rows = claim.length % self._ledger.page_rows
        new_pages = pages_for(length, self._ledger.page_rows) - claim.held
        shared = tail_rows > 0 and self._ledger.must_copy(claim, new_pages)
        if new_pages + shared == 0:
            # nearly every decode step: growing by no page took 12 us a request
            self._ledger.fill(claim, length)
            return
        taken = self._take(new_pages + shared)
        if shared:
            self._copy_rows(int(claim.table[-1]), int(taken[0]), tail_rows)
        self._ledger.grow(claim, length, replace_tail=shared)

    def publish(self, keys: Sequence[PageKey]) -> int:
        """Let later requests find the first pages under `keys`; returns how many pages are new to them.

        The pages stay in the pool when the request ends, until their room is needed.  Their rows are not written
        any more: a request that is cut into such a page and extended gets a copy.

        Args:
            keys: The keys of the request's first pages, from the first on, as `page_keys` gives them. Those that
                were published before cost nothing.

        Raises:
            PositionError: There are more keys than full pages; nothing was changed.
            StateError: The request or its pool is closed, a page was published under another key, or a key is
                given twice; nothing was changed.
        """
        claim = self._open_claim()
        entered = self._ledger.publish(claim, keys)
        if entered:
            # What enters the index follows what is in it: the last pages of those named.
            first = len(keys) - entered
            parents = [keys[first - 1] if first else None, *keys[first:-1]]
            self._storage.publish(claim.pages[first : len(keys)], keys[first:], parents=parents)
        return entered

    def truncate(self, length: int) -> None:
        """Cut to `length` positions; pages past the end that nobody shares become reserved again.

        Raises:
            PositionError: `length` is negative or above the present length.
            HostPoolFullError: Pages past the end are in flight, and there is no page to promise in their place.
            StateError: The request or its pool is closed.
        """
        claim = self._open_claim()
        if not 0 <= length <= claim.length:
            raise PositionError(f"truncate to {length} is outside 0 to the length {claim.length}")
        self._ledger.shrink(claim, length)

    def rows(self, positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the pool row of each position.  Reads only.

        Args:
            positions: Integers ``[M]``, each at least 0 and below the length.

        Returns:
            int64 ``[M]``, the same row numbers in every layer.

        Raises:
            PositionError: A position is out of range.
            ArrayError: The positions are not a vector of integers.
            StateError: The request or its pool is closed.
        """
        claim = self._open_claim()
        if positions.ndim != 1 or positions.dtype.kind not in "iu":
            raise ArrayError(f"positions must be int[M], got {positions.dtype}{list(positions.shape)}")
        if positions.size and not 0 <= positions.min() <= positions.max() < claim.length:
            bad = positions[(positions < 0) | (positions >= claim.length)][0]
            raise PositionError(f"position {bad} is outside the request's {claim.length} positions; extend it first")
        return rows_of(claim.table, positions, self._ledger.page_rows)

    def close(self) -> None:
        """End the request: its promise and the pages only it holds become free.  Harmless when closed."""
        if self.is_open:
            self._ledger.drop(self._claim)

    def fork(self) -> "RequestPages":
        """Return a new request that continues this one; all pages are shared until either extends.

        Raises:
            HostPoolFullError: Too few pages are free for a second promise.
            DiskFullError: The disk has no room for a second promise.
            StateError: The request or its pool is closed.
        """
        claim = self._open_claim()
        self._ledger.check_room(claim.promised)
        self._storage.check_room(self._ledger.promised_pages + claim.promised)
        return RequestPages(self._ledger, self._storage, self._ledger.fork(claim))

    def _open_claim(self) -> Claim:
        if not self.is_open:
            raise StateError("the request is closed; admit a new one")
        self._storage.rows(0)
        return self._claim

    def _take(self, num_pages: int) -> NDArray[np.int32]:
        """Return the pages to be taken next; storage has room for them."""
        self._ledger.make_room(num_pages)
        taken = self._ledger.next_pages(num_pages)
        try:
            self._storage.ensure(int(taken.max()) + 1)
        except DiskFullError:
            # Cached pages have their room on the disk already: they give way before a running request stops.
            if not self._ledger.evict(num_pages):
                raise
            taken = self._ledger.next_pages(num_pages)
            self._storage.ensure(int(taken.max()) + 1)
        return taken

    def _copy_rows(self, source: int, target: int, num_rows: int) -> None:
        """Copy the first rows of one page to another, in every layer, through the storage's own checks."""
        offsets = np.arange(num_rows, dtype=np.int64)
        for layer, row_bytes in enumerate(self._storage.geometry.row_bytes):
            data = np.empty((num_rows, row_bytes), np.uint8)
            self._storage.gather(layer, source * self._ledger.page_rows + offsets, data)
            self._storage.write(layer, target * self._ledger.page_rows + offsets, data)
