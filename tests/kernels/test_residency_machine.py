"""Any sequence of calls, good and bad, keeps backends and oracle together and the recount right."""

from typing import Any

import pytest
from comparing import assert_same_resolution, int32, snapshot
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from oracle import Oracle

from hisparse.errors import InputError
from hisparse.kernels import BACKENDS, Residency
from hisparse.kernels.backend import ORDERS

REQUESTS, HOT_SLOTS, POSITIONS, TOP_K, PAGE_ROWS = 2, 7, 20, 4, 3
PAGES = -(-POSITIONS // PAGE_ROWS)

requests = st.integers(0, REQUESTS - 1)
# mostly good: repeated and impossible positions are drawn, but rarely
row = st.lists(st.integers(0, POSITIONS - 1) | st.just(-1), min_size=TOP_K, max_size=TOP_K) | st.lists(
    st.integers(-2, POSITIONS), min_size=TOP_K, max_size=TOP_K, unique=True
)
run = st.tuples(st.sampled_from([-1, *range(REQUESTS)]), st.lists(row, min_size=1, max_size=3))
runs = st.lists(run, min_size=1, max_size=3)
pages = st.none() | st.lists(
    st.lists(st.sampled_from([-1, -1, 0, 5]), min_size=PAGES, max_size=PAGES), min_size=REQUESTS, max_size=REQUESTS
)


class ResidencyMachine(RuleBasedStateMachine):
    """All backends and the oracle, driven together."""

    order = ORDERS[0]

    def __init__(self) -> None:
        """Start fresh."""
        super().__init__()
        sizes = {"max_requests": REQUESTS, "hot_slots": HOT_SLOTS, "max_positions": POSITIONS, "top_k": TOP_K}
        self.states = [Residency(**sizes, page_rows=PAGE_ROWS, order=self.order, backend=name) for name in BACKENDS]
        self.oracle = Oracle(self.states[0])

    @rule(runs=runs, pages=pages)
    def resolve(self, runs: Any, pages: Any) -> None:
        """Resolve one step everywhere; a fault is the same sentence everywhere."""
        step: list[Any] = [
            int32(*[r for r, rows in runs for _ in rows]),
            int32(*[row for _, rows in runs for row in rows]),
        ]
        step += [None if pages is None else int32(*pages)]
        answers = []
        for state in self.states:
            try:
                answers.append(state.resolve(*step))
            except InputError as fault:
                answers.append(fault)
        if isinstance(answers[0], InputError):
            assert {(type(fault), str(fault)) for fault in answers} == {(type(answers[0]), str(answers[0]))}
            return
        expected = self.oracle.resolve(*step)
        for got in answers:
            assert_same_resolution(got, expected)
            assert (got.counts.sum(axis=1) == TOP_K).all()

    @rule(request=requests, positions=st.lists(st.integers(0, POSITIONS - 1), max_size=6))
    def invalidate(self, request: int, positions: list[int]) -> None:
        """Rewrite some rows."""
        for state in (*self.states, self.oracle):
            state.invalidate(request, positions)

    @rule(request=requests)
    def reset(self, request: int) -> None:
        """End a request."""
        for state in (*self.states, self.oracle):
            state.reset(request)

    @invariant()
    def states_agree(self) -> None:
        """Every state recounts itself and shows what the oracle shows."""
        for state in self.states:
            state.check()
            assert snapshot(state) == self.oracle.snapshot()


@pytest.mark.parametrize("name", ORDERS)
def test_any_sequence_of_calls(name: str) -> None:
    """Backends and oracle never part, whatever is called."""
    machine = type("OrderedMachine", (ResidencyMachine,), {"order": name})
    run_state_machine_as_test(machine, settings=settings(deadline=None, max_examples=40, stateful_step_count=25))
