"""Index groups: one resolution a step, replayed by every layer, never served half loaded."""

import contextlib

import numpy as np
import pytest
from hot_bench import MAX_POSITIONS, ROW_BYTES, Bench, pattern
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.errors import ArrayError, InputError, StateError
from hisparse.hot import HiSparseRuntime, MemoryHotBuffer

BOTH = np.array([0, 1], np.int32)


def topk(*rows: list[int]) -> np.ndarray:
    """Return the selection with each row padded to four."""
    return np.array([row + [-1] * (4 - len(row)) for row in rows], np.int32)


def run_step(bench: Bench, selection: np.ndarray) -> None:
    """Run one step through both layers and check that every selected slot holds its row."""
    for layer in (3, 4):
        step = HiSparseRuntime(bench.group, layer).fetch(BOTH, selection)
        for request in range(2):
            for column, position in enumerate(selection[request]):
                assert step.addresses.is_selected[request, column] == (position >= 0)
                if position >= 0:
                    row = request * MAX_POSITIONS + int(position)
                    assert (bench.rows[layer][step.addresses.slots[request, column]] == pattern(layer, row)).all()


def test_every_layer_reads_its_own_bytes_of_one_selection(bench: Bench) -> None:
    """Leader and follower find the selected rows of their own layer in the same slots."""
    run_step(bench, topk([1, 2, 3], [9, 8]))
    run_step(bench, topk([2, 5, 1], [8, 7, 6]))
    bench.group.check()


def test_the_selection_is_resolved_once_for_all_layers(bench: Bench) -> None:
    """Selections are counted once a step, bytes once per layer that copied them."""
    run_step(bench, topk([1, 2, 3], [9, 8]))
    assert bench.counters.selections.tolist() == [0, 5, 0, 3]
    assert bench.counters.loaded_bytes.tolist() == [5 * ROW_BYTES, 5 * ROW_BYTES]
    assert bench.counters.by_request.tolist() == [[0, 3, 0, 1], [0, 2, 0, 2]]
    assert bench.counters.fetches.count == 2


def test_a_follower_with_another_selection_is_refused(bench: Bench) -> None:
    """A follower can only replay what its leader resolved."""
    HiSparseRuntime(bench.group, 3).fetch(BOTH, topk([1], [2]))
    with pytest.raises(StateError, match="selects other rows than its leader 3"):
        HiSparseRuntime(bench.group, 4).fetch(BOTH, topk([1], [3]))


def test_a_follower_before_its_leader_is_refused(bench: Bench) -> None:
    """A follower has nothing to replay before the first step, and nothing twice."""
    follower = HiSparseRuntime(bench.group, 4)
    with pytest.raises(StateError, match="leader 3 must resolve first"):
        follower.fetch(BOTH, topk([1], [2]))
    run_step(bench, topk([1], [2]))
    with pytest.raises(StateError, match="leader 3 must resolve first"):
        follower.fetch(BOTH, topk([1], [2]))


@pytest.mark.parametrize("failing", [3, 4])
def test_a_failed_gather_leaves_no_row_that_would_be_served_unread(bench: Bench, failing: int) -> None:
    """After a failed load in any layer the rows are misses again, and the retry reads them in every layer."""
    selection = topk([1, 2], [3])
    bench.source.failing_layers = {failing}
    with pytest.raises(OSError, match=f"layer {failing}"):
        run_step(bench, selection)
    bench.source.failing_layers = set()
    run_step(bench, selection)
    assert bench.counters.selections.tolist() == [0, 6, 0, 10]
    bench.group.check()


def test_a_step_that_stopped_half_way_is_forgotten(bench: Bench) -> None:
    """Rows only the leader loaded are misses in the next step, for the follower's sake."""
    HiSparseRuntime(bench.group, 3).fetch(BOTH, topk([1, 2], [3]))
    run_step(bench, topk([1, 2], [3]))
    assert bench.counters.selections[1] == 6


def test_invalidated_rows_are_fetched_again(bench: Bench) -> None:
    """A rewritten row is a miss at its next use, others stay hits."""
    run_step(bench, topk([1, 2], [3]))
    bench.group.invalidate(0, np.array([2], np.int32))
    run_step(bench, topk([1, 2], [3]))
    assert bench.counters.selections.tolist()[:2] == [2, 4]


def test_reset_makes_one_request_cold(bench: Bench) -> None:
    """A reset request misses everything, its neighbour keeps its slots."""
    run_step(bench, topk([1, 2], [3]))
    bench.group.reset(0)
    run_step(bench, topk([1, 2], [3]))
    assert bench.counters.by_request.tolist() == [[0, 4, 0, 4], [1, 1, 0, 6]]


def test_a_wrong_selection_changes_nothing(bench: Bench) -> None:
    """A refused selection is not counted, and the step after it finds the former state."""
    run_step(bench, topk([1, 2], [3]))
    with pytest.raises(InputError):
        HiSparseRuntime(bench.group, 3).fetch(BOTH, topk([1, MAX_POSITIONS], [3]))
    run_step(bench, topk([1, 2], [3]))
    assert bench.counters.selections.tolist() == [3, 3, 0, 10]


def test_a_buffer_must_be_rows_of_bytes() -> None:
    """A hot buffer refuses anything but uint8[slots, row_bytes]."""
    with pytest.raises(ArrayError, match=r"rows must be uint8\[slots, row_bytes\], got float32\[2, 2\]"):
        MemoryHotBuffer(np.zeros((2, 2), np.float32))  # type: ignore[arg-type] # the wrong type is the point


selections = st.lists(st.lists(st.integers(0, MAX_POSITIONS - 1), max_size=4, unique=True), min_size=2, max_size=2)


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.tuples(selections, st.sampled_from(["run", "fail", "stop", "reset"])), max_size=12))
def test_slots_always_hold_the_rows_they_are_said_to(steps: list[tuple[list[list[int]], str]]) -> None:
    """Whatever fails or stops in between, a completed step reads the right bytes and every sum holds."""
    bench = Bench((3, 4), requests=2, hot_slots=6, top_k=4)
    for rows, event in steps:
        selection = topk(*rows)
        if event == "reset":
            bench.group.reset(0)
        if event == "stop":
            HiSparseRuntime(bench.group, 3).fetch(BOTH, selection)
        elif event == "fail" and (selection >= 0).any():
            bench.source.failing_layers = {4}
            with contextlib.suppress(OSError):
                run_step(bench, selection)
            bench.source.failing_layers = set()
        else:
            run_step(bench, selection)
        bench.group.check()
