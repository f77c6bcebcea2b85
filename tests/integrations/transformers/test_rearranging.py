"""Requests of a cache are cut, reordered, repeated and dropped as asked, or nothing happens."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import zoo
from transformers.cache_utils import DynamicCache

from hisparse.errors import InputError, StateError
from hisparse.integrations.transformers import HiSparseCache, ResidentCache

LENGTH = 60
Rearrange = Callable[[Any], None]


@pytest.fixture(params=[HiSparseCache, ResidentCache])
def cache(request: pytest.FixtureRequest, shelf: Any, v32: zoo.ModelCase) -> Any:
    """A cache of either kind with three requests, closed at the end."""
    room = {"max_positions": 128, "host_pool_bytes": 1 << 20} if request.param is HiSparseCache else {}
    opened = request.param(shelf.served(v32).config, **room)
    step(shelf.served(v32), opened, zoo.prompt(v32, 3, length=LENGTH).ids)
    yield opened
    opened.check()
    opened.close()


def step(model: Any, cache: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Run tokens int64[B, S] and return the logits of the last, float32[B, V]."""
    with torch.no_grad():
        output = model(input_ids=tokens, use_cache=True, logits_to_keep=1, **zoo.cache_argument(model, cache))
    return output.logits[:, -1]


def next_logits(shelf: Any, case: zoo.ModelCase, requests: list[int], length: int) -> torch.Tensor:
    """Return what the stock cache says after one more token for some of the three requests, cut to a length.

    The whole prompt is read and cut: where scores are tied, a shorter prompt selects other rows.
    """
    stock = DynamicCache(config=shelf.stock(case).config)
    step(shelf.stock(case), stock, zoo.prompt(case, 3, length=LENGTH).ids[requests])
    if length < LENGTH:
        stock.crop(length - LENGTH)
    return step(shelf.stock(case), stock, torch.arange(1, len(requests) + 1)[:, None])


def assert_continues(shelf: Any, case: zoo.ModelCase, cache: Any, *, requests: list[int], length: int = LENGTH) -> None:
    """Assert that the cache holds just these of the three requests, by what the next token makes of them."""
    assert cache.get_seq_length() == length
    logits = step(shelf.served(case), cache, torch.arange(1, len(requests) + 1)[:, None])
    torch.testing.assert_close(logits, next_logits(shelf, case, requests, length), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("indices", "kept"),
    [
        (torch.tensor([2, 0]), [2, 0]),
        (torch.tensor([1, 1, 1, 0]), [1, 1, 1, 0]),
        (torch.tensor([-1]), [2]),
        (torch.tensor([True, False, True]), [0, 2]),
        (torch.tensor([0, 1, 2], dtype=torch.int32), [0, 1, 2]),
    ],
)
def test_selected_requests_continue(
    shelf: Any, v32: zoo.ModelCase, *, cache: Any, indices: torch.Tensor, kept: list[int]
) -> None:
    """Requests are named by number, from the end, or by a mask, and may be repeated."""
    cache.batch_select_indices(indices)
    assert_continues(shelf, v32, cache, requests=kept)


def test_repeated_requests_stand_together(shelf: Any, v32: zoo.ModelCase, cache: Any) -> None:
    """Each request is followed by its copies; once is no change."""
    cache.batch_repeat_interleave(1)
    cache.batch_repeat_interleave(2)
    assert_continues(shelf, v32, cache, requests=[0, 0, 1, 1, 2, 2])


def test_reordered_requests_continue_their_sources(shelf: Any, v32: zoo.ModelCase, cache: Any) -> None:
    """A beam may continue any request, several the same."""
    cache.reorder_cache(torch.tensor([2, 2, 0]))
    assert_continues(shelf, v32, cache, requests=[2, 2, 0])


@pytest.mark.parametrize("removed", [0, 1, 17, LENGTH - 1])
def test_cropped_requests_go_on_from_there(shelf: Any, v32: zoo.ModelCase, cache: Any, removed: int) -> None:
    """After a crop the next token follows the last one kept."""
    cache.crop(-removed)
    assert_continues(shelf, v32, cache, requests=[0, 1, 2], length=LENGTH - removed)


def test_everything_can_be_cropped(shelf: Any, v32: zoo.ModelCase, cache: Any) -> None:
    """A cache cropped to nothing reads a prompt as a new one would."""
    cache.crop(-LENGTH)
    assert cache.get_seq_length() == 0
    step(shelf.served(v32), cache, zoo.prompt(v32, 3, length=LENGTH).ids)
    assert_continues(shelf, v32, cache, requests=[0, 1, 2])


REFUSED: dict[str, Rearrange] = {
    "select beyond": lambda cache: cache.batch_select_indices(torch.tensor([0, 3])),
    "select before": lambda cache: cache.batch_select_indices(torch.tensor([-4])),
    "select none": lambda cache: cache.batch_select_indices(torch.empty(0, dtype=torch.int64)),
    "select a mask of none": lambda cache: cache.batch_select_indices(torch.tensor([False] * 3)),
    "select a mask of four": lambda cache: cache.batch_select_indices(torch.tensor([True] * 4)),
    "repeat never": lambda cache: cache.batch_repeat_interleave(0),
    "repeat negatively": lambda cache: cache.batch_repeat_interleave(-1),
    "reorder beyond": lambda cache: cache.reorder_cache(torch.tensor([0, 1, 3])),
    "reorder before": lambda cache: cache.reorder_cache(torch.tensor([0, 1, -1])),
    "reorder none": lambda cache: cache.reorder_cache(torch.empty(0, dtype=torch.int64)),
    "crop forwards": lambda cache: cache.crop(1),
    "crop to a length": lambda cache: cache.crop(LENGTH),
    "crop beyond": lambda cache: cache.crop(-LENGTH - 1),
}


@pytest.mark.parametrize("rearrange", REFUSED.values(), ids=REFUSED.keys())
def test_what_makes_no_sense_changes_nothing(shelf: Any, v32: zoo.ModelCase, cache: Any, rearrange: Rearrange) -> None:
    """A request that is not there, an empty batch or a crop out of range is refused, and all requests go on."""
    with pytest.raises(InputError):
        rearrange(cache)
    assert_continues(shelf, v32, cache, requests=[0, 1, 2])


@pytest.mark.parametrize("make", [HiSparseCache, ResidentCache])
def test_an_empty_cache_has_nothing_to_rearrange(shelf: Any, v32: zoo.ModelCase, make: Any) -> None:
    """Before the first token, reordering and repeating do nothing, and there is nothing to crop."""
    cache = make(shelf.served(v32).config)
    cache.reorder_cache(torch.tensor([0, 0]))
    cache.batch_repeat_interleave(3)
    cache.crop(0)
    with pytest.raises(InputError, match="between -0 and 0, got -1"):
        cache.crop(-1)
    assert cache.get_seq_length() == 0
    cache.close()


def test_a_cache_is_never_copied(cache: Any) -> None:
    """Two caches can't own one pool: copying is refused by the class's name, and the cache lives on."""
    for copied in (copy.deepcopy, lambda cache: copy.deepcopy({"nested": [cache]})):
        with pytest.raises(StateError, match=rf"{type(cache).__name__} can't be copied"):
            copied(cache)
    assert cache.get_seq_length() == LENGTH
