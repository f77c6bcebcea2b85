"""Between torch tensors and the raw rows the layers below move."""

import numpy as np
import torch
from numpy.typing import NDArray

from hisparse.errors import SettingError
from hisparse.layout import RowFormat

_DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def row_format_of(dtype: torch.dtype, elements: int) -> RowFormat:
    """Return the format of rows of `elements` values of `dtype`.

    Raises:
        SettingError: Rows of that dtype are not supported.
    """
    if dtype not in _DTYPE_NAMES:
        raise SettingError(f"rows must be {', '.join(_DTYPE_NAMES.values())}, got {dtype}")
    return RowFormat.dense(_DTYPE_NAMES[dtype], elements)


def as_bytes(rows: torch.Tensor) -> NDArray[np.uint8]:
    """View a contiguous CPU tensor ``[N, W]`` as uint8 ``[N, W * itemsize]``; shares memory."""
    return _plain(rows).view(torch.uint8).numpy()


def to_host_bytes(rows: torch.Tensor) -> NDArray[np.uint8]:
    """Return ``[..., W]`` as uint8 ``[N, W * itemsize]`` in host memory; copies only where it must."""
    # What a tensor already is, it is not asked to become: seven such calls in cold caches took 40 us.
    plain = _plain(rows)
    if not plain.is_cpu:
        plain = plain.to("cpu")
    if not plain.is_contiguous():
        plain = plain.contiguous()
    data = as_bytes(plain)
    return data if data.ndim == 2 else data.reshape(-1, data.shape[-1])  # noqa: PLR2004 - a matrix


def to_host_numbers(numbers: torch.Tensor) -> NDArray[np.int32]:
    """Return integers of any shape as contiguous int32 in host memory; copies only where it must."""
    if not numbers.is_cpu or numbers.dtype != torch.int32:
        numbers = numbers.to("cpu", torch.int32)
    array: NDArray[np.int32] = numbers.numpy()
    return np.ascontiguousarray(array)


def _plain(rows: torch.Tensor) -> torch.Tensor:
    """Return the tensor without its gradient."""
    return rows.detach() if rows.requires_grad else rows
