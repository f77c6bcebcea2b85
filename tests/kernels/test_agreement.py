"""Every backend gives the same answers and the same state, and so does an independent oracle."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from comparing import assert_same_resolution, snapshot
from oracle import Oracle

from hisparse.kernels import BACKENDS, COUNT_FIELDS, Residency
from hisparse.kernels.backend import ORDERS
from hisparse.kernels.cases import CASES, Case, Step, drifting_steps

SELECTIONS = 520_000
MAX_STEPS = 400
ORACLE_SELECTIONS = 40_000
SEED = 20_26


def steps_for(case: Case, selections: int) -> int:
    """Return how many steps of a case select this many positions, within reason for tiny shapes."""
    return min(MAX_STEPS, -(-selections // case.selections))


def disturbed(case: Case, selections: int, *touched: Residency | Oracle) -> Iterator[Step]:
    """Yield a case's steps; between them invalidate positions and reset requests of all `touched`."""
    rng = np.random.default_rng(SEED)
    for step in drifting_steps(case, steps_for(case, selections), SEED):
        yield step
        request = int(rng.integers(case.requests))
        positions = rng.choice(step.topk[step.topk >= 0], 5).tolist() if (step.topk >= 0).any() else []
        is_reset = rng.random() < 0.02
        for state in touched:
            state.invalidate(request, positions)
            if is_reset:
                state.reset(request)


def ids(case: Case) -> str:
    """Return a case's name."""
    return case.name


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_backends_equal_the_reference_bit_for_bit(case: Case, order: str) -> None:
    """All backends give the reference's slots, misses and counts, and leave its recency and positions."""
    states = [case.residency(name, order) for name in BACKENDS]
    for step in disturbed(case, SELECTIONS, *states):
        expected, *others = [state.resolve(*step) for state in states]
        for got in others:
            assert_same_resolution(got, expected)
        assert (expected.counts.sum(axis=1) == case.top_k).all()
        assert expected.counts[:, COUNT_FIELDS.index("miss")].sum() == len(expected.miss_slot)
    for state in states:
        state.check()
        assert snapshot(state) == snapshot(states[0])


def test_the_agreement_covers_ten_million_positions() -> None:
    """The cases above compare at least ten million selected positions."""
    compared = sum(steps_for(case, SELECTIONS) * case.selections for case in CASES) * len(ORDERS)
    assert compared >= 10_000_000


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_numba_equals_an_ordered_dict(case: Case, order: str) -> None:
    """The compiled loops give what an OrderedDict written from the contract gives."""
    residency = case.residency("numba", order)
    oracle = Oracle(residency)
    for step in disturbed(case, ORACLE_SELECTIONS, residency, oracle):
        assert_same_resolution(residency.resolve(*step), oracle.resolve(*step))
        residency.check()
    assert snapshot(residency) == oracle.snapshot()


def test_a_step_may_miss_on_every_one_of_the_most_slots(order: str) -> None:
    """A union as large as the largest hot buffer loads every slot once, in order."""
    residency = Residency(max_requests=1, hot_slots=32_768, max_positions=40_000, top_k=32_768, order=order)
    topk = np.random.default_rng(SEED).permutation(40_000)[None, :32_768].astype(np.int32)
    step = residency.resolve(np.zeros(1, np.int32), topk)
    np.testing.assert_array_equal(step.miss_position, topk[0])
    np.testing.assert_array_equal(step.slots[0], np.arange(32_768))
    residency.check()


def test_a_larger_stack_holds_what_a_smaller_one_holds(backend: str) -> None:
    """With order ``stack`` the positions held by a buffer are a subset of those a larger one holds."""
    shape = {"requests": 1, "top_k": 32, "max_positions": 512, "rows": 2, "union_rows": 48, "kept_ratio": 0.6}
    cases = [Case("inclusion", hot_slots=hot_slots, **shape) for hot_slots in (48, 64, 100, 400)]
    states = [case.residency(backend, "stack") for case in cases]
    for step in drifting_steps(cases[0], 200, SEED):
        for state in states:
            state.resolve(*step)
        held = [set(state.positions(0).tolist()) - {-1} for state in states]
        assert all(small <= large for small, large in pairwise(held))
