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
    return rows.detach().view(torch.uint8).numpy()


def to_host_bytes(rows: torch.Tensor) -> NDArray[np.uint8]:
    """Return ``[..., W]`` as uint8 ``[N, W * itemsize]`` in host memory; copies only where it must."""
    flat = rows.detach().reshape(-1, rows.shape[-1])
    return as_bytes(flat.to("cpu").contiguous())
