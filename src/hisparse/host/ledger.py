"""Who holds which page: free pages, references, promises, pins and the prefix index."""

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import HostPoolFullError, PositionError, StateError
from hisparse.host.claim import Claim
from hisparse.host.prefix import PrefixIndex
from hisparse.host.recount import Sums, check_claims, check_pages
from hisparse.layout import PageKey, pages_for

Pages = NDArray[np.int32]
Numbers = NDArray[np.integer]
_KNOBS = "raise host_pool_bytes, lower max_positions, or wait for a request to end"
# Whoever finds a page in the index may come to read it, so an indexed page counts as shared by two.
_INDEXED = 2


class PageLedger:
    """Free pages, reference counts and promises of one pool.

    A page is in one of three states, ``stack + used + cached == pages``:

    - on the stack: nobody needs what is in it;
    - used: a table holds it, or a transfer pins it; counted once however many do;
    - cached: the prefix index has it and nobody else. It gives way when a promised page is taken.

    Every claim may come to hold all its promised pages for itself alone, so what is reserved is what is
    promised and not yet held: ``reserved = sum(promised) - held``.  A table never exceeds its promise, and a
    page that is pinned without being held (its request ended during a transfer) is not promised to anybody, so
    ``held <= sum(promised) <= pages - pinned_only``: a page that was promised can be taken, however pages are
    shared, by evicting cached ones if need be.

    Attributes:
        pages: Pages in the pool.
        page_rows: Rows in a page.
        references: int32 ``[pages]``, the tables that hold each page.
        shares: int32 ``[pages]``, the same, and 2 more for an indexed page: 1 where a page may be written.
        pins: int32 ``[pages]``, the transfers that read or write each page.
        index: The prefix index over the pages.
    """

    def __init__(
        self, pages: int, page_rows: int, *, policy: str = "lru", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with every one of `pages` pages of `page_rows` rows free; `policy` orders the cached ones."""
        self.pages = pages
        self.page_rows = page_rows
        self.references = np.zeros(pages, np.int32)
        self.shares = np.zeros(pages, np.int32)
        self.pins = np.zeros(pages, np.int32)
        self.index = PrefixIndex(pages, policy=policy, clock=clock)
        # A stack with page 0 on top: the lowest pages are used first, so a file grows from its start.
        self._stack = np.arange(pages - 1, -1, -1, dtype=np.int32)
        self._stacked = pages
        self._promised = 0
        self._pinned_only = 0
        self._num_pins = 0
        self._claims: set[Claim] = set()

    @property
    def used_pages(self) -> int:
        """Pages that at least one request holds or one transfer pins."""
        return self.pages - self._stacked - self.index.idle_pages

    @property
    def cached_pages(self) -> int:
        """Pages that only the prefix index has; they give way when a promised page is taken."""
        return self.index.idle_pages

    @property
    def promised_pages(self) -> int:
        """Pages promised to open requests, used ones included."""
        return self._promised

    @property
    def reserved_pages(self) -> int:
        """Pages promised to open requests and not held yet."""
        return self._promised - (self.used_pages - self._pinned_only)

    @property
    def free_pages(self) -> int:
        """Pages that a new request can be promised, cached ones included."""
        return self.pages - self._promised - self._pinned_only

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

    def open(self, max_positions: int, prefix_pages: Pages | Sequence[int] = ()) -> Claim:
        """Promise ``ceil(max_positions / page_rows)`` pages; free pages become reserved.

        Args:
            max_positions: The longest the request may become.
            prefix_pages: Pages as `PrefixIndex.lookup` gives them; the claim begins with them, sharing them.

        Raises:
            HostPoolFullError: Too few pages are free; nothing was changed.
            PositionError: The prefix is longer than `max_positions`; nothing was changed.
            StateError: The prefix is not in the index any more; nothing was changed.
        """
        promised = pages_for(max_positions, self.page_rows)
        # Arrays are indexed by intp in half the time that int32 takes.
        prefix = np.asarray(prefix_pages, np.intp)
        length = prefix.size * self.page_rows
        if length > max_positions:
            raise PositionError(f"a prefix of {length} positions is longer than max_positions {max_positions}")
        self.check_room(promised)
        claim = Claim(max_positions, promised, np.empty(promised, np.int32))
        if prefix.size:
            self.index.reuse(prefix)
            self._hold(prefix)
            claim.pages[: prefix.size] = prefix
            claim.held = claim.published = prefix.size
            claim.length = length
        self._claims.add(claim)
        self._promised += promised
        return claim

    def admit(self, max_positions: int, keys: Sequence[PageKey] = ()) -> Claim:
        """Look `keys` up and `open` a claim that begins with the pages found; counts the tokens asked and found.

        A refused admission counts nothing, so one that is tried again counts once.

        Raises:
            HostPoolFullError: Too few pages are free; nothing was changed.
        """
        fitting = max_positions // self.page_rows
        asked = keys[:fitting] if len(keys) > fitting else keys
        claim = self.open(max_positions, self.index.lookup(asked))
        self.index.count_admission(queried=len(asked) * self.page_rows, hit=claim.length)
        return claim

    def fork(self, source: Claim) -> Claim:
        """Open a claim that shares all pages of `source`; the caller has checked the room."""
        claim = self.open(source.max_positions)
        claim.pages[: source.held] = source.table
        claim.held, claim.length, claim.published = source.held, source.length, source.published
        self.references[claim.table] += 1
        self.shares[claim.table] += 1
        return claim

    def drop(self, claim: Claim) -> None:
        """End a claim: its promise and the pages only it holds become free, cached or, in flight, pinned only."""
        self._claims.remove(claim)
        self._promised -= claim.promised
        self._release(claim.table)
        claim.held = claim.length = claim.published = 0

    def shrink(self, claim: Claim, length: int) -> None:
        """Cut a claim to `length` positions; pages past the end that nobody else needs become reserved.

        Raises:
            HostPoolFullError: Pages past the end are in flight, and there is no page to promise in their place;
                nothing was changed.
        """
        kept = pages_for(length, self.page_rows)
        self.check_leaving(claim.pages[kept : claim.held])
        self._release(claim.pages[kept : claim.held])
        claim.held, claim.length = kept, length
        claim.published = min(claim.published, length // self.page_rows)

    def publish(self, claim: Claim, keys: Sequence[PageKey]) -> int:
        """Index the claim's first pages under `keys`; returns how many entered the index.

        They stay cached when nobody holds them any more.  Where another page has a key already, that page
        keeps it.

        Raises:
            PositionError: There are more keys than full pages; nothing was changed.
            StateError: A page is indexed under another key, or a key is given twice; nothing was changed.
        """
        if len(keys) > claim.length // self.page_rows:
            full = claim.length // self.page_rows
            raise PositionError(f"{len(keys)} keys for a request of {full} full pages of {self.page_rows} rows")
        first = min(claim.published, len(keys))
        entered = self.index.insert(keys, claim.pages[: len(keys)], first=first)
        self.shares[entered] += _INDEXED
        claim.published = max(claim.published, len(keys))
        return int(entered.size)

    def pin(self, pages: Pages) -> None:
        """Keep used or cached pages from being freed while a transfer reads or writes them; counted.

        Raises:
            PositionError: A page is out of range; nothing was changed.
            StateError: Nobody holds a page; nothing was changed.
            HostPoolFullError: Cached pages to be pinned are promised to others; nothing was changed.
        """
        distinct, times = self._counted(pages)
        fresh = distinct[(self.references[distinct] == 0) & (self.pins[distinct] == 0)]
        unknown = fresh[~self.index.has(fresh)]
        if unknown.size:
            raise StateError(f"page {unknown[0]} is free: only a page in use or in the prefix index can be pinned")
        self.check_room(fresh.size)
        if fresh.size:
            self.index.hold(fresh)
        self._pinned_only += fresh.size
        self._num_pins += int(times.sum())
        self.pins[distinct] += times

    def unpin(self, pages: Pages) -> None:
        """End pins; pages that nobody holds or pins any more become cached or free.

        Raises:
            PositionError: A page is out of range; nothing was changed.
            StateError: A page has fewer pins; nothing was changed.
        """
        distinct, times = self._counted(pages)
        short = np.flatnonzero(self.pins[distinct] < times)
        if short.size:
            page = int(distinct[short[0]])
            raise StateError(f"page {page} is pinned {self.pins[page]} times, cannot unpin it {times[short[0]]} times")
        self.pins[distinct] -= times
        self._num_pins -= int(times.sum())
        done = distinct[(self.pins[distinct] == 0) & (self.references[distinct] == 0)]
        self._pinned_only -= done.size
        self._let_go(done)

    def count_staying(self, *tables: Pages) -> int:
        """Return how many pages would be pinned only, if these parts of tables let them go.  Reads only."""
        if not self._num_pins:
            return 0
        pages, times = self._counted(np.concatenate([np.empty(0, np.int32), *tables]))
        return int(np.count_nonzero((self.pins[pages] > 0) & (self.references[pages] == times)))

    def check_leaving(self, pages: Pages) -> None:
        """Refuse that a claim lets pages go and keeps its promise, if that leaves a promise without a page."""
        staying = self.count_staying(pages)
        if staying > self.free_pages:
            raise HostPoolFullError(
                f"host pool is full: {staying} of the pages to be given up are in flight, {self.free_pages} free "
                f"of {self.pages}; wait for their transfers, or {_KNOBS}"
            )

    def make_room(self, num_pages: int) -> None:
        """Evict cached pages until `num_pages` can be taken; a promise leaves room for as many."""
        if num_pages > self._stacked:
            self.evict(num_pages - self._stacked)

    def must_copy(self, claim: Claim, new_pages: int) -> bool:
        """Return whether the last page of a claim gives way to a copy before it is written.

        Where only the index shares the page, and there is none for a copy beside the `new_pages` to be taken, the
        page and what follows it leave the index instead.

        Raises:
            HostPoolFullError: The page is in flight, and there is none to promise in its place; nothing was changed.
        """
        page = int(claim.pages[claim.held - 1])
        if self.shares[page] == 1:
            return False
        self.check_leaving(claim.table[-1:])
        if new_pages < self._stacked + self.index.idle_pages or self.references[page] > 1:
            return True
        self._unindex(self.index.remove(page))
        return False

    def next_pages(self, num_pages: int) -> Pages:
        """int32 ``[num_pages]``: the pages that `grow` will take next, once `make_room` was called.  Reads only."""
        return self._stack[self._stacked - num_pages : self._stacked][::-1].copy()

    def fill(self, claim: Claim, length: int) -> None:
        """Let the claim have `length` positions, as many as its pages hold or fewer, and no fewer than it has."""
        claim.length = length

    def grow(self, claim: Claim, length: int, *, replace_tail: bool) -> None:
        """Take pages so that the claim holds `length` positions; reserved pages become used, cached ones give way.

        Args:
            claim: An open claim, within its promise.
            length: Positions it shall have.
            replace_tail: Whether the last page held gives way to a page of the claim's own.
        """
        keep = claim.held - replace_tail
        held = pages_for(length, self.page_rows)
        self.make_room(held - keep)
        taken = self.next_pages(held - keep)
        self._stacked -= taken.size
        self.references[taken] = self.shares[taken] = 1
        self._release(claim.pages[keep : claim.held])
        claim.pages[keep:held] = taken
        claim.held, claim.length = held, length

    def evict(self, num_pages: int) -> int:
        """Free cached pages, `num_pages` or as many as there are; returns how many became free."""
        return self._unindex(self.index.evict(num_pages))

    def clear_index(self) -> int:
        """Forget all keys; cached pages become free. Returns how many did."""
        return self._unindex(self.index.clear())

    def discard(self, page: int) -> int:
        """Forget the keys of an indexed page and of all that follow it; returns how many pages became free."""
        return self._unindex(self.index.remove(page))

    def adopt(self, chains: Iterable[tuple[Sequence[PageKey], Pages]]) -> int:
        """Cache free pages under chains of keys, each from its beginning: the rows of an earlier process.

        Returns:
            How many entered the index; where a key is there already, its page keeps it.

        Raises:
            StateError: A page is not free, or a key or page is given twice; of its chain nothing was changed.
        """
        stacked = self._stack[: self._stacked].copy()
        free = np.isin(np.arange(self.pages), stacked)
        try:
            self.index.adopt(chains, free)
        finally:
            self.shares[stacked[~free[stacked]]] += _INDEXED
            self._stacked = 0
            self._push(stacked[free[stacked]][::-1])
        return int(stacked.size - self._stacked)

    def check(self) -> None:
        """Recount every page.  Reads only.

        Raises:
            AccountingError: A sum does not hold; the message prints it.
        """
        check_claims(self._claims, self.page_rows, self.references)
        check_pages(self, self._stack[: self._stacked], Sums.of(self, self._claims))

    def _counted(self, pages: Pages) -> tuple[Pages, Pages]:
        """Return the distinct pages and how often each is given."""
        distinct, times = np.unique(np.asarray(pages, np.int32), return_counts=True)
        if distinct.size and not 0 <= distinct[0] <= distinct[-1] < self.pages:
            raise PositionError(f"a page is outside 0 to {self.pages - 1}: {distinct[0]} to {distinct[-1]} were given")
        return distinct, times.astype(np.int32)

    def _hold(self, pages: Numbers) -> None:
        """One more table holds pages of the index."""
        before = self.references[pages]
        self.references[pages] = before + 1
        self.shares[pages] = before + (1 + _INDEXED)
        idle = pages[before == 0] if before.any() else pages
        if self._num_pins:
            unheld, idle = idle, idle[self.pins[idle] == 0]
            self._pinned_only -= unheld.size - idle.size
        if idle.size:
            self.index.hold(idle)

    def _release(self, pages: Numbers) -> None:
        """One table fewer holds pages."""
        pages = pages.astype(np.intp)
        left = self.references[pages] - 1
        self.references[pages] = left
        self.shares[pages] -= 1
        done = pages[left == 0] if left.any() else pages
        if self._num_pins:
            pinned = self.pins[done] > 0
            self._pinned_only += int(np.count_nonzero(pinned))
            done = done[~pinned]
        self._let_go(done)

    def _let_go(self, pages: Numbers) -> None:
        """Pages that nobody holds or pins any more become cached, where they are indexed, or free."""
        if len(self.index):
            indexed = self.index.has(pages)
            if indexed.all():
                self.index.release(pages)
                return
            self.index.release(pages[indexed])
            pages = pages[~indexed]
        self._push(pages)

    def _unindex(self, pages: Pages) -> int:
        self.shares[pages] -= _INDEXED
        freed = pages[(self.references[pages] == 0) & (self.pins[pages] == 0)]
        self._push(freed[::-1])
        return int(freed.size)

    def _push(self, pages: Numbers) -> None:
        self._stack[self._stacked : self._stacked + pages.size] = pages[::-1]
        self._stacked += pages.size
