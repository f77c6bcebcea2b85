"""Requests that publish, share, cut, fork, pin and end, against the rows that their tokens mean."""

from collections.abc import Callable
from hashlib import sha256

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hisparse.errors import HostPoolFullError, StateError
from hisparse.host import HostPool, RequestPages
from hisparse.layout import RowFormat, page_keys, pages_for

PAGES, PAGE_ROWS, LONGEST, ROW_BYTES = 14, 2, 15, 8
letters = st.sampled_from(["", "a", "b", "ab", "bba", "abab", "aaaaa", "babbab"])


def rows_of(tokens: str) -> np.ndarray:
    """Return the rows of tokens: a row is decided by its token and by all before it."""
    rows = [sha256(tokens[: end + 1].encode()).digest()[:ROW_BYTES] for end in range(len(tokens))]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(tokens), ROW_BYTES)


def keys_of(tokens: str) -> list[bytes]:
    """Return the keys of the full pages of tokens."""
    return page_keys(list(tokens.encode()), PAGE_ROWS, model="m", revision=None, dtype="u1", row_format="test")


class PrefixMachine(RuleBasedStateMachine):
    """A request is its tokens.  Whatever is done to others, its rows, and those found by key, are what they mean."""

    def __init__(self) -> None:
        """Begin with an empty pool."""
        super().__init__()
        self.pool = HostPool(PAGES, PAGE_ROWS, [RowFormat("test", 1, ROW_BYTES)])
        self.model: dict[RequestPages, str] = {}
        self.pins: list[np.ndarray] = []
        self.meaning: dict[bytes, str] = {}
        self.tokens_found = 0

    def held(self) -> set[int]:
        """Return the pages in tables."""
        return {int(page) for request in self.model for page in request.pages}

    def pinned_only(self) -> set[int]:
        """Return the pages that only a transfer keeps."""
        return {int(page) for pages in self.pins for page in pages} - self.held()

    def promised(self) -> int:
        """Return the pages promised."""
        return sum(request.promised_pages for request in self.model)

    def some(self, data: st.DataObject) -> RequestPages:
        """Draw a request."""
        return data.draw(st.sampled_from(list(self.model)))

    @rule(data=st.data(), more=letters, max_positions=st.sampled_from([1, 4, 5, 8, 10, 12, LONGEST]))
    def admit(self, data: st.DataObject, more: str, max_positions: int) -> None:
        """A request begins like one before it; it has the rows that are found, and computes the others."""
        indexed = {self.meaning[key] for keys, _, _ in self.pool.ledger.index.entries() for key in keys}
        known = sorted(indexed or {"", *self.model.values(), *self.meaning.values()})
        prompt = (data.draw(st.sampled_from(known)) + more)[:max_positions]
        keys = keys_of(prompt)
        found = self.pool.ledger.index.lookup(keys).tolist()
        fits = self.promised() + len(self.pinned_only()) + pages_for(max_positions, PAGE_ROWS) <= PAGES
        try:
            request = self.pool.admit(max_positions, keys=keys)
        except HostPoolFullError:
            assert not fits
            return
        assert fits
        assert request.pages.tolist() == found
        assert request.length == len(found) * PAGE_ROWS
        self.tokens_found += request.length
        self.model[request] = prompt[: request.length]
        self.compute(request, prompt)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), more=letters)
    def extend(self, data: st.DataObject, more: str) -> None:
        """A request grows by tokens; the pages it was promised are there, whatever is cached."""
        request = self.some(data)
        self.compute(request, (self.model[request] + more)[: request.max_positions])

    def compute(self, request: RequestPages, tokens: str) -> None:
        """Let a request have the rows of tokens that continue its own."""
        first = request.length
        if not self.may_refuse(lambda: request.extend(len(tokens))):
            return
        self.pool.write(0, request.rows(np.arange(first, len(tokens))), rows_of(tokens)[first:])
        self.model[request] = tokens

    def may_refuse(self, change: Callable[[], None]) -> bool:
        """Make a change that only a page in flight may forbid; return whether it was made."""
        free = self.pool.free_pages
        try:
            change()
        except HostPoolFullError:
            assert free < len({int(page) for pages in self.pins for page in pages})
            return False
        return True

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """A request is cut anywhere, into a published page too."""
        request = self.some(data)
        length = max(0, request.length - data.draw(st.integers(0, 5)))
        if self.may_refuse(lambda: request.truncate(length)):
            self.model[request] = self.model[request][:length]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        """A request publishes some of its full pages; what is published twice is refused only under another key."""
        request = self.some(data)
        keys = keys_of(self.model[request])
        keys = keys[: len(keys) - data.draw(st.sampled_from([0, 0, 1, 2]))]
        self.index(request, keys)

    def index(self, request: RequestPages, keys: list[bytes]) -> None:
        """Publish a request under its first keys, and keep what they mean."""
        request.publish(keys)
        for number, key in enumerate(keys):
            self.meaning[key] = self.model[request][: (number + 1) * PAGE_ROWS]
        assert self.pool.ledger.index.lookup(keys).size == len(keys)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def rearrange(self, data: st.DataObject) -> None:
        """Requests are dropped, reordered and repeated, or nothing happens for want of room."""
        given = data.draw(st.permutations(list(self.model)).map(lambda order: order[:3]))
        sources = data.draw(st.lists(st.integers(0, len(given) - 1), min_size=len(given) - 1, max_size=4))
        before = self.pool.free_pages, [request.length for request in given]
        try:
            result = self.pool.rearrange(given, sources)
        except HostPoolFullError:
            assert all(request.is_open for request in given)
            assert before == (self.pool.free_pages, [request.length for request in given])
            return
        old = [self.model.pop(request) for request in given]
        self.model.update({request: old[source] for source, request in zip(sources, result, strict=True)})

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """A request ends, most often published, also with pages in flight."""
        request = self.some(data)
        if data.draw(st.integers(0, 3)):
            self.index(request, keys_of(self.model[request]))
        request.close()
        del self.model[request]

    @precondition(lambda self: self.model and len(self.pins) < 4)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        """A transfer of some of a request's pages begins."""
        pages = self.some(data).pages
        if pages.size:
            chosen = data.draw(st.lists(st.sampled_from(pages.tolist()), min_size=1, max_size=4))
            self.pool.ledger.pin(np.array(chosen, np.int32))
            self.pins.append(np.array(chosen, np.int32))

    @precondition(lambda self: len(self.pins) < 4)
    @rule(data=st.data())
    def pin_any(self, data: st.DataObject) -> None:
        """A page can be pinned unless it is free, or cached and promised to somebody."""
        page = data.draw(st.integers(0, PAGES - 1))
        ledger = self.pool.ledger
        needed = page not in self.held() | self.pinned_only()
        cached = bool(ledger.index.has(np.array([page]))[0])
        try:
            ledger.pin(np.array([page], np.int32))
        except StateError:
            assert needed
            assert not cached
        except HostPoolFullError:
            assert needed
            assert cached
            assert self.pool.free_pages == 0
        else:
            self.pins.append(np.array([page], np.int32))

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        """A transfer ends, in any order, once."""
        pages = self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1)))
        self.pool.ledger.unpin(pages)

    @precondition(lambda self: self.pool.cached_pages)
    @rule(num_pages=st.integers(0, 5))
    def evict(self, num_pages: int) -> None:
        """As many pages are evicted as asked for, or all that are cached."""
        cached = self.pool.cached_pages
        assert self.pool.ledger.evict(num_pages) == min(num_pages, cached)

    @precondition(lambda self: len(self.pool.ledger.index) > PAGES // 2)
    @rule(really=st.integers(0, 9))
    def forget(self, really: int) -> None:
        """All keys are forgotten, once in a while; nobody loses a row."""
        if really:
            return
        self.pool.ledger.clear_index()
        assert self.pool.cached_pages == 0
        assert len(self.pool.ledger.index) == 0

    @invariant()
    def pages_add_up(self) -> None:
        """Free, used, reserved and cached pages are what the requests and transfers say."""
        pool, held, pinned_only = self.pool, self.held(), self.pinned_only()
        pool.check()
        assert pool.used_pages == len(held | pinned_only)
        assert pool.free_pages == PAGES - self.promised() - len(pinned_only)
        assert pool.free_pages >= 0
        assert pool.prefix_hit_tokens == self.tokens_found

    @invariant()
    def rows_are_what_they_mean(self) -> None:
        """Every row of every request, and of every page that a key finds, is the row of its tokens."""
        for request, tokens in self.model.items():
            out = np.empty((len(tokens), ROW_BYTES), np.uint8)
            self.pool.read(0, request.rows(np.arange(len(tokens))), out)
            np.testing.assert_array_equal(out, rows_of(tokens))
        stored = self.pool._storage.rows(0).reshape(PAGES, PAGE_ROWS, ROW_BYTES)
        for keys, pages, _ in self.pool.ledger.index.entries():
            for key, page in zip(keys, pages, strict=True):
                np.testing.assert_array_equal(stored[page], rows_of(self.meaning[key])[-PAGE_ROWS:])

    def teardown(self) -> None:
        """Once requests and transfers have ended and keys are forgotten, every page is free."""
        for request in self.model:
            request.close()
        for pages in self.pins:
            self.pool.ledger.unpin(pages)
        self.pool.check()
        assert self.pool.used_pages == 0
        self.pool.ledger.clear_index()
        assert self.pool.ledger._stacked == PAGES
        assert not self.pool.ledger.references.any()
        self.pool.close()


TestPrefixPool = PrefixMachine.TestCase
TestPrefixPool.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
