"""A tiered batch holds what was appended, selects it exactly, and refuses what does not belong to it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiering import GEOMETRY, WIDTHS, append_step, assert_selects, open_rows, plan_for, rows_for

from hisparse.errors import ArrayError, HostPoolFullError, PositionError, StateError
from hisparse.integrations.transformers.resident import ResidentRows
from hisparse.integrations.transformers.tiered import TieredRows


def joined(*steps: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return the rows of several steps, by layer."""
    return {layer: torch.cat([rows[layer] for rows in steps], dim=1) for layer in WIDTHS}


def selection(*rows: list[int]) -> torch.Tensor:
    """Return int32 ``[B, 1, 4]``."""
    return torch.tensor(rows, dtype=torch.int32).unsqueeze(1)


@pytest.fixture(params=["ram", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TieredRows]:
    """An empty batch of two, in memory and in a file; recounted and closed at the end."""
    place = "ram" if request.param == "ram" else f"disk:{tmp_path}"
    opened = open_rows(plan_for(2, host_pool=place), 2)
    yield opened
    opened.check()
    opened.close()


def test_rows_are_held_and_selected_exactly(store: TieredRows) -> None:
    """Appended rows come back by history and by selection, whatever the sizes of the steps."""
    rows = joined(*(append_step(store, 2, count, seed=count) for count in (5, 1, 9)))
    assert {store.length(layer) for layer in WIDTHS} == {15}
    for layer, values in rows.items():
        assert torch.equal(store.history(layer), values)
    assert_selects(store, rows, selection([14, 3, 0, -1], [7, 8, 13, 1]))


def test_nothing_appended_is_nothing_changed(store: TieredRows) -> None:
    """A step without tokens reserves nothing and keeps the lengths."""
    append_step(store, 2, 0)
    assert (store.length(0), store.host.pool.used_pages, store.history(0).shape) == (0, 0, (2, 0, WIDTHS[0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rows_keep_their_bits(dtype: torch.dtype) -> None:
    """Rows are stored as they are: NaNs and negative zeros included."""
    store = open_rows(plan_for(1, dtype=dtype), 1)
    rows = rows_for(0, 1, 6, dtype=dtype)
    rows[0, 2, :3] = torch.tensor([float("nan"), -0.0, float("inf")], dtype=dtype)
    store.append(0, rows)
    assert torch.equal(store.history(0).view(torch.int16), rows.view(torch.int16))
    got = store.select(0, selection([2, 5, 0, 1])).rows[0, 0]
    assert torch.equal(got.view(torch.int16), rows[0, [2, 5, 0, 1]].view(torch.int16))
    store.close()


@pytest.mark.parametrize(
    ("rows", "came"),
    [
        (torch.zeros(1, 2, 6), r"torch.float32\[1, 2, 6\]"),
        (torch.zeros(3, 2, 6), r"torch.float32\[3, 2, 6\]"),
        (torch.zeros(2, 2, 7), r"torch.float32\[2, 2, 7\]"),
        (torch.zeros(2, 6), r"torch.float32\[2, 6\]"),
        (torch.zeros(2, 2, 6, dtype=torch.bfloat16), r"torch.bfloat16\[2, 2, 6\]"),
        (torch.zeros(2, 0, 6, dtype=torch.bfloat16), r"torch.bfloat16\[2, 0, 6\]"),
    ],
)
def test_rows_of_another_batch_are_refused(store: TieredRows, rows: torch.Tensor, came: str) -> None:
    """Another batch, width, rank or dtype is refused with what was expected, what came and the way out."""
    before = append_step(store, 2, 3)
    with pytest.raises(ArrayError, match=rf"rows of layer 0 must be torch.float32\[2, S, 6\], got .*{came}.*reset"):
        store.append(0, rows)
    assert torch.equal(store.history(0), before[0])


def test_rows_of_another_device_are_refused(store: TieredRows) -> None:
    """A model split over devices is refused with both devices."""
    with pytest.raises(StateError, match="layer 1 runs on meta, but this cache was opened on cpu"):
        store.append(1, torch.zeros(2, 1, 6, device="meta"))


def test_a_half_done_step_is_noticed(store: TieredRows) -> None:
    """If a step stopped between layers, the next one is refused at the first layer; cutting back makes all well."""
    rows = append_step(store, 2, 5)
    store.append(0, rows_for(0, 2, 1, seed=1))
    with pytest.raises(StateError, match=r"stopped half way: layers hold \[5, 6\] rows; reset"):
        store.append(0, rows_for(0, 2, 1, seed=2))
    store.truncate(5)
    rows = joined(rows, append_step(store, 2, 2, seed=3))
    assert_selects(store, rows, selection([6, 5, 4, 0], [5, 6, -1, 1]))


def test_growing_past_the_limit_changes_nothing() -> None:
    """The row past the limit is refused with the knob; the same store goes on within it."""
    store = open_rows(plan_for(1, max_positions=6), 1)
    rows = append_step(store, 1, 5)
    with pytest.raises(PositionError, match="max_positions"):
        store.append(0, rows_for(0, 1, 2))
    assert_selects(store, joined(rows, append_step(store, 1, 1, seed=4)), selection([5, 4, 0, -1]))
    store.close()


def test_only_held_rows_can_be_selected(store: TieredRows) -> None:
    """A position at the length is refused, the one before it served."""
    append_step(store, 2, 5)
    with pytest.raises(PositionError):
        store.select(0, selection([0, 1, 2, 5], [0, 1, 2, 3]))
    assert store.select(0, selection([0, 1, 2, 4], [0, 1, 2, 3])).is_selected.all()


def test_removed_rows_are_never_served(store: TieredRows) -> None:
    """After a cut, new rows at the same positions are what is selected, though the old ones had been hot."""
    kept = append_step(store, 2, 9)
    topk = selection([8, 7, 3, 2], [6, 8, 0, 5])
    assert_selects(store, kept, topk)
    store.truncate(6)
    assert store.length(3) == 6
    rows = joined({layer: values[:, :6] for layer, values in kept.items()}, append_step(store, 2, 3, seed=7))
    assert_selects(store, rows, topk)


def test_cutting_nothing_keeps_everything_hot(store: TieredRows) -> None:
    """Truncating to the length or beyond changes no row and makes no miss."""
    rows = append_step(store, 2, 6)
    topk = selection([5, 4, 3, 2], [0, 1, 2, 3])
    assert_selects(store, rows, topk)
    misses = [counters.selections[1] for counters in store.plan.counters]
    store.truncate(6)
    store.truncate(60)
    assert_selects(store, rows, topk)
    assert [counters.selections[1] for counters in store.plan.counters] == misses


def test_a_swapped_batch_of_the_same_size_keeps_who_stayed_warm() -> None:
    """Requests that stay in place keep their hot rows, those that moved start cold; bytes are right in both."""
    store = open_rows(plan_for(3), 3)
    rows = append_step(store, 3, 6)
    topk = selection([5, 4, 3, 2], [1, 2, 3, 4], [0, 1, 5, 3])
    assert_selects(store, rows, topk)
    store.reindex([2, 1, 0])
    moved = joined({layer: values[[2, 1, 0]] for layer, values in rows.items()}, append_step(store, 3, 1, seed=3))
    assert_selects(store, moved, topk)
    assert store.plan.counters[1].by_request[:, :2].tolist() == [[0, 8], [4, 4], [0, 8]]
    store.close()


@pytest.mark.parametrize("sources", [[0], [1, 1, 0], [1, 0, 1, 0, 0]])
def test_a_batch_of_another_size_starts_cold(sources: list[int]) -> None:
    """Repeated and dropped requests read their rows, and go their own ways afterwards."""
    store = open_rows(plan_for(5), 2)
    rows = append_step(store, 2, 7)
    assert_selects(store, rows, selection([5, 4, 3, 2], [1, 2, 3, 4]))
    store.reindex(sources)
    assert store.batch == len(sources)
    rows = {layer: values[sources] for layer, values in rows.items()}
    rows = joined(rows, append_step(store, len(sources), 3, seed=9))
    assert_selects(store, rows, selection(*([9, 7, 6, i] for i in range(len(sources)))))
    store.check()
    store.close()


@pytest.mark.parametrize("sources", [[0, 2], [-1, 0], [0, 0, 1]])
def test_a_rearrangement_that_can_not_be_is_refused(sources: list[int]) -> None:
    """A source out of range, or more requests than the pool has room for, leaves batch and hot rows as they were."""
    store = open_rows(plan_for(2), 2)
    rows = append_step(store, 2, 6)
    topk = selection([5, 4, 3, 2], [0, 1, 2, 3])
    assert_selects(store, rows, topk)
    with pytest.raises((PositionError, HostPoolFullError)):
        store.reindex(sources)
    assert store.batch == 2
    assert_selects(store, rows, topk)
    assert store.plan.counters[0].selections.tolist() == [8, 8, 0, 0]
    store.check()
    store.close()


def test_a_rearrangement_without_device_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the hot buffers of a larger batch can't be had, the old batch goes on as it was."""
    store = open_rows(plan_for(4), 2)
    rows = append_step(store, 2, 6)

    def fail(*_given: Any) -> None:
        raise OSError("no memory")

    monkeypatch.setattr("hisparse.integrations.transformers.hot_level.zero_rows", fail)
    with pytest.raises(OSError, match="no memory"):
        store.reindex([0, 1, 1])
    monkeypatch.undo()
    assert store.batch == 2
    assert_selects(store, rows, selection([5, 4, 3, 2], [0, 1, 2, 3]))
    store.close()


def test_queries_that_fit_a_step_are_told_beforehand() -> None:
    """As many queries as always fit the hot slots can be selected, one more can't."""
    for slots, queries in ((4, 1), (8, 2), (11, 2), (12, 3)):
        store = open_rows(plan_for(1, hot_slots=slots), 1)
        assert store.can_select(queries)
        assert not store.can_select(queries + 1)
        store.close()


def test_a_failed_opening_leaves_no_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the hot buffers can't be had, the pool's file is gone again."""

    def fail(*_given: Any) -> None:
        raise OSError("no memory")

    monkeypatch.setattr("hisparse.integrations.transformers.hot_level.zero_rows", fail)
    with pytest.raises(OSError, match="no memory"):
        open_rows(plan_for(2, host_pool=f"disk:{tmp_path}"), 2)
    assert not list(tmp_path.iterdir())


def test_a_closed_store_ends_its_requests(tmp_path: Path) -> None:
    """Closing, twice is harmless, gives every page back to the pool, which stays open; counts stay."""
    store = open_rows(plan_for(2, host_pool=f"disk:{tmp_path}"), 2)
    rows = append_step(store, 2, 6)
    assert_selects(store, rows, selection([5, 4, 3, 2], [0, 1, 2, 3]))
    pool = store.host.pool
    assert pool.used_pages == 4
    store.close()
    store.close()
    assert pool.free_pages == pool.pages
    pool.close()
    assert not list(tmp_path.iterdir())
    assert store.batch == 0
    assert store.plan.counters[0].selections.tolist() == [0, 8, 0, 0]


def test_tiered_and_resident_rows_agree() -> None:
    """Through appends, cuts and rearrangements both stores hold and select the same rows."""
    tiered = open_rows(plan_for(4), 2)
    resident = ResidentRows(GEOMETRY, batch=2, dtype=torch.float32, device=torch.device("cpu"))
    rng = np.random.default_rng(5)
    for seed in range(12):
        event = ("append", "truncate", "append", "reindex")[seed % 4]
        sources = rng.integers(0, tiered.batch, int(rng.integers(1, 5))).tolist()
        for store in (tiered, resident):
            if event == "append":
                append_step(store, store.batch, 3 + seed % 3, seed=seed)
            elif event == "truncate":
                store.truncate(store.length(0) - 2)
            else:
                store.reindex(sources)
        length = tiered.length(0)
        picks = torch.stack([torch.randperm(length, generator=torch.Generator().manual_seed(seed))[:1].to(torch.int32)])
        topk = picks[None].expand(tiered.batch, 1, 1).contiguous()
        for layer in WIDTHS:
            assert torch.equal(tiered.history(layer), resident.history(layer))
            assert torch.equal(tiered.select(layer, topk).rows, resident.select(layer, topk).rows)
    tiered.check()
    tiered.close()
