"""Which page is indexed under which key: chains of pages, kept as runs without branches."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import AccountingError, StateError
from hisparse.layout import PageKey

ROOT = -1


@dataclass(slots=True, eq=False)
class Run:
    """Pages that follow each other, with branches only behind the last; compared by identity.

    What is done to a request's pages is done run by run: a prefix of 2000 pages is nearly always one or two.

    Attributes:
        name: What a policy knows the run by.
        parent: The page before the first, `ROOT` where a chain begins.
        keys: The key of each page.
        pages: int32, the pages.
        branches: First pages of the runs that follow the last page.
        idle: Pages that nobody holds.
    """

    name: int
    parent: int
    keys: list[PageKey] = field(default_factory=list, repr=False)
    pages: "array[int]" = field(default_factory=lambda: array("i"), repr=False)
    branches: set[int] = field(default_factory=set)
    idle: int = 0

    def table(self, num_pages: int | None = None) -> NDArray[np.int32]:
        """int32: the first `num_pages` pages, or all (a copy)."""
        return np.frombuffer(self.pages, np.int32)[:num_pages].copy()


class PageChains:
    """Keys and pages of one index, without an opinion on who holds them.

    Attributes:
        heads: int32 ``[pages]``, the first page of each indexed page's run, -1 where a page is not indexed.
    """

    def __init__(self, pages: int) -> None:
        """Start with none of `pages` pages indexed."""
        self.heads = np.full(pages, -1, np.int32)
        self._page_of: dict[PageKey, int] = {}
        self._runs: dict[int, Run] = {}
        self._names = count()

    def __len__(self) -> int:
        """Return how many pages are indexed."""
        return len(self._page_of)

    def runs(self) -> list[Run]:
        """Return all runs, parents before their branches.  Reads only."""
        found = [run for run in self._runs.values() if run.parent == ROOT]
        for run in found:
            found += [self._runs[branch] for branch in sorted(run.branches)]
        return found

    def run_of(self, page: int) -> Run:
        """Return the run of an indexed page.  Reads only."""
        return self._runs[int(self.heads[page])]

    def known(self, key: PageKey) -> int | None:
        """Return the page indexed under a key, or None.  Reads only."""
        return self._page_of.get(key)

    def match(self, keys: Sequence[PageKey]) -> list[tuple[Run, int]]:
        """Return the runs that hold the longest indexed prefix of `keys`, with the pages of each in it.

        A key stands for its page and all before it, so where two chains agree at a depth they agree before it,
        and a few keys of each run are compared.  Reads only.
        """
        found, parent, start = list[tuple[Run, int]](), ROOT, 0
        while start < len(keys):
            run = self._runs.get(self._page_of.get(keys[start], ROOT))
            if run is None or run.parent != parent:
                break
            same = _common(run.keys, keys, start)
            found.append((run, same))
            if same < len(run.keys):
                break
            parent, start = run.pages[-1], start + same
        return found

    def path(self, pages: NDArray[np.integer]) -> list[tuple[Run, int]]:
        """Return the runs that hold `pages`, which must be a chain from its beginning.  Reads only.

        Raises:
            StateError: They are not, or not any more.
        """
        found, parent, start = list[tuple[Run, int]](), ROOT, 0
        while start < pages.size:
            run = self._runs.get(int(pages[start]))
            asked = pages[start : start + len(run.pages)] if run else pages[:0]
            if run is None or run.parent != parent or not np.array_equal(run.table(asked.size), asked):
                raise StateError(f"page {pages[start]} does not continue an indexed prefix; look its keys up again")
            found.append((run, asked.size))
            parent, start = run.pages[-1] if asked.size == len(run.pages) else ROOT - 1, start + asked.size
        return found

    def append(self, parent: int, keys: Sequence[PageKey], pages: Sequence[int]) -> Run:
        """Index pages under their keys, behind the last page of a run; returns the run they are in.

        Args:
            parent: The page before them, the last of its run, or `ROOT`.
            keys: Keys that are not indexed.
            pages: Pages that are not indexed, as many.
        """
        before = self.run_of(parent) if parent != ROOT else None
        if before is not None and not before.branches:
            run = before
        else:
            run = self._runs[pages[0]] = Run(next(self._names), parent)
            if before is not None:
                before.branches.add(pages[0])
        run.keys.extend(keys)
        run.pages.extend(pages)
        self.heads[list(pages)] = run.pages[0]
        self._page_of.update(zip(keys, pages, strict=True))
        return run

    def split(self, run: Run, num_pages: int) -> Run:
        """Cut a run behind its first `num_pages` pages, fewer than it has; returns the new run of those.

        What follows stays the run it was, with its name.  Idle pages are the caller's to count again.
        """
        head, branch = run.pages[0], run.pages[num_pages]
        upper = Run(next(self._names), run.parent, run.keys[:num_pages], run.pages[:num_pages], {branch})
        del run.keys[:num_pages], run.pages[:num_pages]
        run.parent = upper.pages[-1]
        self._runs[head], self._runs[branch] = upper, run
        self.heads[run.table()] = branch
        return upper

    def cut(self, run: Run, num_pages: int) -> NDArray[np.int32]:
        """Take the last `num_pages` pages of a run without branches out of the index; returns them, last first."""
        kept = len(run.pages) - num_pages
        pages = run.table()[kept:][::-1]
        for key in run.keys[kept:]:
            del self._page_of[key]
        self.heads[pages] = -1
        del run.keys[kept:], run.pages[kept:]
        if not kept:
            del self._runs[int(pages[-1])]
            if run.parent != ROOT:
                self.run_of(run.parent).branches.remove(int(pages[-1]))
        return pages

    def leaf(self, run: Run) -> Run:
        """Return a run without branches behind `run`, or itself.  Reads only."""
        while run.branches:
            run = self._runs[max(run.branches)]
        return run

    def check(self) -> None:
        """Recount runs, keys and pages.  Reads only.

        Raises:
            AccountingError: They do not agree; the message says where.
        """
        runs = self.runs()
        counted = sum(len(run.pages) for run in runs)
        indexed = int(np.count_nonzero(self.heads >= 0))
        if len(runs) != len(self._runs) or not counted == indexed == len(self._page_of):
            raise AccountingError(
                f"{counted} pages in {len(runs)} of {len(self._runs)} runs follow from a beginning, "
                f"{indexed} are marked as indexed, {len(self._page_of)} have a key"
            )
        for run in runs:
            pages = run.pages.tolist()
            if not pages or [self._page_of.get(key) for key in run.keys] != pages:
                raise AccountingError(f"the pages {pages} are not those of their keys")
            if (self.heads[pages] != pages[0]).any():
                raise AccountingError(f"the pages {pages} are not marked as one run")
            if run.parent != ROOT and self.run_of(run.parent).pages[-1] != run.parent:
                raise AccountingError(f"page {pages[0]} follows page {run.parent}, which is not the last of its run")


def _common(own: list[PageKey], keys: Sequence[PageKey], start: int) -> int:
    """Return how many of `own`, whose first agrees, are those of `keys` from `start` on."""
    least, most = 1, min(len(own), len(keys) - start)
    middle = most
    while least < most:
        if own[middle - 1] == keys[start + middle - 1]:
            least = middle
        else:
            most = middle - 1
        middle = (least + most + 1) // 2
    return least
