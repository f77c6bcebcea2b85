"""A pool against a dictionary, over any order of calls."""

import tempfile
from typing import ClassVar

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from hisparse.errors import HostPoolFullError
from hisparse.host import HostPool, RequestPages
from hisparse.layout import RowFormat, pages_for

PAGES, PAGE_ROWS, LONGEST = 12, 4, 19
ROW_BYTES = (24, 13)

lengths = st.integers(0, LONGEST)


class PoolMachine(RuleBasedStateMachine):
    """Every rule changes the pool and a dictionary of plain rows alike; after each the pages are recounted.

    The model of a request is its list of row values; row value v is v in every byte of layer 0 and v ^ 255 in
    layer 1.
    """

    storage: ClassVar[str]
    requests = Bundle("requests")

    def __init__(self) -> None:
        """Begin with an empty pool and an empty model."""
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        where = "ram" if self.storage == "ram" else f"disk:{self.directory.name}"
        self.pool = HostPool(PAGES, PAGE_ROWS, [RowFormat("test", 1, size) for size in ROW_BYTES], where)
        self.model: dict[RequestPages, list[int]] = {}
        self.written = 0

    def promised(self) -> int:
        """Return the pages promised, by the model."""
        return sum(pages_for(request.max_positions, PAGE_ROWS) for request in self.model)

    @rule(target=requests, max_positions=st.integers(1, LONGEST))
    def admit(self, max_positions: int) -> object:
        """A request is admitted exactly when its pages are free."""
        fits = self.promised() + pages_for(max_positions, PAGE_ROWS) <= PAGES
        try:
            request = self.pool.admit(max_positions)
        except HostPoolFullError:
            assert not fits
            return multiple()
        assert fits
        self.model[request] = []
        return request

    @rule(request=requests, length=lengths)
    def extend(self, request: RequestPages, length: int) -> None:
        """An open request grows to any promised length; the new rows are written at once."""
        if request not in self.model or not request.length <= length <= request.max_positions:
            return
        rows = self.model[request]
        first = request.length
        request.extend(length)
        values = [(self.written + idx) % 256 for idx in range(length - first)]
        self.written += len(values)
        self.write(request, list(range(first, length)), values)
        rows += values

    def write(self, request: RequestPages, positions: list[int], values: list[int]) -> None:
        """Write row values in both layers."""
        rows = request.rows(np.array(positions, np.int64))
        for layer, size in enumerate(ROW_BYTES):
            data = np.array(values, np.uint8)[:, None] ^ np.uint8(255 * layer)
            self.pool.write(layer, rows, np.repeat(data, size, axis=1))

    @rule(request=requests, data=st.data())
    def rewrite(self, request: RequestPages, data: st.DataObject) -> None:
        """A row is rewritten after a cut before it: the request then owns it, whoever shared it."""
        if not self.model.get(request):
            return
        position = data.draw(st.integers(0, request.length - 1))
        request.truncate(position)
        request.extend(position + 1)
        self.write(request, [position], [self.written % 256])
        self.model[request][position:] = [self.written % 256]
        self.written += 1

    @rule(request=requests, length=lengths)
    def truncate(self, request: RequestPages, length: int) -> None:
        """An open request is cut to any length up to its own."""
        if request in self.model and length <= request.length:
            request.truncate(length)
            del self.model[request][length:]

    @rule(target=requests, data=st.data())
    def rearrange(self, data: st.DataObject) -> object:
        """Some requests are reordered, repeated and dropped, or nothing happens for want of room."""
        given = data.draw(st.permutations(list(self.model)).map(lambda order: order[:4]))
        if not given:
            return multiple()
        sources = data.draw(st.lists(st.integers(0, len(given) - 1), max_size=5))
        need = [pages_for(request.max_positions, PAGE_ROWS) for request in given]
        after = self.promised() - sum(need) + sum(need[source] for source in sources)
        try:
            result = self.pool.rearrange(given, sources)
        except HostPoolFullError:
            assert after > PAGES
            return multiple()
        assert after <= PAGES
        old = [self.model.pop(request) for request in given]
        for source, request in zip(sources, result, strict=True):
            self.model[request] = list(old[source])
        assert all(request.is_open == (request in self.model) for request in given)
        return multiple(*(request for request in result if request not in given))

    @rule(request=consumes(requests))
    def close(self, request: RequestPages) -> None:
        """A closed request gives all back."""
        request.close()
        self.model.pop(request, None)

    @invariant()
    def pages_add_up(self) -> None:
        """Free, used and reserved are what the model says."""
        self.pool.check()
        held = {int(page) for request in self.model for page in request.pages}
        assert self.pool.used_pages == len(held)
        assert self.pool.reserved_pages == self.promised() - len(held)
        assert self.pool.free_pages == PAGES - self.promised()

    @invariant()
    def rows_are_what_was_written(self) -> None:
        """Every row of every request reads back."""
        for request, values in self.model.items():
            assert request.length == len(values)
            rows = request.rows(np.arange(len(values)))
            for layer, size in enumerate(ROW_BYTES):
                out = np.empty((len(values), size), np.uint8)
                assert self.pool.gather(layer, rows, out) == out.size
                assert (out == np.array(values, np.uint8)[:, None] ^ np.uint8(255 * layer)).all()

    def teardown(self) -> None:
        """Nothing is left once all requests are closed."""
        for request in list(self.model):
            request.close()
        self.pool.check()
        assert (self.pool.free_pages, self.pool.used_pages, self.pool.reserved_pages) == (PAGES, 0, 0)
        self.pool.close()
        self.directory.cleanup()


class RamMachine(PoolMachine):
    """The machine over memory."""

    storage = "ram"


class FileMachine(PoolMachine):
    """The machine over a file."""

    storage = "disk"


TestRamPool = RamMachine.TestCase
TestRamPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFilePool = FileMachine.TestCase
TestFilePool.settings = settings(
    max_examples=20, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
