"""Flat addresses of a step equal the page arithmetic, in 64 bits."""

import numpy as np
import pytest
from comparing import assert_same_resolution, int32
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.errors import ArrayError, PositionError
from hisparse.kernels import BACKENDS, PageTable, Residency, Resolution, address_step
from hisparse.layout import rows_of


def resolution(slots: np.ndarray, misses: list[tuple[int, int, int]]) -> Resolution:
    """Return a resolution with the given slots and misses (request, position, slot)."""
    request, position, slot = (int32(*column) for column in zip(*misses, strict=True)) if misses else [int32()] * 3
    return Resolution(slots, request, position, slot, np.zeros((len(slots), 4), np.int64))


def test_slots_are_rows_of_a_flat_buffer() -> None:
    """Slot s of request r is row r * hot_slots + s; padding and resident rows are not selected, and still in range."""
    step = resolution(int32([3, -1, 0], [5, -7, -1], [-1, -1, -1]), [])
    addresses = address_step(step, int32(0, 2, -1), PageTable(np.zeros((3, 0), np.int64), 4), hot_slots=8)
    assert addresses.slots.dtype == np.int64
    assert addresses.is_selected.dtype == np.bool_
    assert addresses.is_selected.tolist() == [[True, False, True], [True, False, False], [False] * 3]
    assert addresses.slots[addresses.is_selected].tolist() == [3, 0, 21]
    assert ((addresses.slots >= 0) & (addresses.slots < 24)).all()
    assert addresses.miss_rows.tolist() == addresses.miss_slots.tolist() == []


def test_misses_are_found_through_the_page_table() -> None:
    """A miss is read from its page in the pool and goes to its request's slot."""
    pages = PageTable(np.array([[40, 0], [8, 100]]), 4)
    step = resolution(int32([0, 1], [2, 3]), [(0, 3, 0), (1, 6, 2), (1, 0, 3)])
    addresses = address_step(step, int32(0, 1), pages, hot_slots=5)
    assert addresses.miss_rows.tolist() == [43, 102, 8]
    assert addresses.miss_slots.tolist() == [0, 7, 8]


def test_large_buffers_and_pools_are_addressed_in_64_bits() -> None:
    """Neither a slot nor a row wraps where it no longer fits 32 bits."""
    first = 2**40
    pages = PageTable(np.array([[0], [0], [0], [first]]), 2**20)
    step = resolution(int32([2**30 - 1]), [(3, 2**20 - 1, 2**30 - 1)])
    addresses = address_step(step, int32(3), pages, hot_slots=2**30)
    assert addresses.slots.tolist() == [[2**32 - 1]]
    assert addresses.miss_slots.tolist() == [2**32 - 1]
    assert addresses.miss_rows.tolist() == [first + 2**20 - 1]


selections = st.lists(st.lists(st.integers(0, 63), max_size=4, unique=True), min_size=3, max_size=3)


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(selections, min_size=1, max_size=6), seed=st.integers(0, 99))
def test_addresses_equal_the_page_arithmetic(steps: list[list[list[int]]], seed: int) -> None:
    """For real resolutions over shuffled pages, every address is what the obvious arithmetic gives."""
    residency = Residency(
        max_requests=3, hot_slots=6, max_positions=64, top_k=4, page_rows=16, order="stack", backend="reference"
    )
    table = np.random.default_rng(seed).permutation(12).reshape(3, 4).astype(np.int32)
    requests = int32(0, 1, 2)
    for rows in steps:
        topk = int32(*[row + [-1] * (4 - len(row)) for row in rows])
        resolved = residency.resolve(requests, topk)
        addresses = address_step(resolved, requests, PageTable(table.astype(np.int64) * 16, 16), hot_slots=6)
        np.testing.assert_array_equal(addresses.is_selected, topk >= 0)
        expected = requests[:, None] * 6 + resolved.slots
        np.testing.assert_array_equal(addresses.slots[topk >= 0], expected[topk >= 0])
        np.testing.assert_array_equal(addresses.miss_slots, resolved.miss_request * 6 + resolved.miss_slot)
        each = zip(resolved.miss_request, resolved.miss_position, strict=True)
        wanted = [int(rows_of(table[request], np.array([position]), 16)[0]) for request, position in each]
        assert addresses.miss_rows.tolist() == wanted


@pytest.mark.parametrize("misses", [0, 1])
def test_a_step_is_not_changed_by_addressing_it(misses: int) -> None:
    """The resolution keeps its values: several layers address the same one."""
    step = resolution(int32([1, -1]), [(0, 2, 1)] * misses)
    before = [step.slots.copy(), step.miss_slot.copy()]
    address_step(step, int32(0), PageTable(np.zeros((1, 1), np.int64), 4), hot_slots=2)
    np.testing.assert_array_equal(step.slots, before[0])
    np.testing.assert_array_equal(step.miss_slot, before[1])


def shuffled_pages(requests: int, columns: int, page_rows: int) -> PageTable:
    """Return a table of distinct pages in no order."""
    pages = np.random.default_rng(columns).permutation(requests * columns).reshape(requests, columns)
    return PageTable(pages * page_rows, page_rows)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("order", ["stack", "vllm"])
@settings(deadline=None, max_examples=30)
@given(steps=st.lists(selections, min_size=1, max_size=6))
def test_resolving_to_rows_is_resolving_and_addressing(steps: list[list[list[int]]], order: str, backend: str) -> None:
    """One call gives what two do, bit for bit, for unions and padding rows too, and leaves the same recency."""
    sizes = {"max_requests": 3, "hot_slots": 9, "max_positions": 64, "top_k": 4, "order": order}
    one, two = Residency(**sizes, backend=backend), Residency(**sizes, backend="reference")
    pages = shuffled_pages(3, 4, 16)
    for i, rows in enumerate(steps):
        requests = (int32(0, 1, 2), int32(2, 2, -1), int32(1))[i % 3]
        topk = int32(*[row + [-1] * (4 - len(row)) for row in rows])[: len(requests)]
        resolution, addresses = one.resolve_rows(requests, topk, pages, length=64)
        expected = two.resolve(requests, topk)
        assert_same_resolution(resolution, expected)
        for got, wanted in zip(addresses, address_step(expected, requests, pages, hot_slots=9), strict=True):
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)
        for request in range(3):
            np.testing.assert_array_equal(one.recency(request), two.recency(request))
    one.check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_position_no_request_has_is_refused(backend: str) -> None:
    """A position from the requests' length on changes nothing; in a padding row it says nothing."""
    residency = Residency(max_requests=2, hot_slots=4, max_positions=64, top_k=2, backend=backend)
    pages = shuffled_pages(2, 2, 16)
    with pytest.raises(PositionError, match="position 20 was selected, but requests hold 20 rows"):
        residency.resolve_rows(int32(0, 1), int32([1, 2], [3, 20]), pages, length=20)
    with pytest.raises(PositionError, match="selects position 3 of request 1 twice"):
        residency.resolve_rows(int32(0, 1), int32([1, 2], [3, 3]), pages, length=20)
    resolution, _ = residency.resolve_rows(int32(0, -1), int32([1, 19], [3, 20]), pages, length=20)
    assert resolution.miss_slot.tolist() == [0, 1]


@pytest.mark.parametrize(("requests", "columns"), [(1, 4), (2, 3)])
def test_pages_that_do_not_cover_the_requests_are_refused(requests: int, columns: int) -> None:
    """Every request and every position needs its page in the table."""
    residency = Residency(max_requests=2, hot_slots=4, max_positions=64, top_k=2)
    with pytest.raises(
        ArrayError, match=rf"first_rows must be int64\[2, 4\] or more, got int64\[{requests}, {columns}\]"
    ):
        residency.resolve_rows(int32(0), int32([1, 2]), shuffled_pages(requests, columns, 16), length=49)


def test_a_step_larger_than_all_before_finds_room() -> None:
    """Scratch kept from step to step grows with the batch, and what earlier steps answered stays as it was."""
    residency = Residency(max_requests=40, hot_slots=4, max_positions=64, top_k=4)
    pages = shuffled_pages(40, 4, 16)
    first, _ = residency.resolve_rows(int32(0), int32([1, 2, 3, 4]), pages, length=64)
    requests = np.arange(40, dtype=np.int32)
    topk = np.tile(int32([1, 2, 3, 5]), (40, 1))
    second, addresses = residency.resolve_rows(requests, topk, pages, length=64)
    assert first.miss_position.tolist() == [1, 2, 3, 4]
    assert second.miss_position.tolist() == [5] + [1, 2, 3, 5] * 39
    np.testing.assert_array_equal(addresses.miss_rows, pages.first_rows[second.miss_request, 0] + second.miss_position)
    residency.check()
