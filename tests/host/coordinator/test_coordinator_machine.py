"""Any order of calls, against workers that keep real rows; `tools/fuzz_coordinator.py` does the same for hours."""

from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulated_workers import World, family_keys

NAMES = "abcdef"


class CoordinatorMachine(RuleBasedStateMachine):
    """Every rule calls the coordinator and lets simulated workers follow; then all is recounted and all rows read."""

    options: ClassVar[dict[str, Any]]

    @initialize(
        workers=st.integers(1, 3),
        device_pages=st.integers(7, 20),
        hot_pages=st.integers(0, 4),
        max_spill_pages=st.sampled_from([1, 4]),
    )
    def begin(self, **sizes: int) -> None:
        """Begin with every page free."""
        self.world = World(**sizes, **self.options)

    def pick(self, data: st.DataObject, names: list[str]) -> str:
        """Return one of the names."""
        return data.draw(st.sampled_from(sorted(names)))

    @rule(
        name=st.sampled_from(NAMES),
        pages=st.integers(1, 10),
        family=st.integers(0, 2),
        spare_rows=st.integers(0, 3),
        told=st.sampled_from([None, None, 0, 1]),
    )
    def admit(self, *, name: str, pages: int, family: int, spare_rows: int, told: int | None) -> None:
        """A request is admitted with what is found of its prefix, or nothing changes."""
        if name not in self.world.models:
            keys = family_keys(family, pages - 1) if family else []
            self.world.admit(name, pages * 4 - spare_rows, keys, told=told)

    @precondition(lambda self: self.world.running())
    @rule(data=st.data(), rows=st.integers(0, 17), lookahead=st.integers(0, 3), tells_keys=st.booleans())
    def append(self, data: st.DataObject, rows: int, lookahead: int, *, tells_keys: bool) -> None:
        """A running request gets longer, or nothing changes."""
        self.world.append(self.pick(data, self.world.running()), rows, lookahead, tells_keys=tells_keys)

    @rule()
    def step(self) -> None:
        """A plan is made and followed."""
        self.world.step()

    @precondition(lambda self: self.world.in_flight)
    @rule(data=st.data(), is_good=st.sampled_from([True, True, True, False]))
    def answer(self, data: st.DataObject, *, is_good: bool) -> None:
        """One worker carries out one transfer, in any order, once or again, or fails to."""
        transfer_id = data.draw(st.sampled_from(sorted(self.world.in_flight)))
        missing = self.world.in_flight[transfer_id][1]
        workers = range(len(self.world.workers)) if is_good else sorted(missing)
        self.world.answer(transfer_id, data.draw(st.sampled_from(workers)), is_good=is_good)

    @rule(newest_first=st.booleans())
    def answer_all(self, *, newest_first: bool) -> None:
        """Every worker carries out everything."""
        self.world.answer_all(newest_first=newest_first)

    @precondition(lambda self: self.world.in_flight)
    @rule(data=st.data())
    def fail_for_all(self, data: st.DataObject) -> None:
        """A transfer ends badly for all workers."""
        self.world.fail_for_all(data.draw(st.sampled_from(sorted(self.world.in_flight))))

    @rule(transfer_id=st.integers(-1, 400))
    def answer_out_of_turn(self, transfer_id: int) -> None:
        """Acknowledgements of what has landed or never was change nothing."""
        if transfer_id not in self.world.in_flight:
            before = self.world.fingerprint()
            self.world.coordinator.acknowledge(transfer_id)
            self.world.coordinator.fail_transfer(transfer_id)
            assert self.world.fingerprint() == before

    @precondition(lambda self: self.world.models)
    @rule(data=st.data(), how=st.sampled_from(["finish", "abort", "fail"]), flush=st.booleans())
    def end(self, data: st.DataObject, how: str, *, flush: bool) -> None:
        """A request ends, running or waiting, with transfers in flight or not."""
        self.world.end(self.pick(data, list(self.world.models)), how, flush=flush)

    @precondition(lambda self: self.world.running())
    @rule(data=st.data(), flush=st.booleans())
    def preempt(self, data: st.DataObject, *, flush: bool) -> None:
        """A running request is taken off the device."""
        self.world.preempt(self.pick(data, self.world.running()), flush=flush)

    @precondition(lambda self: self.world.preempted())
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        """A waiting request runs again from its durable prefix, or nothing changes."""
        self.world.resume(self.pick(data, self.world.preempted()))

    @precondition(lambda self: self.world.running())
    @rule(data=st.data(), flush=st.booleans(), rows=st.integers(1, 9))
    def bounce(self, data: st.DataObject, rows: int, *, flush: bool) -> None:
        """A request is preempted and resumed at once, and goes on before what was in flight lands."""
        name = self.pick(data, self.world.running())
        self.world.preempt(name, flush=flush)
        if self.world.resume(name) and self.world.append(name, rows):
            self.world.step()
            self.world.answer_all(newest_first=True)

    @rule()
    def reset(self) -> None:
        """All keys are forgotten; whoever runs goes on."""
        self.world.coordinator.reset()

    @rule(pages=st.integers(1, 5))
    def evict(self, pages: int) -> None:
        """Cached host pages give way."""
        self.world.ledger.evict(pages)

    @precondition(lambda self: self.world.running())
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """Whoever runs gets its next page within a few steps."""
        self.world.go_on(self.pick(data, self.world.running()))

    @invariant()
    def everything_adds_up(self) -> None:
        """The recount holds, and every row reads as it was computed."""
        self.world.check()

    def teardown(self) -> None:
        """Nothing is left once everybody has ended."""
        self.world.close()


class EagerMachine(CoordinatorMachine):
    """Rows are copied as they are written."""

    options: ClassVar = {"spill": "eager"}


class PressureMachine(CoordinatorMachine):
    """Pages are copied when their device pages are wanted."""

    options: ClassVar = {"spill": "pressure"}


TestEager = EagerMachine.TestCase
TestEager.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestPressure = PressureMachine.TestCase
TestPressure.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
