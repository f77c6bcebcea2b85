"""A step knows the selection it was resolved for."""

import dataclasses

import numpy as np
import pytest
from hot_bench import Bench

TOPK = np.array([[1, 2, -1, -1], [3, -1, -1, -1]], np.int32)
REQUESTS = np.array([0, 1], np.int32)


def test_the_same_selection_is_recognised_by_value(bench: Bench) -> None:
    """Equal arrays are the same selection, whoever owns them."""
    step = bench.group.resolve(REQUESTS, TOPK)
    assert step.is_same_selection(REQUESTS.copy(), TOPK.copy())
    assert step.is_same_selection(REQUESTS.copy(), TOPK.astype(np.int64))


@pytest.mark.parametrize(
    ("requests", "topk"),
    [
        (REQUESTS, np.where(TOPK == 2, 4, TOPK)),
        (REQUESTS, TOPK[:, ::-1]),
        (REQUESTS, TOPK[:, :2]),
        (REQUESTS[:1], TOPK[:1]),
        (REQUESTS[::-1], TOPK),
    ],
    ids=("position", "order", "width", "batch", "requests"),
)
def test_another_selection_is_told_apart(bench: Bench, requests: np.ndarray, topk: np.ndarray) -> None:
    """One position, one place, one column, one row or one request of difference is another selection."""
    assert not bench.group.resolve(REQUESTS, TOPK).is_same_selection(requests, topk)


def test_a_step_names_the_layers_that_still_load(bench: Bench) -> None:
    """A fresh step waits for all layers of its group, and its fields stay the ones it was made with."""
    step = bench.group.resolve(REQUESTS, TOPK)
    assert step.pending == {3, 4}
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.topk = TOPK  # type: ignore[misc] # assigning is the test
