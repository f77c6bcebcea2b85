"""A batch is sized from what was set, or refused with the knob."""

import pytest
import torch
from tiering import CPU, GEOMETRY, WIDTHS, counters_of, plan_for

from hisparse.config import CacheSettings
from hisparse.errors import HostPoolFullError, SettingError
from hisparse.integrations.transformers.geometry import ModelGeometry
from hisparse.integrations.transformers.plan import plan_batch

PAGE_BYTES = sum(WIDTHS.values()) * 4 * 4  # four rows of float32 in every layer


@pytest.mark.parametrize("batch", [1, 3])
def test_without_limits_the_model_decides(batch: int) -> None:
    """The pool holds the model's longest context for every request, and the hot buffer two selections."""
    plan = plan_for(batch)
    assert (plan.pages, plan.max_rows, plan.hot_slots) == (16 * batch, 64, 8)


def test_max_positions_sizes_the_pool() -> None:
    """A shorter limit makes a smaller pool, in whole pages for each request."""
    plan = plan_for(2, max_positions=9)
    assert (plan.pages, plan.max_rows) == (6, 9)


def test_a_pool_limit_bounds_the_context() -> None:
    """With only a byte limit every request gets its share of the pages, rounded down to whole ones."""
    plan = plan_for(2, host_pool_bytes=7 * PAGE_BYTES + PAGE_BYTES - 1)
    assert (plan.pages, plan.max_rows) == (7, 12)
    assert plan_for(1, host_pool_bytes=1000 * PAGE_BYTES).max_rows == 64


def test_both_limits_are_kept() -> None:
    """Where both are set, the pool has its bytes and the request its positions: room for later requests."""
    plan = plan_for(1, host_pool_bytes=20 * PAGE_BYTES, max_positions=9)
    assert (plan.pages, plan.max_rows) == (20, 9)


def test_a_pool_below_a_page_a_request_is_refused() -> None:
    """A byte limit with less than one page for each request names pages, bytes and knob."""
    limit = 3 * PAGE_BYTES - 1
    with pytest.raises(HostPoolFullError, match=rf"3 requests need .* {PAGE_BYTES} bytes.*host_pool_bytes.*{limit}"):
        plan_for(3, host_pool_bytes=limit)
    assert plan_for(3, host_pool_bytes=3 * PAGE_BYTES).max_rows == 4


@pytest.mark.parametrize(("dtype", "item_bytes"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 2)])
def test_row_formats_follow_dtype_and_layer(dtype: torch.dtype, item_bytes: int) -> None:
    """Each layer's row has its own width, stock layers have none, and the dtype gives the bytes."""
    formats = plan_for(1, dtype=dtype).row_formats
    assert [row_format.row_bytes for row_format in formats] == [width * item_bytes for width in WIDTHS.values()]
    assert {f"torch.{row_format.name}" for row_format in formats} == {str(dtype)}


@pytest.mark.parametrize("limit", [None, 10_000])
def test_a_dtype_without_rows_is_refused(limit: int | None) -> None:
    """Rows of another dtype are refused with those that exist."""
    plan = {"dtype": torch.float64, "host_pool_bytes": limit}
    with pytest.raises(SettingError, match=r"rows must be float32, bfloat16, float16, got torch.float64"):
        _ = plan_for(1, **plan).row_formats  # type: ignore[arg-type] # one dict of both kinds


def test_tokens_are_counted_in_rows() -> None:
    """Where a row stands for several tokens, a limit in tokens reserves that much less."""
    halved = ModelGeometry("made_up", 4, 2, 64, GEOMETRY.layers)
    settings = CacheSettings(page_rows=4, max_positions=17)
    plan = plan_batch(halved, settings, counters_of(), batch=1, dtype=torch.float32, device=CPU)
    assert (plan.max_rows, plan.pages) == (9, 3)


def test_labels_are_the_plan_in_words() -> None:
    """The info labels name sizes, order, backend and kind of pool, and no directory."""
    assert plan_for(1, host_pool="disk:/secret/place", hot_slots=5, order="vllm").labels == {
        "top_k": "4",
        "hot_slots": "5",
        "page_rows": "4",
        "order": "vllm",
        "backend": "reference",
        "host_pool": "disk",
        "row_format": "float32",
    }
