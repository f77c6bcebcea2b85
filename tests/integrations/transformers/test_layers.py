"""A row layer hands attention the new rows, all rows, or only what it selects, and refuses to act alone."""

import pytest
import torch
from tiering import CPU, GEOMETRY, WIDTHS, open_rows, picked, plan_for, rows_for

from hisparse.errors import StateError
from hisparse.integrations.transformers.layers import RowLayer
from hisparse.integrations.transformers.resident import ResidentRows
from hisparse.integrations.transformers.slot import StoreSlot

LATENT = 3


@pytest.fixture(params=["tiered", "resident"])
def slot(request: pytest.FixtureRequest) -> StoreSlot:
    """An empty slot over either kind of store."""
    if request.param == "tiered":
        return StoreSlot(lambda batch, dtype, device: open_rows(plan_for(batch, dtype=dtype, device=device), batch))
    return StoreSlot(lambda batch, dtype, device: ResidentRows(GEOMETRY, batch=batch, dtype=dtype, device=device))


def update(layer: RowLayer, rows: torch.Tensor) -> torch.Tensor:
    """Hand rows ``[B, S, W]`` to an armed layer as latent and rotary key; return what comes back, joined."""
    layer.arm()
    latent, rotary = layer.update(rows[:, None, :, :LATENT], rows[:, None, :, LATENT:])
    return torch.cat([latent, rotary], dim=-1)[:, 0]


def test_the_first_rows_come_straight_back(slot: StoreSlot) -> None:
    """A prompt is attended by the stock path over what it has just made."""
    layer, rows = RowLayer(3, slot), rows_for(3, 2, 7)
    assert torch.equal(update(layer, rows), rows)
    assert not layer.take_reads_selection()
    assert (layer.get_seq_length(), layer.is_initialized, layer.dtype) == (7, True, torch.float32)


def test_a_decoded_token_reads_its_selection(slot: StoreSlot) -> None:
    """One query gets back only its own row, and its selection from the store; the mark is taken once."""
    layer, rows = RowLayer(3, slot), rows_for(3, 2, 8)
    update(layer, rows[:, :7])
    assert torch.equal(update(layer, rows[:, 7:]), rows[:, 7:])
    assert layer.take_reads_selection()
    assert not layer.take_reads_selection()
    topk = torch.tensor([[[7, 0, 3, -1]], [[1, 7, 2, 5]]], dtype=torch.int32)
    selected = layer.select(topk)
    assert torch.equal(selected.rows[topk >= 0], picked(rows, topk)[topk >= 0])


def test_a_large_chunk_reads_everything(slot: StoreSlot) -> None:
    """More queries than a step can select get every row back, old and new."""
    layer, rows = RowLayer(3, slot), rows_for(3, 2, 12)
    update(layer, rows[:, :7])
    layer.arm()
    latent, rotary = layer.update(rows[:, None, 7:, :LATENT], rows[:, None, 7:, LATENT:])
    assert not layer.take_reads_selection()
    assert torch.equal(torch.cat([latent, rotary], dim=-1)[:, 0], rows)
    assert latent.is_contiguous()
    assert rotary.is_contiguous()


def test_a_pass_must_be_announced(slot: StoreSlot) -> None:
    """Rows from a model that was not enabled are refused before any is kept, each pass anew."""
    layer, rows = RowLayer(3, slot), rows_for(3, 2, 3)
    halves = rows[:, None, :, :LATENT], rows[:, None, :, LATENT:]
    for held in (0, 3):
        with pytest.raises(StateError, match=r"enable\(model\) first"):
            layer.update(*halves)
        assert layer.get_seq_length() == held
        update(layer, rows)
        assert layer.get_seq_length() == held + 3


def test_announcing_a_pass_forgets_the_one_before(slot: StoreSlot) -> None:
    """A mark that attention never took, because the pass failed, does not reach the next pass."""
    layer, rows = RowLayer(3, slot), rows_for(3, 1, 4)
    update(layer, rows[:, :3])
    update(layer, rows[:, 3:])
    layer.arm()
    assert not layer.take_reads_selection()


def test_nothing_can_be_selected_before_a_row(slot: StoreSlot) -> None:
    """Asking an empty layer for rows is refused by its number."""
    with pytest.raises(StateError, match="layer 1 was asked for rows before any were appended"):
        RowLayer(1, slot).select(torch.zeros(1, 1, 4, dtype=torch.int32))


def test_index_keys_grow_and_follow(slot: StoreSlot) -> None:
    """Index keys are all returned, cut and copied with their requests, and counted in bytes."""
    layer, keys = RowLayer(3, slot), torch.randn(2, 9, 5)
    assert (layer.index_key_bytes, layer.is_indexer_initialized) == (0, False)
    assert torch.equal(layer.update_indexer(keys[:, :6]), keys[:, :6])
    assert torch.equal(layer.update_indexer(keys[:, 6:]), keys)
    layer.truncate_index_keys(7)
    layer.reindex_index_keys([1, 1, 0])
    assert torch.equal(layer.indexer_keys, keys[[1, 1, 0], :7])
    added = torch.randn(3, 1, 5)
    assert torch.equal(layer.update_indexer(added), torch.cat([keys[[1, 1, 0], :7], added], dim=1))
    assert layer.index_key_bytes >= 3 * 8 * 5 * 4
    layer.reset()
    assert (layer.index_key_bytes, layer.is_indexer_initialized, layer.indexer_keys) == (0, False, None)


def test_layers_without_index_keys_follow_silently(slot: StoreSlot) -> None:
    """A layer that shares its leader's selection has no index keys to cut or copy."""
    layer = RowLayer(1, slot)
    layer.truncate_index_keys(3)
    layer.reindex_index_keys([0, 0])
    assert layer.index_key_bytes == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda layer: layer.crop(-3), "crop the cache, .* 3 tokens"),
        (lambda layer: layer.reorder_cache(torch.tensor([1, 0])), r"reorder the cache, .*\[1, 0\]"),
        (lambda layer: layer.batch_repeat_interleave(2), "repeat the cache's batch, .* 2"),
        (lambda layer: layer.batch_select_indices(torch.tensor([1])), r"select in the cache's batch, .*\[1\]"),
    ],
    ids=("crop", "reorder", "repeat", "select"),
)
def test_one_layer_is_never_changed_alone(slot: StoreSlot, call: object, message: str) -> None:
    """What changes requests is refused by a single layer, which says where to ask, and keeps its rows."""
    layer = RowLayer(3, slot)
    update(layer, rows_for(3, 2, 3))
    with pytest.raises(StateError, match=message):
        call(layer)  # type: ignore[operator] # one of the calls above
    assert layer.get_seq_length() == 3


def test_offloading_hooks_of_transformers_do_nothing(slot: StoreSlot) -> None:
    """Rows are on the host already: offloading and prefetching change neither length nor rows."""
    layer, rows = RowLayer(3, slot), rows_for(3, 1, 3)
    update(layer, rows)
    layer.offload()
    layer.prefetch()
    store = slot.ensure(1, torch.float32, CPU)
    assert torch.equal(store.history(3), rows)
    assert store.length(3) == 3
    assert WIDTHS[3] == rows.shape[2]
