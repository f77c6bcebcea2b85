"""Staged and direct hot buffers end with the same bytes."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hisparse.hot import HotBuffer, MemoryHotBuffer
from hisparse.integrations.transformers.device import StagedHotBuffer, hot_buffer_over
from hisparse.integrations.transformers.tensors import as_bytes, to_host_bytes
from hisparse.kernels import gather_rows


def load(buffer: HotBuffer, pool: NDArray[np.uint8], rows: NDArray[np.int64], slots: NDArray[np.int64]) -> int:
    """Gather pool rows into slots of a buffer."""
    return buffer.load(lambda out, out_rows: gather_rows(pool, rows, out, out_rows=out_rows), slots)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_staging_changes_no_byte(dtype: torch.dtype, mode: type[torch.inference_mode]) -> None:
    """Loads through staging leave the same bytes as loads in place, and count the same, in every mode."""
    pool = to_host_bytes(torch.randn(40, 6).to(dtype))
    staged, direct = torch.zeros(9, 6, dtype=dtype), torch.zeros(9, 6, dtype=dtype)
    for rows, slots in (([3, 39, 0], [8, 0, 4]), ([5], [4]), ([], [])):
        arguments = (pool, np.array(rows, np.int64), np.array(slots, np.int64))
        with mode():
            copied = load(StagedHotBuffer(staged), *arguments)
        assert copied == load(MemoryHotBuffer(as_bytes(direct)), *arguments) == len(rows) * 6 * dtype.itemsize
        assert torch.equal(staged, direct)
    assert staged[[8, 0, 4]].any(dim=1).all()
    assert not staged[[1, 2, 3, 5, 6, 7]].any()


def test_both_report_the_memory_of_their_rows() -> None:
    """The bytes of a buffer are those of the tensor it writes to."""
    rows = torch.zeros(9, 6, dtype=torch.bfloat16)
    assert StagedHotBuffer(rows).nbytes == MemoryHotBuffer(as_bytes(rows)).nbytes == 9 * 6 * 2


def test_a_buffer_is_chosen_by_device() -> None:
    """Rows in host memory are written in place, rows elsewhere through staging."""
    assert isinstance(hot_buffer_over(torch.zeros(2, 3)), MemoryHotBuffer)
    assert isinstance(hot_buffer_over(torch.zeros(2, 3, device="meta")), StagedHotBuffer)


def test_a_failed_gather_leaves_the_slots_alone() -> None:
    """If rows can't be read, the staged buffer is as it was."""
    rows = torch.ones(4, 3)

    def fail(_out: NDArray[np.uint8], _out_rows: NDArray[np.int64]) -> int:
        raise OSError("unreadable")

    with pytest.raises(OSError, match="unreadable"):
        StagedHotBuffer(rows).load(fail, np.array([1]))
    assert (rows == 1).all()
