"""Whatever the device does and in whichever order, what is handed out is what was counted."""

from faking import Clock, Device, Ledger
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hisparse.connectors import HiSparseConnectorWorker

NEVER = 10**9


class WorkerMachine(RuleBasedStateMachine):
    """Steps, delays, captures, failures, flushes, resets and an end, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.device, self.clock, self.ledger = Device(), Clock(), Ledger()
        self.worker = HiSparseConnectorWorker(
            self.device, every_calls=3, flush_seconds=0.01, clock=self.clock, wait=self.clock.wait
        )
        self.hits = self.misses = self.fetches = 0
        self.is_shut_down = False

    def drain(self) -> None:
        """Take what is handed out."""
        before = self.clock.now
        self.ledger.take(self.worker.get_kv_connector_stats())
        assert self.clock.now == before, "a step waited"

    def is_easy(self) -> bool:
        """Whether the device gives a copy within a flush."""
        return self.device.looks < 10 and not self.device.is_capturing and self.device.error is None

    @precondition(lambda self: not self.is_shut_down)
    @rule(hits=st.integers(0, 9), misses=st.integers(0, 9), group=st.sampled_from([0, 1]))
    def step(self, hits: int, misses: int, group: int) -> None:
        """One step of the engine."""
        self.device.count(hits, misses, group=group)
        self.hits, self.misses, self.fetches = self.hits + hits, self.misses + misses, self.fetches + 1
        self.drain()

    @rule(seconds=st.sampled_from([0.1, 1.0, 30.0]))
    def idle(self, seconds: float) -> None:
        """Time passes, and the engine asks without a step."""
        self.clock.now += seconds
        self.drain()

    @rule(looks=st.sampled_from([0, 1, 2, 5, NEVER]), is_capturing=st.booleans(), fails=st.booleans())
    def change(self, looks: int, *, is_capturing: bool, fails: bool) -> None:
        """The device answers otherwise from the next request on."""
        self.device.looks, self.device.is_capturing = looks, is_capturing
        self.device.error = OSError("no device") if fails else None

    @rule()
    def settle(self) -> None:
        """The device behaves, and what it never delivered arrives."""
        self.device.looks, self.device.is_capturing, self.device.error = 0, False, None
        for copy in self.device.copies:
            copy.looks = 0

    @precondition(lambda self: not self.is_shut_down)
    @rule(resets=st.booleans())
    def flush(self, *, resets: bool) -> None:
        """A flush, and a reset of the counters after it where everything could be had."""
        is_exact = self.is_easy() and all(copy.looks < 10 for copy in self.device.copies[-1:])
        self.worker.flush()
        if is_exact:
            self.drain()
            self.assert_exact()
            if resets:
                self.device.reset()

    @precondition(lambda self: not self.is_shut_down)
    @rule()
    def shut_down(self) -> None:
        """The end, at which everything is handed out if the device can give it."""
        self.settle()
        self.worker.shutdown()
        self.is_shut_down = True
        self.drain()
        self.assert_exact()

    @invariant()
    def nothing_is_made_up(self) -> None:
        """Totals handed out never exceed what was counted."""
        hits, misses = self.ledger.selections
        assert (hits <= self.hits, misses <= self.misses) == (True, True)
        assert self.ledger.loaded_bytes <= 16 * self.misses

    def assert_exact(self) -> None:
        """Assert that totals handed out are what was counted."""
        assert self.ledger.selections == (self.hits, self.misses)
        assert self.ledger.loaded_bytes == 16 * self.misses
        by_group = [self.ledger["hisparse_hot_selections_total", "miss", group] for group in ("0", "1")]
        assert sum(by_group) == self.misses
        if self.fetches:
            assert self.ledger["hisparse_hot_gather_seconds",].count == self.fetches
        assert self.ledger.age == 0


WorkerMachine.TestCase.settings = settings(deadline=None, max_examples=120, stateful_step_count=40)
TestWorkerMachine = WorkerMachine.TestCase
