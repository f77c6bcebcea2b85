"""Requests that publish, share, cut, fork, pin and end in a kept pool, which is closed and opened again in between."""

import tempfile

from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, rule
from test_prefix_machine import PAGE_ROWS, PAGES, ROW_BYTES, PrefixMachine

from hisparse.host import HostPool
from hisparse.layout import RowFormat


class KeptMachine(PrefixMachine):
    """Whatever was done before a start, the rows found by key afterwards are what their keys mean."""

    def __init__(self) -> None:
        """Begin with an empty file."""
        super().__init__()
        self.pool.close()
        self.directory = tempfile.TemporaryDirectory()
        self.pool = self.opened()

    def opened(self) -> HostPool:
        """Open the pool."""
        return HostPool(PAGES, PAGE_ROWS, [RowFormat("test", 1, ROW_BYTES)], f"disk:{self.directory.name}?persist")

    @rule()
    def start_again(self) -> None:
        """All that was cached or published is found again; requests and transfers are gone."""
        published = {key for keys, _, _ in self.pool.ledger.index.entries() for key in keys}
        self.pool.close()
        self.pool = self.opened()
        self.model, self.pins, self.tokens_found = {}, [], 0
        found = {key for keys, _, _ in self.pool.ledger.index.entries() for key in keys}
        assert published <= found <= self.meaning.keys()
        assert self.pool.cached_pages == len(found)

    @invariant()
    def nothing_was_altered(self) -> None:
        """No page was found to be other than published, and none was torn."""
        assert self.pool.recovery is not None
        assert self.pool.recovery.ignored.keys() <= {"superseded", "orphaned"}

    def teardown(self) -> None:
        """Recount as in memory, and remove the file."""
        super().teardown()
        self.directory.cleanup()


TestKeptPool = KeptMachine.TestCase
TestKeptPool.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
