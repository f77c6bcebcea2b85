"""The resident baseline keeps every row on the device and gathers selections from there."""

import pytest
import torch
from tiering import CPU, GEOMETRY, WIDTHS, append_step, assert_selects, rows_for

from hisparse.errors import ArrayError
from hisparse.integrations.transformers.resident import ResidentRows


@pytest.fixture
def store() -> ResidentRows:
    """An empty batch of two."""
    return ResidentRows(GEOMETRY, batch=2, dtype=torch.float32, device=CPU)


def test_rows_are_held_and_selected_exactly(store: ResidentRows) -> None:
    """History and selection give the appended rows, several queries at a time too."""
    first, second = append_step(store, 2, 5), append_step(store, 2, 80, seed=1)
    rows = {layer: torch.cat([first[layer], second[layer]], dim=1) for layer in WIDTHS}
    for layer, values in rows.items():
        assert store.length(layer) == 85
        assert torch.equal(store.history(layer), values)
    assert_selects(store, rows, torch.tensor([[[84, 0, -1]], [[3, 60, 5]]], dtype=torch.int32))
    topk = torch.tensor([[[84, 0], [1, -1]], [[3, 60], [60, 3]]], dtype=torch.int32)
    assert_selects(store, rows, topk)


def test_history_is_a_copy(store: ResidentRows) -> None:
    """Writing to what history returned changes no row."""
    rows = append_step(store, 2, 3)
    store.history(0).zero_()
    assert torch.equal(store.history(0), rows[0])


@pytest.mark.parametrize("batch", [1, 3])
def test_another_batch_is_refused(store: ResidentRows, batch: int) -> None:
    """Rows of another batch are refused with both numbers and the way out, one row for all included."""
    with pytest.raises(ArrayError, match=f"rows must be for 2 requests, got {batch}; reset"):
        store.append(0, rows_for(0, batch, 1))
    assert store.length(0) == 0


def test_removed_rows_are_replaced(store: ResidentRows) -> None:
    """After a cut new rows take the places of the old ones; cutting beyond the length changes nothing."""
    rows = append_step(store, 2, 6)
    store.truncate(4)
    store.truncate(100)
    added = append_step(store, 2, 1, seed=2)
    for layer in WIDTHS:
        assert torch.equal(store.history(layer), torch.cat([rows[layer][:, :4], added[layer]], dim=1))


@pytest.mark.parametrize("sources", [[1, 0], [1], [0, 0, 1]])
def test_requests_follow_their_sources(store: ResidentRows, sources: list[int]) -> None:
    """Requests are reordered, dropped and repeated, and go their own ways afterwards."""
    rows = append_step(store, 2, 6)
    store.reindex(sources)
    assert store.batch == len(sources)
    added = append_step(store, len(sources), 2, seed=1)
    for layer in WIDTHS:
        assert torch.equal(store.history(layer), torch.cat([rows[layer][sources], added[layer]], dim=1))


def test_device_bytes_cover_all_rows(store: ResidentRows) -> None:
    """The bytes reported hold every row of every layer, stock layers excepted."""
    assert store.device_bytes == 0
    append_step(store, 2, 300)
    needed = 2 * 300 * sum(WIDTHS.values()) * 4
    assert needed <= store.device_bytes <= needed * 1.25


def test_only_single_queries_are_selected(store: ResidentRows) -> None:
    """A chunk of several queries goes through the dense path of the stock attention."""
    assert store.can_select(1)
    assert not store.can_select(2)
