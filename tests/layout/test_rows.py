"""Row formats know how many bytes are really stored."""

import dataclasses

import pytest

from hisparse.errors import SettingError
from hisparse.layout import RowFormat


@pytest.mark.parametrize(("dtype", "row_bytes"), [("float32", 2304), ("bfloat16", 1152), ("float16", 1152)])
def test_a_dense_row_is_its_elements(dtype: str, row_bytes: int) -> None:
    """The row of DeepSeek-V3.2, 576 values, takes the bytes of its dtype and is named after it."""
    assert RowFormat.dense(dtype, 576) == RowFormat(dtype, 576, row_bytes)


def test_the_quantised_row_has_656_bytes() -> None:
    """512 fp8 latents, four float32 scales and 64 bfloat16 rotary values make one row."""
    assert RowFormat.fp8_ds_mla() == RowFormat("fp8_ds_mla", 576, 656)


def test_an_unknown_dtype_is_refused() -> None:
    """A dtype without a dense format is refused with those that have one."""
    with pytest.raises(SettingError, match=r"row dtype must be one of .*bfloat16.*, got 'int8'"):
        RowFormat.dense("int8", 576)


@pytest.mark.parametrize(("elements", "row_bytes"), [(0, 8), (8, 0), (-1, 8)])
def test_an_empty_row_is_refused(elements: int, row_bytes: int) -> None:
    """A row without values or bytes is refused with both numbers."""
    with pytest.raises(SettingError, match=f"got {elements} elements in {row_bytes} bytes"):
        RowFormat("none", elements, row_bytes)


def test_a_format_does_not_change() -> None:
    """A row format is a fixed value and can be a key."""
    row_format = RowFormat.dense("float32", 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        row_format.row_bytes = 1  # type: ignore[misc] # assigning is the test
    assert {row_format: 1}[RowFormat.dense("float32", 4)] == 1
