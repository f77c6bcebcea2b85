"""Who holds which page: free pages, reference counts and promises, with a recount."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import AccountingError, HostPoolFullError
from hisparse.layout import pages_for

_KNOBS = "raise host_pool_bytes, lower max_positions, or wait for a request to end"


@dataclass(slots=True, eq=False)
class Claim:
    """One request's hold on the pool; compared by identity.

    Attributes:
        max_positions: The longest the request may become.
        promised: Pages it may hold at most, ``ceil(max_positions / page_rows)``.
        pages: int32 ``[promised]``; the first `held` entries are its page table.
        held: Pages in its table now, ``ceil(length / page_rows)``.
        length: Positions it has now.
    """

    max_positions: int
    promised: int
    pages: NDArray[np.int32] = field(repr=False)
    held: int = 0
    length: int = 0

    @property
    def table(self) -> NDArray[np.int32]:
        """int32 ``[held]``: the pool page of each page of the request (a view)."""
        return self.pages[: self.held]


class PageLedger:
    """Free pages, reference counts and promises of one pool.

    A page is used while at least one table holds it, and is counted once however many do.  Every claim may
    come to hold all its promised pages for itself alone, so what is reserved is what is promised and not yet
    used: ``reserved = sum(promised) - used``.  A table never exceeds its promise, hence
    ``used <= sum(promised) <= pages``: a page that was promised can be taken, however pages are shared.
    """

    def __init__(self, pages: int, page_rows: int) -> None:
        """Start with every one of `pages` pages of `page_rows` rows free."""
        self.pages = pages
        self.page_rows = page_rows
        self.references = np.zeros(pages, np.int32)
        # A stack with page 0 on top: the lowest pages are used first, so a file grows from its start.
        self._stack = np.arange(pages - 1, -1, -1, dtype=np.int32)
        self._stacked = pages
        self._promised = 0
        self._claims: set[Claim] = set()

    @property
    def used_pages(self) -> int:
        """Pages that at least one request holds."""
        return self.pages - self._stacked

    @property
    def promised_pages(self) -> int:
        """Pages promised to open requests, used ones included."""
        return self._promised

    @property
    def reserved_pages(self) -> int:
        """Pages promised to open requests and not yet used."""
        return self._promised - self.used_pages

    @property
    def free_pages(self) -> int:
        """Pages that a new request can be promised."""
        return self.pages - self._promised

    def is_open(self, claim: Claim) -> bool:
        """Whether the claim belongs to this ledger and was not dropped.  Reads only."""
        return claim in self._claims

    def check_room(self, pages: int, *, returning: int = 0) -> None:
        """Refuse a promise of `pages` more pages that does not fit.  Reads only.

        Args:
            pages: Pages to be promised.
            returning: Pages whose promise ends at the same moment.

        Raises:
            HostPoolFullError: Fewer pages are free.
        """
        free = self.free_pages + returning
        if pages > free:
            raise HostPoolFullError(
                f"host pool is full: {pages} pages needed, {free} free of {self.pages} "
                f"({self.used_pages} used, {self.reserved_pages} reserved); {_KNOBS}"
            )

    def open(self, max_positions: int) -> Claim:
        """Promise ``ceil(max_positions / page_rows)`` pages; free pages become reserved.

        Raises:
            HostPoolFullError: Too few pages are free; nothing was changed.
        """
        promised = pages_for(max_positions, self.page_rows)
        self.check_room(promised)
        claim = Claim(max_positions, promised, np.empty(promised, np.int32))
        self._claims.add(claim)
        self._promised += promised
        return claim

    def fork(self, source: Claim) -> Claim:
        """Open a claim that shares all pages of `source`; the caller has checked the room."""
        claim = self.open(source.max_positions)
        claim.pages[: source.held] = source.table
        claim.held, claim.length = source.held, source.length
        self.references[claim.table] += 1
        return claim

    def drop(self, claim: Claim) -> None:
        """End a claim: its promise and the pages only it holds become free."""
        self.shrink(claim, 0)
        self._claims.remove(claim)
        self._promised -= claim.promised

    def shrink(self, claim: Claim, length: int) -> None:
        """Cut a claim to `length` positions; pages past the end that nobody else holds become reserved."""
        kept = pages_for(length, self.page_rows)
        self._release(claim.pages[kept : claim.held])
        claim.held, claim.length = kept, length

    def next_pages(self, num_pages: int) -> NDArray[np.int32]:
        """int32 ``[num_pages]``: the pages that `grow` will take next.  Reads only."""
        return self._stack[self._stacked - num_pages : self._stacked][::-1].copy()

    def fill(self, claim: Claim, length: int) -> None:
        """Let the claim have `length` positions, as many as its pages hold or fewer, and no fewer than it has."""
        claim.length = length

    def grow(self, claim: Claim, length: int, *, replace_tail: bool) -> None:
        """Take pages so that the claim holds `length` positions; reserved pages become used.

        Args:
            claim: An open claim, within its promise.
            length: Positions it shall have.
            replace_tail: Whether the last page held gives way to a page of the claim's own.
        """
        keep = claim.held - replace_tail
        held = pages_for(length, self.page_rows)
        taken = self.next_pages(held - keep)
        self._stacked -= taken.size
        self.references[taken] = 1
        self._release(claim.pages[keep : claim.held])
        claim.pages[keep:held] = taken
        claim.held, claim.length = held, length

    def _release(self, pages: NDArray[np.int32]) -> None:
        self.references[pages] -= 1
        freed = pages[self.references[pages] == 0][::-1]
        self._stack[self._stacked : self._stacked + freed.size] = freed
        self._stacked += freed.size

    def check(self) -> None:
        """Recount every page.  Reads only.

        Raises:
            AccountingError: A sum does not hold; the message prints it.
        """
        holders = np.zeros(self.pages, np.int64)
        for claim in self._claims:
            np.add.at(holders, claim.table, 1)
            if claim.held != pages_for(claim.length, self.page_rows) or claim.held > claim.promised:
                raise AccountingError(
                    f"a request of {claim.length} positions holds {claim.held} of {claim.promised} pages"
                )
        wrong = np.flatnonzero(holders != self.references)
        if wrong.size:
            page = int(wrong[0])
            raise AccountingError(
                f"page {page}: {holders[page]} tables hold it, reference count {self.references[page]}"
            )
        used = int(np.count_nonzero(holders))
        reserved = sum(claim.promised for claim in self._claims) - used
        stack = np.unique(self._stack[: self._stacked])
        free = stack.size - reserved
        if free + used + reserved != self.pages:
            raise AccountingError(f"free {free} + used {used} + reserved {reserved} != {self.pages} pages")
        if (free, used, reserved) != (self.free_pages, self.used_pages, self.reserved_pages):
            raise AccountingError(
                f"free {free} + used {used} + reserved {reserved} pages were counted, "
                f"{self.free_pages} + {self.used_pages} + {self.reserved_pages} were kept"
            )
        if holders[stack].any():
            raise AccountingError(f"page {int(stack[holders[stack] > 0][0])} is both free and used")
