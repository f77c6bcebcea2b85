"""The residency contract, sentence by sentence, on every backend and order."""

from collections.abc import Callable

import numpy as np
import pytest
from comparing import int32, snapshot

from hisparse.errors import AccountingError
from hisparse.kernels import Residency, gather_rows
from hisparse.kernels._numba_backend import NumbaBackend

Make = Callable[..., Residency]


def test_a_fresh_request_fills_its_slots_in_order(make: Make) -> None:
    """The first misses take slots 0, 1, 2, ... and are listed in the order of first reference."""
    residency = make()
    step = residency.resolve(int32(0), int32([9, -1, 3, 60]))
    assert step.slots.tolist() == [[0, -1, 1, 2]]
    assert step.miss_request.tolist() == [0, 0, 0]
    assert step.miss_position.tolist() == [9, 3, 60]
    assert step.miss_slot.tolist() == [0, 1, 2]
    assert step.counts.tolist() == [[0, 3, 0, 1]]
    assert residency.recency(0).tolist() == [3, 4, 5, 6, 7, 0, 1, 2]
    assert residency.positions(0).tolist() == [9, 3, 60, -1, -1, -1, -1, -1]


@pytest.mark.parametrize(
    ("order", "recency"), [("stack", [5, 6, 7, 0, 1, 4, 2, 3]), ("vllm", [5, 6, 7, 0, 4, 1, 2, 3])]
)
def test_the_order_after_a_step_is_the_documented_one(backend: str, order: str, recency: list[int]) -> None:
    """Order stack interleaves hits and misses by first reference; order vllm puts loads before hits."""
    residency = Residency(max_requests=1, hot_slots=8, max_positions=64, top_k=4, order=order, backend=backend)
    residency.resolve(int32(0), int32([10, 11, 12, 13]))
    step = residency.resolve(int32(0), int32([11, 20, 12, 13]))
    assert step.slots.tolist() == [[1, 4, 2, 3]]
    assert residency.recency(0).tolist() == recency


def test_the_vllm_order_keeps_the_relative_order_of_hits(backend: str) -> None:
    """Hits of one step stay in their previous order whatever the order of reference."""
    residency = Residency(max_requests=1, hot_slots=4, max_positions=64, top_k=4, order="vllm", backend=backend)
    residency.resolve(int32(0), int32([10, 11, 12, 13]))
    residency.resolve(int32(0), int32([13, 12, 11, 10]))
    assert residency.recency(0).tolist() == [0, 1, 2, 3]


def test_the_least_recent_unused_slot_goes_first(make: Make) -> None:
    """A miss takes the least recent slot that the step does not select, even if a selected one is older."""
    residency = make(hot_slots=5)
    residency.resolve(int32(0), int32([10, 11, 12, 13]))
    residency.resolve(int32(0), int32([14, -1, -1, -1]))
    step = residency.resolve(int32(0), int32([20, 21, 10, 12]))
    assert step.miss_slot.tolist() == [1, 3]
    assert step.slots.tolist() == [[1, 3, 0, 2]]


def test_a_union_counts_later_references_as_hits(make: Make) -> None:
    """In the rows of one request only the first reference to a loaded row is a miss."""
    residency = make()
    step = residency.resolve(int32(1, 1, 1), int32([5, 6, -1, -1], [6, 7, 5, -1], [7, 8, -1, -1]))
    assert step.counts.tolist() == [[0, 2, 0, 2], [2, 1, 0, 1], [1, 1, 0, 2]]
    assert step.slots.tolist() == [[0, 1, -1, -1], [1, 2, 0, -1], [2, 3, -1, -1]]
    assert step.miss_position.tolist() == [5, 6, 7, 8]


def test_a_later_row_does_not_make_a_slot_more_recent(backend: str) -> None:
    """Recency of order stack follows first references only."""
    residency = Residency(max_requests=1, hot_slots=4, max_positions=64, top_k=2, backend=backend)
    residency.resolve(int32(0, 0), int32([1, 2], [3, 4]))
    residency.resolve(int32(0, 0), int32([4, 3], [3, 1]))
    assert residency.recency(0).tolist() == [1, 3, 2, 0]


def test_misses_are_listed_request_by_request(make: Make) -> None:
    """The miss list follows the batch, not the request numbers."""
    step = make().resolve(int32(2, -1, 0), int32([1, 2, -1, -1], [9, 9, 9, 9], [3, -1, -1, -1]))
    assert step.miss_request.tolist() == [2, 2, 0]
    assert step.miss_position.tolist() == [1, 2, 3]
    assert step.miss_slot.tolist() == [0, 1, 0]


def test_only_the_resolved_request_changes(make: Make) -> None:
    """Resolving request 1 leaves request 0 empty and gives request 1 its row."""
    residency = make(max_positions=128)
    residency.resolve(int32(1), int32([64, -1, -1, -1]))
    assert (residency.positions(0) == -1).all()
    assert 64 in residency.positions(1)


def test_a_padding_row_changes_nothing(make: Make) -> None:
    """Request -1 answers -1 throughout, whatever its positions are, and touches no state."""
    residency = make()
    residency.resolve(int32(0), int32([1, 2, 3, 4]))
    before = snapshot(residency)
    step = residency.resolve(int32(-1, -1), int32([1, 1, 99, -7], [5, 6, 7, 8]))
    assert (step.slots == -1).all()
    assert step.counts.tolist() == [[0, 0, 0, 4], [0, 0, 0, 4]]
    assert len(step.miss_slot) == 0
    assert snapshot(residency) == before


def test_an_empty_batch_is_a_step(make: Make) -> None:
    """No rows give empty arrays."""
    step = make().resolve(np.empty(0, np.int32), np.empty((0, 4), np.int32))
    assert step.slots.shape == (0, 4)
    assert step.counts.shape == (0, 4)
    assert step.miss_slot.shape == (0,)


def test_resident_rows_touch_nothing(make: Make) -> None:
    """A resident row is ``-2 - row``, counts as resident only, and leaves recency as it was."""
    residency = make()
    residency.resolve(int32(0), int32([1, 2, 3, 9]))
    before = snapshot(residency)
    pages = np.full((3, 16), -1, np.int32)
    pages[0, 0], pages[0, 2] = 7, 0
    step = residency.resolve(int32(0), int32([3, 1, 9, -1]), pages)
    assert step.slots.tolist() == [[-2 - 31, -2 - 29, -2 - 1, -1]]
    assert step.counts.tolist() == [[0, 0, 3, 1]]
    assert snapshot(residency) == before


def test_speculative_rows_share_a_resident_page(make: Make) -> None:
    """Four rows of one request that select one position of a resident page all get its device row."""
    residency = make(page_rows=64, max_positions=128)
    pages = np.full((3, 2), -1, np.int32)
    pages[1, 0] = 1
    step = residency.resolve(int32(1, 1, 1, 1), int32(*[[0, -1, -1, -1]] * 4), pages)
    assert step.slots[:, 0].tolist() == [-2 - 64] * 4
    assert step.counts.tolist() == [[0, 0, 1, 3]] * 4


def test_resident_rows_reach_the_end_of_int32(make: Make) -> None:
    """The largest device row that ``-2 - row`` can carry is answered exactly."""
    residency = make(page_rows=1)
    pages = np.full((3, 64), 2**31 - 2, np.int32)
    step = residency.resolve(int32(0), int32([5, -1, -1, -1]), pages)
    assert step.slots[0, 0] == -(2**31)


def test_an_invalidated_row_is_a_miss_in_the_same_place(make: Make) -> None:
    """The slot forgets its position, keeps its place in the order, and the next use is a miss."""
    residency = make(hot_slots=4)
    residency.resolve(int32(0), int32([1, 2, 3, 4]))
    before = residency.recency(0)
    residency.invalidate(0, [2, 50])
    residency.check()
    assert residency.positions(0).tolist() == [1, -1, 3, 4]
    np.testing.assert_array_equal(residency.recency(0), before)
    step = residency.resolve(int32(0), int32([2, 1, -1, -1]))
    assert step.counts.tolist() == [[1, 1, 0, 2]]
    assert step.miss_slot.tolist() == [1]


def test_invalidating_nothing_is_fine(make: Make) -> None:
    """Positions that were never loaded, repeated ones, and none at all change nothing."""
    residency = make()
    for positions in ([], [3, 3], np.array([63], np.int64)):
        residency.invalidate(2, positions)
    residency.check()
    assert (residency.positions(2) == -1).all()


def test_reset_restores_the_fresh_state(make: Make) -> None:
    """A reset request is as it was when the object was made; others keep their state."""
    residency = make()
    fresh = snapshot(residency)
    residency.resolve(int32(0), int32([1, 2, 3, 4]))
    other = residency.positions(0)
    residency.resolve(int32(1), int32([1, 2, 3, 4]))
    residency.reset(1)
    residency.check()
    np.testing.assert_array_equal(residency.positions(0), other)
    residency.reset(0)
    assert snapshot(residency) == fresh
    assert residency.resolve(int32(0), int32([4, 3, 2, 1])).counts.tolist() == [[0, 4, 0, 0]]


def test_results_belong_to_the_caller(make: Make) -> None:
    """Later steps do not write into arrays that were returned, and copies do not write into the state."""
    residency = make()
    first = residency.resolve(int32(0), int32([1, 2, 3, 4]))
    residency.recency(0)[:] = 0
    residency.positions(0)[:] = 0
    residency.resolve(int32(0), int32([5, 6, 7, 8]))
    assert first.slots.tolist() == [[0, 1, 2, 3]]
    assert first.miss_position.tolist() == [1, 2, 3, 4]
    residency.check()


def test_strided_and_read_only_arrays_are_read(make: Make) -> None:
    """Layout and writability of the arguments do not matter."""
    wide = np.arange(16, dtype=np.int32).reshape(2, 8)[:, ::2]
    pages = np.full((16, 3), -1, np.int32).T
    requests = int32(1, 0)
    wide.flags.writeable = pages.flags.writeable = requests.flags.writeable = False
    step = make().resolve(requests, wide, pages)
    assert step.miss_position.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


@pytest.mark.parametrize(("rows", "top_k", "stride"), [(8, 128, 128), (4, 128, 32), (8, 2048, 2048)])
def test_gathered_rows_are_the_host_rows(order: str, rows: int, top_k: int, stride: int) -> None:
    """Over steps that shift every row's selection by half, the hot buffer holds the rows attention reads."""
    union = (rows - 1) * stride + top_k
    residency = Residency(max_requests=1, hot_slots=union, max_positions=union + 2 * top_k, top_k=top_k, order=order)
    pool = np.arange((union + 2 * top_k) * 4, dtype=np.uint32).reshape(-1, 4)
    hot = np.zeros((union, 4), np.uint32)
    for shift in range(0, 2 * top_k, top_k // 2):
        topk = (np.arange(rows)[:, None] * stride + shift + np.arange(top_k)).astype(np.int32)
        step = residency.resolve(np.zeros(rows, np.int32), topk)
        gather_rows(pool, step.miss_position, hot, out_rows=step.miss_slot)
        np.testing.assert_array_equal(hot[step.slots], pool[topk])
        assert step.counts[:, 0].sum() + step.counts[:, 1].sum() == rows * top_k


def test_untouched_state_takes_no_memory() -> None:
    """State of requests that were never used is address space, not memory, so its size can be generous."""
    residency = Residency(max_requests=64, hot_slots=4096, max_positions=163_840, top_k=2048)
    assert residency.state_bytes == sum(array.nbytes for array in residency._backend._state)
    assert not residency._backend._state.span.any()


@pytest.mark.parametrize("array", ["table", "slot_position", "log", "seen"])
def test_a_broken_state_is_told(array: str, order: str) -> None:
    """The recount raises, with numbers, when any array of the compiled state is wrong."""
    residency = Residency(max_requests=2, hot_slots=8, max_positions=64, top_k=4, order=order)
    residency.resolve(int32(1), int32([1, 2, 3, 4]))
    backend = residency._backend
    assert isinstance(backend, NumbaBackend)
    last_entry = backend._state.span[1, 1] - 1
    broken = {"table": (1, 2), "slot_position": (1, 2), "log": (1, last_entry), "seen": (0,)}[array]
    getattr(backend._state, array)[broken] = 5
    with pytest.raises(AccountingError, match="request"):
        residency.check()


def test_a_broken_reference_is_told(order: str) -> None:
    """The reference recounts itself too."""
    sizes = {"max_requests": 1, "hot_slots": 8, "max_positions": 64, "top_k": 4}
    for array, match in (("order", "8 recency places"), ("position_of", "of them agree")):
        residency = Residency(**sizes, order=order, backend="reference")
        residency.resolve(int32(0), int32([1, 2, 3, 4]))
        getattr(residency._backend._buffers[0], array)[0] = 7
        with pytest.raises(AccountingError, match=match):
            residency.check()
