"""Rows of a batch in the pool are where the page table says, whatever happened to the batch."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.errors import DiskFullError, HostPoolFullError, PositionError
from hisparse.host import HostPool, RequestPages
from hisparse.integrations.transformers.host_rows import HostRows
from hisparse.layout import RowFormat

LAYERS = (2, 5)
WIDTHS = (8, 3)
PAGE_ROWS = 4
FORMATS = [RowFormat("bytes", 8, 8), RowFormat("bytes", 3, 3)]


def open_rows(batch: int = 2, *, pages: int = 20, max_rows: int = 16) -> HostRows:
    """Open a pool of two layers, model layers 2 and 5, for a batch."""
    formats = [RowFormat("bytes", width, width) for width in WIDTHS]
    return HostRows(HostPool(pages, PAGE_ROWS, formats), LAYERS, batch=batch, max_rows=max_rows)


@pytest.fixture
def rows() -> Iterator[HostRows]:
    """Rows of two requests, closed at the end."""
    opened = open_rows()
    yield opened
    opened.close()


def step(rows: HostRows, count: int, seed: int) -> list[np.ndarray]:
    """Append `count` random rows to both layers, and return them by layer, ``[B, count, bytes]``."""
    start = rows.length
    rows.extend(start + count)
    data = [np.random.default_rng(seed).integers(0, 255, (rows.batch, count, w)).astype(np.uint8) for w in WIDTHS]
    for layer, values in zip(LAYERS, data, strict=True):
        rows.write(layer, start, values.reshape(-1, values.shape[-1]))
    return data


def everything(rows: HostRows) -> list[np.ndarray]:
    """Read all rows of both layers back, ``[B, T, bytes]`` each."""
    found = []
    for layer, width in zip(LAYERS, WIDTHS, strict=True):
        out = np.zeros((rows.batch * rows.length, width), np.uint8)
        rows.read(layer, rows.length, out)
        found.append(out.reshape(rows.batch, rows.length, width))
    return found


def test_rows_come_back_as_they_were_written(rows: HostRows) -> None:
    """Steps of several sizes over page edges are read back in order, each layer its own."""
    steps = [step(rows, count, seed) for seed, count in enumerate((3, 1, 1, 6, 5))]
    for layer, found in enumerate(everything(rows)):
        np.testing.assert_array_equal(found, np.concatenate([data[layer] for data in steps], axis=1))
    rows.check()


def test_the_page_table_says_where_rows_are(rows: HostRows) -> None:
    """A gather by the table's addresses finds the rows of every request, scattered as asked."""
    data = step(rows, 11, 0)
    positions = np.array([10, 0, 4, 7])
    first = rows.pages.first_rows[1, positions // PAGE_ROWS] + positions % PAGE_ROWS
    out = np.zeros((9, 3), np.uint8)
    assert rows.gather(5, first, out, np.array([8, 1, 0, 5])) == 4 * 3
    np.testing.assert_array_equal(out[[8, 1, 0, 5]], data[1][1, positions])
    assert not out[[2, 3, 4, 6, 7]].any()


def test_growing_beyond_what_was_admitted_changes_nothing(rows: HostRows) -> None:
    """The limit is exact; one row more is refused with the row, the limit and the knob."""
    step(rows, 16, 0)
    before = everything(rows)
    with pytest.raises(PositionError, match=r"row 16 is beyond the 16 rows.*max_positions"):
        rows.extend(17)
    assert rows.length == 16
    for found, wanted in zip(everything(rows), before, strict=True):
        np.testing.assert_array_equal(found, wanted)
    rows.check()


def test_a_failure_in_one_request_undoes_the_others(rows: HostRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the second request can't grow, the first is cut back, and the next try appends to both as if nothing was."""
    data = [step(rows, 5, 0)]
    used = rows.pool.used_pages
    real: Callable[[RequestPages, int], None] = RequestPages.extend
    calls = []

    def fail_second(request: RequestPages, length: int) -> None:
        calls.append(length)
        if len(calls) == 2:
            raise DiskFullError("no room")
        real(request, length)

    monkeypatch.setattr(RequestPages, "extend", fail_second)
    with pytest.raises(DiskFullError):
        rows.extend(9)
    monkeypatch.undo()
    assert (rows.length, rows.pool.used_pages) == (5, used)
    rows.check()
    data.append(step(rows, 4, 1))
    for layer, found in enumerate(everything(rows)):
        np.testing.assert_array_equal(found, np.concatenate([part[layer] for part in data], axis=1))


def test_admission_is_all_or_nothing() -> None:
    """A batch the pool can't hold is refused, and the pool is as it was."""
    pool = HostPool(7, PAGE_ROWS, [RowFormat("bytes", 8, 8)])
    with pytest.raises(HostPoolFullError):
        HostRows(pool, [0], batch=2, max_rows=16)
    assert pool.free_pages == 7
    pool.close()


def test_closing_ends_the_requests() -> None:
    """After closing, twice is harmless, no request holds a page; the pool stays open for other batches."""
    rows = open_rows()
    step(rows, 5, 0)
    pool = rows.pool
    rows.close()
    rows.close()
    assert (pool.free_pages, rows.batch) == (20, 0)
    pool.admit(1).close()
    pool.close()


def test_published_pages_begin_the_next_batch() -> None:
    """Rows and index keys come back for every request, of a batch as many as the one that finds least."""
    rows = HostRows(HostPool(20, PAGE_ROWS, FORMATS), (2,), (2,), batch=2, max_rows=16)
    rows.extend(11)
    data = np.arange(2 * 11 * 8, dtype=np.uint8).reshape(-1, 8)
    rows.write(2, 0, data)
    index_keys = {2: torch.arange(2 * 11 * 3, dtype=torch.uint8).reshape(2, 11, 3)}
    keys = [[bytes([request, page]) * 16 for page in range(2)] for request in range(2)]
    assert [rows.publish(request, keys[request], index_keys) for request in (0, 1)] == [2, 2]
    assert rows.publish(1, keys[1], index_keys) == 0
    rows.close()
    found = HostRows(rows.pool, (2,), (2,), batch=2, max_rows=16, prefixes=[keys[1], keys[0][:1]])
    assert found.length == 4
    out, out_keys = np.zeros((8, 8), np.uint8), np.zeros((8, 3), np.uint8)
    found.read(2, 4, out)
    found.read_index_keys(2, 4, out_keys)
    np.testing.assert_array_equal(out.reshape(2, 4, 8), data.reshape(2, 11, 8)[::-1, :4])
    np.testing.assert_array_equal(out_keys.reshape(2, 4, 3), index_keys[2].numpy()[::-1, :4])
    found.check()
    found.close()
    rows.pool.close()


def test_shared_pages_keep_their_index_keys() -> None:
    """Pages that were completed before they were shared can be published by whoever holds them."""
    rows = HostRows(HostPool(20, PAGE_ROWS, FORMATS), (2,), (2,), batch=1, max_rows=16)
    rows.extend(6)
    rows.write(2, 0, np.zeros((6, 8), np.uint8))
    index_keys = {2: torch.arange(6 * 3, dtype=torch.uint8).reshape(1, 6, 3)}
    rows.complete(0, index_keys)
    rows.reindex([0, 0])
    key = [bytes(32)]
    assert rows.publish(1, key, {2: torch.zeros(2, 6, 3, dtype=torch.uint8)}) == 1
    out = np.zeros((2 * 4, 3), np.uint8)
    rows.read_index_keys(2, 4, out)
    np.testing.assert_array_equal(out[:4], index_keys[2][0, :4].numpy())
    rows.close()
    rows.pool.close()


events = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("truncate"), st.integers(0, 16)),
        st.tuples(st.just("reindex"), st.lists(st.integers(0, 3), min_size=1, max_size=4)),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(events=events)
def test_rows_follow_every_rearrangement(events: list[tuple[str, Any]]) -> None:
    """Appending, cutting, reordering and repeating give the rows that plain arrays give."""
    rows = open_rows(pages=40)
    model = [np.zeros((2, 0, width), np.uint8) for width in WIDTHS]
    for seed, (event, argument) in enumerate(events):
        if event == "append" and rows.length + argument <= 16:
            model = [np.concatenate(pair, axis=1) for pair in zip(model, step(rows, argument, seed), strict=True)]
        elif event == "truncate":
            rows.truncate(argument)
            model = [values[:, :argument] for values in model]
        elif event == "reindex":
            sources = [source % rows.batch for source in argument]
            rows.reindex(sources)
            model = [values[sources] for values in model]
        for found, wanted in zip(everything(rows), model, strict=True):
            np.testing.assert_array_equal(found, wanted)
        rows.check()
    rows.close()
