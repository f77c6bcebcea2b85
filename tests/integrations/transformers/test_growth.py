"""A growing tensor holds what was appended, copies itself rarely, and stays writable in every mode."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from hisparse.integrations.transformers.growth import GrowingTensor

CPU = torch.device("cpu")
MODES = [torch.inference_mode, torch.no_grad, torch.enable_grad]


def growing(batch: int = 2, width: int = 3, dtype: torch.dtype = torch.float32) -> GrowingTensor:
    """Return an empty one."""
    return GrowingTensor(batch, width, dtype=dtype, device=CPU)


def test_appended_rows_are_held_in_order() -> None:
    """Many appends give one concatenation, of the dtype asked for."""
    tensor = growing(dtype=torch.bfloat16)
    parts = [torch.randn(2, count, 3).bfloat16() for count in (1, 7, 0, 200, 1)]
    for part in parts:
        tensor.append(part)
    assert (tensor.length, tensor.view().dtype) == (209, torch.bfloat16)
    assert torch.equal(tensor.view(), torch.cat(parts, dim=1))


def test_growth_is_amortised() -> None:
    """Ten thousand single rows move the tensor a few dozen times, with at most an eighth and 64 rows to spare."""
    tensor = growing(1)
    places, copied = set(), 0
    for length in range(10_000):
        before = tensor.flat()[0].data_ptr()
        tensor.append(torch.full((1, 1, 3), float(length)))
        place = tensor.flat()[0].data_ptr()
        copied += length if place != before else 0
        places.add(tensor.nbytes)
        assert tensor.nbytes <= (tensor.length * 9 / 8 + 66) * 3 * 4
    assert len(places) < 50
    assert copied < 10 * 10_000
    assert torch.equal(tensor.view()[0, :, 0], torch.arange(10_000.0))


def test_flat_rows_are_found_by_stride() -> None:
    """Row t of request b is flat row b * stride + t, in the same memory as the view."""
    tensor = growing()
    rows = torch.randn(2, 5, 3)
    tensor.append(rows)
    flat, stride = tensor.flat()
    assert torch.equal(flat[stride + 4], rows[1, 4])
    assert flat.data_ptr() == tensor.view().data_ptr()


@pytest.mark.parametrize("made_in", MODES)
@pytest.mark.parametrize("grown_in", MODES)
def test_every_mode_can_follow_every_other(
    made_in: Callable[[], AbstractContextManager[None]], grown_in: Callable[[], AbstractContextManager[None]]
) -> None:
    """Whatever mode made, grew or rearranged the tensor, the next one can write to it, and no graph is kept."""

    def append_in_every_mode() -> None:
        for mode in (contextlib.nullcontext, made_in, grown_in):
            with mode():
                tensor.append(torch.full((batch, 1, 3), 3.0))

    batch = 2
    with made_in():
        tensor = growing()
        tensor.append(torch.ones(2, 5, 3))
    append_in_every_mode()
    with grown_in():
        tensor.append(torch.full((2, 100, 3), 2.0))
    append_in_every_mode()
    with grown_in():
        tensor.reindex([1, 0, 1])
        tensor.truncate(50)
    batch = 3
    append_in_every_mode()
    assert not tensor.view().is_inference()
    assert not tensor.view().requires_grad
    assert tensor.view()[0, [4, 5, 8, 49, 50, 52], 0].tolist() == [1, 3, 2, 2, 3, 3]


def test_gradients_do_not_follow_appended_rows() -> None:
    """Rows that require gradients are kept as plain values."""
    tensor = growing()
    tensor.append(torch.ones(2, 3, 3, requires_grad=True) * 2)
    assert not tensor.view().requires_grad


def test_cut_rows_are_replaced() -> None:
    """After a cut the next rows take the place of those removed; cutting beyond the length changes nothing."""
    tensor = growing()
    tensor.append(torch.zeros(2, 6, 3))
    tensor.truncate(4)
    tensor.truncate(9)
    tensor.append(torch.ones(2, 1, 3))
    assert tensor.view()[:, :, 0].tolist() == [[0, 0, 0, 0, 1]] * 2


def test_requests_are_copied_to_their_places() -> None:
    """Repeated requests are independent copies."""
    tensor = growing()
    tensor.append(torch.arange(2.0).view(2, 1, 1).expand(2, 4, 3))
    tensor.reindex([1, 1, 0])
    tensor.append(torch.tensor([5.0, 6.0, 7.0]).view(3, 1, 1).expand(3, 1, 3))
    assert tensor.view()[:, :, 0].tolist() == [[1, 1, 1, 1, 5], [1, 1, 1, 1, 6], [0, 0, 0, 0, 7]]
