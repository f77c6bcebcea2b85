"""Rows of a batch in the pool are where the page table says, whatever happened to the batch."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.errors import DiskFullError, HostPoolFullError, PositionError, StateError
from hisparse.host import HostPool, RequestPages
from hisparse.integrations.transformers.host_rows import HostRows
from hisparse.layout import RowFormat

LAYERS = (2, 5)
WIDTHS = (8, 3)
PAGE_ROWS = 4


def open_rows(batch: int = 2, *, pages: int = 20, max_rows: int = 16) -> HostRows:
    """Open a pool of two layers, model layers 2 and 5, for a batch."""
    formats = [RowFormat("bytes", width, width) for width in WIDTHS]
    return HostRows(lambda: HostPool(pages, PAGE_ROWS, formats), LAYERS, batch=batch, max_rows=max_rows)


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
    """A batch the pool can't hold is refused, and the pool it would have had is closed."""
    pools = []

    def open_pool() -> HostPool:
        pools.append(HostPool(7, PAGE_ROWS, [RowFormat("bytes", 8, 8)]))
        return pools[-1]

    with pytest.raises(HostPoolFullError):
        HostRows(open_pool, [0], batch=2, max_rows=16)
    with pytest.raises(StateError):
        pools[0].admit(1)
    assert pools[0].free_pages == 7


def test_a_pool_that_can_not_be_opened_is_passed_on() -> None:
    """What opening says is what the caller hears."""

    def fail() -> HostPool:
        raise DiskFullError("the disk is full")

    with pytest.raises(DiskFullError, match="the disk is full"):
        HostRows(fail, [0], batch=1, max_rows=4)


def test_closing_gives_every_page_back() -> None:
    """After closing, twice is harmless, no request holds a page and the pool is closed."""
    rows = open_rows()
    step(rows, 5, 0)
    pool = rows.pool
    rows.close()
    rows.close()
    assert (pool.free_pages, rows.batch) == (20, 0)
    with pytest.raises(StateError):
        pool.admit(1)


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
