"""The prefix index: which pages hold which beginnings, and in which order they give way."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import AccountingError, StateError
from hisparse.host.chains import ROOT, PageChains, Run
from hisparse.host.times import PageTimes, Seconds
from hisparse.layout import PageKey
from hisparse.policies import make_policy

Pages = NDArray[np.int32]
Numbers = NDArray[np.integer]


class PrefixIndex:
    """Pages under chained keys.  A page is in use while its owner says so, idle otherwise.

    Only idle pages give way.  The policy orders runs of pages, not pages: a run without a branch is used from
    its beginning, so its last page is never worth more than those before it, and using 2000 pages again costs
    one call of the policy.  Within a run, and along a chain, the last page goes first; no page leaves before
    the pages that follow it.

    Attributes:
        queried_tokens: Tokens of full pages that admitted requests asked for; each request counts once.
        hit_tokens: Tokens of those that were found.
    """

    def __init__(self, pages: int, *, policy: str = "lru", clock: Callable[[], float] = time.monotonic) -> None:
        """Start without keys.

        Args:
            pages: Pages that can be indexed, 0 to `pages` - 1.
            policy: A name that `hisparse.policies.make_policy` knows.
            clock: Seconds; never goes back.

        Raises:
            SettingError: No policy has that name.
        """
        self._chains = PageChains(pages)
        self._policy = make_policy(policy)
        self._named: dict[int, Run] = {}
        self._idle = np.zeros(pages, np.bool_)
        self._num_idle = 0
        self._times = PageTimes(pages, clock)
        self.queried_tokens = 0
        self.hit_tokens = 0

    def __len__(self) -> int:
        """Return how many pages are indexed."""
        return len(self._chains)

    @property
    def idle_pages(self) -> int:
        """Indexed pages that are not in use."""
        return self._num_idle

    @property
    def dropped_times(self) -> int:
        """Samples that nobody took in time; see `take_times`."""
        return self._times.dropped

    def has(self, pages: Numbers) -> NDArray[np.bool_]:
        """Tell which of the pages are indexed, bool ``[P]``.  Reads only."""
        return self._chains.heads[pages] >= 0

    def lookup(self, keys: Sequence[PageKey]) -> Pages:
        """int32 ``[P]``: the pages of the longest indexed prefix of `keys`.  Reads only."""
        parts = [run.table(num_pages) for run, num_pages in self._chains.match(keys)]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def count_admission(self, *, queried: int, hit: int) -> None:
        """Count the tokens that one admitted request asked for and found."""
        self.queried_tokens += queried
        self.hit_tokens += hit

    def entries(self) -> Iterator[tuple[list[PageKey], Pages, PageKey | None]]:
        """Yield keys, pages and the key before the first, run by run, parents first.  Reads only."""
        for run in self._chains.runs():
            before = None if run.parent == ROOT else self._chains.run_of(run.parent).keys[-1]
            yield list(run.keys), run.table(), before

    def insert(self, keys: Sequence[PageKey], pages: Pages, *, first: int = 0) -> Pages:
        """Index pages that are in use; a key that is there keeps the page it has.

        Args:
            keys: A chain of keys from its beginning.
            pages: int32, the page of each.
            first: Leading keys that were indexed before, not looked at again unless they are gone.

        Returns:
            The pages that entered the index.

        Raises:
            StateError: A page is indexed under another key, or a key or page is given twice; nothing was changed.
        """
        known = first if first and self._chains.known(keys[first - 1]) is not None else 0
        while known < len(keys) and self._chains.known(keys[known]) is not None:
            known += 1
        added, new = pages[known : len(keys)], list(keys[known:])
        if not new:
            return added
        if self.has(added).any():
            raise StateError(f"page {added[self.has(added)][0]} is indexed already, under another key")
        if len(set(new)) < len(new) or np.unique(added).size < added.size:
            raise StateError(f"a key or page is given twice among the {len(new)} to be indexed")
        parent = cast("int", self._chains.known(keys[known - 1])) if known else ROOT
        if parent != ROOT:
            run = self._chains.run_of(parent)
            if run.pages[-1] != parent:
                self._split(run, run.pages.index(parent) + 1)
        run = self._chains.append(parent, new, added.tolist())
        self._named[run.name] = run
        self._times.enter(added)
        return added

    def adopt(self, chains: Iterable[tuple[Sequence[PageKey], Pages]], free: NDArray[np.bool_]) -> None:
        """Index pages under chains of keys, each from its beginning, idle from the start.

        Args:
            chains: Keys and int32 pages.
            free: bool ``[pages]``, what may be indexed; becomes False where it is.

        Raises:
            StateError: A page is not free, or a key or page is given twice; of its chain nothing was changed.
        """
        for keys, pages in chains:
            if len(pages) != len(keys):
                raise StateError(f"{len(pages)} pages were given for {len(keys)} keys")
            added = pages[self.lookup(keys).size :]
            if not free[added].all():
                raise StateError(f"page {added[~free[added]][0]} is not free: it cannot be adopted under a key")
            entered = self.insert(keys, pages)
            free[entered] = False
            self.release(entered)

    def reuse(self, pages: Numbers) -> None:
        """Note that pages, a chain from its beginning, are used again.

        Raises:
            StateError: They are not indexed as a chain any more; nothing was changed.
        """
        path = self._chains.path(pages)
        if not path:
            return
        self._split(*path[-1])
        self._times.reuse(pages)
        last = self._chains.run_of(int(pages[-1]))
        for run in (last, *(run for run, _ in reversed(path[:-1]))):
            if run.idle:
                self._policy.touch(run.name)

    def hold(self, pages: Numbers) -> None:
        """Idle pages are in use from now on."""
        self._idle[pages] = False
        self._num_idle -= pages.size
        for run, num_pages in self._by_run(pages):
            run.idle -= num_pages
            if not run.idle:
                self._policy.remove(run.name)

    def release(self, pages: Numbers) -> None:
        """Pages in use are idle from now on; the last ones of a chain are the first to go."""
        self._idle[pages] = True
        self._num_idle += pages.size
        self._times.leave_use(pages)
        for run, num_pages in self._by_run(pages):
            run.idle += num_pages
            if run.idle == num_pages:
                self._policy.insert(run.name)
            else:
                self._policy.touch(run.name)

    def evict(self, num_pages: int) -> Pages:
        """Take idle pages out of the index, `num_pages` or as many as there are.

        Pages in use that follow an evicted one leave the index too.

        Returns:
            All pages that left, the last of a chain first.
        """
        left = [np.empty(0, np.int32)]
        wanted = min(num_pages, self._num_idle)
        while wanted:
            victim = self._named[cast("int", self._policy.victim())]
            pages = self._cut(self._chains.leaf(victim), wanted, whole=bool(victim.branches))
            wanted -= int(np.count_nonzero(self._idle[pages]))
            self._forget(pages)
            left.append(pages)
        return np.concatenate(left)

    def remove(self, page: int) -> Pages:
        """Take an indexed page and all that follow it out of the index; returns them, the last of a chain first."""
        run = self._chains.run_of(page)
        if run.pages[0] != page:
            self._split(run, run.pages.index(page))
        left = [np.empty(0, np.int32)]
        while run.pages:
            left.append(self._cut(self._chains.leaf(run), self._num_idle + 1, whole=True))
            self._forget(left[-1])
        return np.concatenate(left)

    def clear(self) -> Pages:
        """Forget every key; returns all pages that were indexed."""
        left = [np.empty(0, np.int32)]
        for run in reversed(self._chains.runs()):
            left.append(self._cut(run, self._num_idle + 1, whole=True))
            self._forget(left[-1], evicted=False)
        return np.concatenate(left)

    def take_times(self) -> dict[str, Seconds]:
        """Return durations in seconds since the last take, and forget them.

        At most 65,536 of a kind are kept, then the oldest go and `dropped_times` counts them.

        Returns:
            For each field of `HiSparseKVConnectorStats.record_residency`: at eviction, the lifetime of each page
            in the index and its time since the last use; at each reuse, the time since the use before.
        """
        return self._times.take()

    def check(self) -> None:
        """Recount chains, idle pages and what the policy has.  Reads only.

        Raises:
            AccountingError: They do not agree; the message says where.
        """
        self._chains.check()
        runs = self._chains.runs()
        for run in runs:
            idle = int(np.count_nonzero(self._idle[run.table()]))
            if idle != run.idle or self._named.get(run.name) is not run:
                raise AccountingError(f"{idle} pages of the run {run} are idle, {run.idle} were kept")
        idle, offered = int(np.count_nonzero(self._idle)), sum(1 for run in runs if run.idle)
        if idle != self._num_idle or sum(run.idle for run in runs) != idle:
            raise AccountingError(f"{idle} pages are idle, {self._num_idle} were kept")
        if offered != len(self._policy) or len(self._named) != len(runs):
            raise AccountingError(
                f"{offered} of {len(runs)} runs have idle pages, the policy has {len(self._policy)} of "
                f"{len(self._named)}"
            )

    def _by_run(self, pages: Numbers) -> list[tuple[Run, int]]:
        """Return the runs of indexed pages with the pages of each, the last of a chain first."""
        heads = self._chains.heads[pages]
        cuts = [0, *((heads[1:] != heads[:-1]).nonzero()[0] + 1).tolist(), heads.size]
        return [
            (self._chains.run_of(int(pages[one])), other - one) for one, other in reversed([*pairwise(cuts)]) if other
        ]

    def _split(self, run: Run, num_pages: int) -> None:
        """Let a run end behind its first `num_pages` pages; the rest, if any, keeps its place in the policy."""
        if num_pages == len(run.pages):
            return
        upper = self._chains.split(run, num_pages)
        self._named[upper.name] = upper
        upper.idle = int(np.count_nonzero(self._idle[upper.table()]))
        if upper.idle:
            run.idle -= upper.idle
            self._policy.insert(upper.name)
            if not run.idle:
                self._policy.remove(run.name)

    def _cut(self, run: Run, wanted: int, *, whole: bool) -> Pages:
        """Cut a run without branches until `wanted` idle pages or, unless it shall go whole, all idle ones are out."""
        idle = self._idle[run.table()[::-1]]
        stop = np.flatnonzero(np.cumsum(idle) >= (wanted if whole else min(wanted, run.idle)))
        pages = self._chains.cut(run, int(stop[0]) + 1 if stop.size else idle.size)
        had, gone = run.idle, int(np.count_nonzero(idle[: pages.size]))
        run.idle -= gone
        if had and not run.idle:
            self._policy.remove(run.name)
        if not run.pages:
            del self._named[run.name]
        return pages

    def _forget(self, pages: Pages, *, evicted: bool = True) -> None:
        idle = pages[self._idle[pages]]
        self._idle[idle] = False
        self._num_idle -= idle.size
        if evicted:
            self._times.evict(idle)
