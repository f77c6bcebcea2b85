"""Counting every page of a ledger again."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import AccountingError
from hisparse.host.claim import Claim
from hisparse.host.prefix import PrefixIndex
from hisparse.layout import pages_for

Pages = NDArray[np.int32]


class Counted(Protocol):
    """What a recount reads of a ledger."""

    pages: int
    references: Pages
    shares: Pages
    pins: Pages
    index: PrefixIndex

    @property
    def free_pages(self) -> int:
        """Pages that can be promised."""

    @property
    def used_pages(self) -> int:
        """Pages held or pinned."""

    @property
    def reserved_pages(self) -> int:
        """Pages promised and not held."""


class Sums(NamedTuple):
    """Pages by recount: held or pinned, pinned only, promised."""

    used: int
    pinned_only: int
    promised: int

    @classmethod
    def of(cls, ledger: Counted, claims: Iterable[Claim]) -> Self:
        """Count over all pages and claims.  Reads only."""
        held, pinned = ledger.references > 0, ledger.pins > 0
        return cls(
            int(np.count_nonzero(held | pinned)),
            int(np.count_nonzero(pinned & ~held)),
            sum(claim.promised for claim in claims),
        )


def check_claims(claims: Iterable[Claim], page_rows: int, references: Pages) -> None:
    """Recount the tables of all claims.  Reads only.

    Raises:
        AccountingError: A table does not fit its length, or a reference count its tables.
    """
    holders = np.zeros(references.size, np.int64)
    for claim in claims:
        np.add.at(holders, claim.table, 1)
        if claim.held != pages_for(claim.length, page_rows) or claim.held > claim.promised:
            raise AccountingError(f"a request of {claim.length} positions holds {claim.held} of {claim.promised} pages")
        if claim.published > claim.length // page_rows:
            raise AccountingError(f"a request of {claim.length} positions has published {claim.published} pages")
    wrong = np.flatnonzero(holders != references)
    if wrong.size:
        page = int(wrong[0])
        raise AccountingError(f"page {page}: {holders[page]} tables hold it, reference count {references[page]}")


def check_pages(ledger: Counted, stack: Pages, sums: Sums) -> None:
    """Recount the states of all pages.  Reads only.

    Raises:
        AccountingError: A sum does not hold; the message prints it.
    """
    ledger.index.check()
    indexed = ledger.index.has(np.arange(ledger.pages, dtype=np.int32))
    busy = (ledger.references > 0) | (ledger.pins > 0)
    cached = indexed & ~busy
    num_cached, stacked = int(np.count_nonzero(cached)), np.unique(stack)
    reserved = sums.promised - (sums.used - sums.pinned_only)
    free = stacked.size + num_cached - reserved
    if free + sums.used + reserved != ledger.pages:
        raise AccountingError(f"free {free} + used {sums.used} + reserved {reserved} != {ledger.pages} pages")
    if stacked.size + sums.used + num_cached != ledger.pages or num_cached != ledger.index.idle_pages:
        raise AccountingError(
            f"stack {stacked.size} + used {sums.used} + cached {num_cached} != {ledger.pages} pages, "
            f"{ledger.index.idle_pages} cached were kept"
        )
    kept = ledger.free_pages, ledger.used_pages, ledger.reserved_pages
    if (free, sums.used, reserved) != kept:
        raise AccountingError(
            f"free {free} + used {sums.used} + reserved {reserved} pages were counted, "
            f"{kept[0]} + {kept[1]} + {kept[2]} were kept"
        )
    if busy[stacked].any() or indexed[stacked].any():
        page = int(stacked[busy[stacked] | indexed[stacked]][0])
        raise AccountingError(f"page {page} is both free and {'used' if busy[page] else 'cached'}")
    if free < 0 or (ledger.shares != ledger.references + 2 * indexed).any():
        raise AccountingError(f"{free} pages are free, or what may be written is not what nobody shares")
