"""The hot level hands every layer its selected rows, and counts what it copied."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiering import WIDTHS, assert_selects, plan_for, rows_for

from hisparse.errors import ArrayError, PositionError, StateError
from hisparse.integrations.transformers.hot_level import HotLevel, zero_rows
from hisparse.integrations.transformers.plan import TierPlan
from hisparse.integrations.transformers.tensors import to_host_bytes
from hisparse.kernels import PageTable

LENGTH = 32


class Source:
    """A row source of known tensors, request after request."""

    def __init__(self, batch: int) -> None:
        self.tensors = {layer: rows_for(layer, batch, LENGTH) for layer in WIDTHS}
        self._batch = batch

    @property
    def length(self) -> int:
        return LENGTH

    @property
    def pages(self) -> PageTable:
        return PageTable(np.arange(0, self._batch * LENGTH, 4).reshape(self._batch, -1), 4)

    def gather(self, layer: int, rows: NDArray[np.int64], out: NDArray[np.uint8], out_rows: NDArray[np.int64]) -> int:
        out[out_rows] = to_host_bytes(self.tensors[layer])[rows]
        return len(rows) * out.shape[1]


def level_for(batch: int, **settings: int) -> tuple[HotLevel, Source, TierPlan]:
    """Return a cold hot level over a source of known rows, and its plan."""
    plan, source = plan_for(batch, **settings), Source(batch)
    return HotLevel(plan, source, batch), source, plan


def selection(*rows: list[int]) -> torch.Tensor:
    """Return int32 ``[B, 1, 4]``."""
    return torch.tensor(rows, dtype=torch.int32).unsqueeze(1)


def test_layers_read_their_own_rows() -> None:
    """Every layer finds its own rows in the order of the selection, cold and warm alike."""
    hot, source, plan = level_for(2)
    for topk in (selection([9, 2, 31, -1], [0, 1, 2, 3]), selection([2, 9, 5, -1], [3, -1, -1, 30])):
        assert_selects(hot, source.tensors, topk)
    hot.check()
    assert sum(counters.selections for counters in plan.counters).tolist() == [6, 18, 0, 8]
    copied = [counters.loaded_bytes.tolist() for counters in plan.counters]
    assert copied == [[9 * 24, 9 * 24], [9 * 16]]


def test_narrow_selections_are_padded() -> None:
    """A selection of fewer columns than top-k gives as many, and the others count as padding."""
    hot, source, plan = level_for(1)
    assert_selects(hot, source.tensors, torch.tensor([[[7, 3]]], dtype=torch.int32))
    assert plan.counters[0].selections.tolist() == [0, 2, 0, 2]


def test_several_queries_share_the_slots_of_their_request() -> None:
    """Queries of one request resolve as one union: what the first brought is a hit for the second."""
    hot, source, plan = level_for(2)
    topk = torch.tensor([[[1, 2, 3, 4], [4, 3, 2, 5]], [[8, 9, -1, -1], [9, 8, 7, 6]]], dtype=torch.int32)
    assert_selects(hot, source.tensors, topk)
    assert plan.counters[0].by_request.tolist() == [[3, 5, 0, 0], [2, 4, 0, 2]]


def test_forgotten_positions_are_read_again() -> None:
    """A forgotten range is fetched anew, with what the source holds by then; the rest stays hot."""
    hot, source, plan = level_for(1)
    topk = selection([1, 2, 3, 4])
    assert_selects(hot, source.tensors, topk)
    for rows in source.tensors.values():
        rows[:, 3:] += 1
    hot.forget(3, LENGTH)
    assert_selects(hot, source.tensors, topk)
    assert plan.counters[1].selections.tolist() == [2, 6, 0, 0]


def test_a_reset_request_is_cold_and_its_neighbour_warm() -> None:
    """Resetting one request of a batch makes only that one miss."""
    hot, source, plan = level_for(2)
    topk = selection([1, 2, 3, 4], [5, 6, 7, 8])
    assert_selects(hot, source.tensors, topk)
    hot.reset(1)
    assert_selects(hot, source.tensors, topk)
    assert [counters.by_request[:, 1].tolist() for counters in plan.counters] == [[4, 8], [4, 8]]


@pytest.mark.parametrize(
    ("topk", "error"),
    [
        (selection([1, 2, 3, LENGTH]), PositionError),
        (selection([1, 1, 2, 3]), PositionError),
        (torch.zeros((1, 1, 5), dtype=torch.int32), ArrayError),
        (selection([1, 2, 3, 4], [1, 2, 3, 4]), ArrayError),
    ],
    ids=("beyond", "twice", "wide", "batch"),
)
def test_a_wrong_selection_is_refused(topk: torch.Tensor, error: type[Exception]) -> None:
    """A selection out of range, repeated, too wide or of another batch is refused and not counted."""
    hot, source, plan = level_for(1)
    with pytest.raises(error):
        hot.select(0, topk)
    assert plan.counters[0].selected == 0
    hot.check()
    assert_selects(hot, source.tensors, selection([1, 2, 3, 4]))


def test_a_follower_needs_its_leader() -> None:
    """Layer 1 shares the selection of layer 0 and can't be first, nor select on its own."""
    hot, *_ = level_for(1)
    topk = selection([1, 2, 3, 4])
    with pytest.raises(StateError, match="leader 0 must resolve first"):
        hot.select(1, topk)
    hot.select(0, topk)
    with pytest.raises(StateError, match="selects other rows than its leader 0"):
        hot.select(1, topk.flip(-1))


def test_device_bytes_are_slots_times_rows() -> None:
    """The device holds, for each request and layer, the hot slots and nothing else."""
    hot, *_ = level_for(3, hot_slots=5)
    assert hot.nbytes == 3 * 5 * sum(WIDTHS.values()) * 4


def test_counts_of_an_earlier_batch_are_kept() -> None:
    """A second level over the same counters adds to them, with room for its requests."""
    plan = plan_for(1)
    topk = selection([1, 2, 3, 4])
    HotLevel(plan, Source(1), 1).select(0, topk)
    HotLevel(plan, Source(3), 3).select(0, topk.expand(3, -1, -1))
    assert plan.counters[0].by_request[:, 1].tolist() == [8, 4, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_hot_rows_can_be_written_in_and_out_of_inference_mode(dtype: torch.dtype) -> None:
    """Rows made inside inference mode are zero, of the plan's dtype, and writable outside of it."""
    with torch.inference_mode():
        rows = zero_rows(3, 5, plan_for(1, dtype=dtype))
    assert (rows.dtype, tuple(rows.shape), rows.is_inference()) == (dtype, (3, 5), False)
    assert not rows.any()
    rows[1] = 1
    assert rows.sum() == 5
