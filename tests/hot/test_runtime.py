"""A runtime is one layer's view of its group: the leader resolves, followers replay, each loads its own rows."""

import numpy as np
import pytest
from hot_bench import ROW_BYTES, Bench, pattern

from hisparse.errors import ArrayError, PositionError, StateError
from hisparse.hot import HiSparseRuntime

ONE = np.array([0], np.int32)
SELECTION = np.array([[9, 2, -1, 5]], np.int32)


def test_the_first_layer_leads(bench: Bench) -> None:
    """Only the group's first layer resolves for the others."""
    assert [HiSparseRuntime(bench.group, layer).is_leader for layer in (3, 4)] == [True, False]


def test_all_layers_share_one_step(bench: Bench) -> None:
    """Followers are handed the leader's step itself, with every address and count in it."""
    leader, follower = (HiSparseRuntime(bench.group, layer) for layer in (3, 4))
    step = leader.fetch(ONE, SELECTION)
    assert step.pending == {4}
    assert follower.fetch(ONE, SELECTION.copy()) is step
    assert step.pending == set()
    assert bench.counters.selections.tolist() == [0, 3, 0, 1]


def test_a_layer_fills_only_its_own_buffer(bench: Bench) -> None:
    """The leader's load leaves the follower's buffer as it was, until that one loads the same rows itself."""
    HiSparseRuntime(bench.group, 3).fetch(ONE, SELECTION)
    assert not bench.rows[4].any()
    step = HiSparseRuntime(bench.group, 4).fetch(ONE, SELECTION)
    slots = step.addresses.slots[step.addresses.is_selected]
    np.testing.assert_array_equal(bench.rows[4][slots], [pattern(4, row) for row in (9, 2, 5)])
    assert bench.counters.loaded_bytes.tolist() == [3 * ROW_BYTES] * 2


def test_a_leader_may_change_its_selection_afterwards(bench: Bench) -> None:
    """What followers are compared with is what was resolved, not what the caller's array has become."""
    selection = SELECTION.copy()
    HiSparseRuntime(bench.group, 3).fetch(ONE, selection)
    selection[:] = 1
    HiSparseRuntime(bench.group, 4).fetch(ONE, SELECTION)


@pytest.mark.parametrize(
    ("requests", "selection", "error"),
    [
        (ONE, SELECTION.astype(np.int64), ArrayError),
        (ONE, SELECTION[:, :3].copy(), ArrayError),
        (np.array([0, 1], np.int32), SELECTION, ArrayError),
        (np.array([2], np.int32), SELECTION, PositionError),
        (ONE, np.array([[2, 2, -1, -1]], np.int32), PositionError),
        (ONE, np.array([[64, -1, -1, -1]], np.int32), PositionError),
    ],
)
def test_a_refused_selection_leaves_no_step(
    bench: Bench, requests: np.ndarray, selection: np.ndarray, error: type[Exception]
) -> None:
    """After a wrong call nothing is counted, nothing copied, and a follower finds nothing to replay."""
    with pytest.raises(error):
        HiSparseRuntime(bench.group, 3).fetch(requests, selection)
    with pytest.raises(StateError, match="leader 3 must resolve first"):
        HiSparseRuntime(bench.group, 4).fetch(ONE, SELECTION)
    assert (bench.counters.selected, bench.source.gathered) == (0, [])
    bench.group.check()


def test_a_layer_of_another_group_is_refused(bench: Bench) -> None:
    """A layer the group does not have can't replay its steps."""
    HiSparseRuntime(bench.group, 3).fetch(ONE, SELECTION)
    with pytest.raises(StateError, match="layer 7 has no step to replay"):
        HiSparseRuntime(bench.group, 7).fetch(ONE, SELECTION)
