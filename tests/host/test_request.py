"""Growing, shrinking and sharing pages."""

from collections.abc import Callable

import numpy as np
import pytest

from hisparse.errors import HostPoolFullError, PositionError, StateError
from hisparse.host import HostPool, RequestPages

MakePool = Callable[..., HostPool]
RandomRows = Callable[..., np.ndarray]


def counts(pool: HostPool) -> tuple[int, int, int]:
    """Return free, used and reserved pages after a recount."""
    pool.check()
    return pool.free_pages, pool.used_pages, pool.reserved_pages


def write(pool: HostPool, request: RequestPages, first: int, data: np.ndarray) -> None:
    """Write rows of layer 0 at positions from `first` on."""
    pool.write(0, request.rows(np.arange(first, first + len(data))), data)


def contents(pool: HostPool, request: RequestPages) -> np.ndarray:
    """Return all rows of layer 0."""
    out = np.empty((request.length, 1152), np.uint8)
    pool.read(0, request.rows(np.arange(request.length)), out)
    return out


def test_a_page_is_taken_at_its_first_row(make_pool: MakePool) -> None:
    """Extending takes exactly the pages that the length needs, at and around page ends."""
    pool = make_pool(8, 4)
    request = pool.admit(17)
    for length, used in ((0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (17, 5)):
        request.extend(length)
        assert counts(pool) == (3, used, 5 - used)
    request.truncate(8)
    assert counts(pool) == (3, 2, 3)


def test_lengths_out_of_range_are_refused(make_pool: MakePool) -> None:
    """Too long, too short and negative lengths and positions are named, and change nothing."""
    pool = make_pool(8, 4)
    request = pool.admit(17)
    request.extend(9)
    with pytest.raises(HostPoolFullError, match=r"18 positions exceeds the 17 \(5 pages\).*max_positions"):
        request.extend(18)
    with pytest.raises(PositionError, match="extend to 8 is below the length 9"):
        request.extend(8)
    for length in (-1, 10):
        with pytest.raises(PositionError, match=f"truncate to {length} is outside 0 to the length 9"):
            request.truncate(length)
    for position in (-1, 9):
        with pytest.raises(PositionError, match=f"position {position} is outside the request's 9 positions"):
            request.rows(np.array([0, position]))
    assert request.length == 9
    assert request.max_positions == 17
    assert counts(pool) == (3, 3, 2)


def test_a_closed_request_says_so(make_pool: MakePool) -> None:
    """Every use of a closed request is a StateError, and its pages are given back once."""
    pool = make_pool(8, 4)
    request = pool.admit(16)
    request.extend(16)
    request.close()
    request.close()
    for use in (lambda: request.extend(16), lambda: request.truncate(0), lambda: request.rows(np.arange(1))):
        with pytest.raises(StateError, match="closed"):
            use()
    with pytest.raises(StateError, match="closed or of another pool"):
        pool.rearrange([request], [0])
    assert counts(pool) == (8, 0, 0)


def test_a_permutation_fits_a_full_pool(make_pool: MakePool, random_rows: RandomRows) -> None:
    """Requests are reordered without a page to spare, and keep their handles and rows."""
    pool = make_pool(6, 4)
    requests = [pool.admit(8) for _ in range(3)]
    for seed, request in enumerate(requests):
        request.extend(7)
        write(pool, request, 0, random_rows(7, 1152, seed))
    turned = pool.rearrange(requests, [2, 0, 1])
    assert turned == [requests[2], requests[0], requests[1]]
    assert counts(pool) == (0, 6, 0)
    for seed, request in zip((2, 0, 1), turned, strict=True):
        np.testing.assert_array_equal(contents(pool, request), random_rows(7, 1152, seed))


def test_repeated_requests_share_until_they_grow(make_pool: MakePool, random_rows: RandomRows) -> None:
    """Copies of a request share its pages, grow apart from the last row on, and never see each other's rows."""
    pool = make_pool(12, 4)
    request = pool.admit(12)
    request.extend(6)
    data = random_rows(6, 1152)
    write(pool, request, 0, data)
    beams = pool.rearrange([request], [0, 0, 0])
    assert counts(pool) == (3, 2, 7)
    for seed, beam in enumerate(beams):
        beam.extend(9)
        write(pool, beam, 6, random_rows(3, 1152, seed + 10))
    # One shared full page; for each beam, its own copy of the tail and one page more.
    assert counts(pool) == (3, 7, 2)
    for seed, beam in enumerate(beams):
        np.testing.assert_array_equal(contents(pool, beam)[:6], data)
        np.testing.assert_array_equal(contents(pool, beam)[6:], random_rows(3, 1152, seed + 10))


def test_cutting_into_a_shared_page_leaves_the_other_side(make_pool: MakePool, random_rows: RandomRows) -> None:
    """A copy cut back into a shared full page may rewrite it; the other request keeps its rows."""
    pool = make_pool(8, 4)
    request = pool.admit(16)
    request.extend(16)
    data = random_rows(16, 1152)
    write(pool, request, 0, data)
    one, other = pool.rearrange([request], [0, 0])
    other.truncate(6)
    with pytest.raises(StateError, match=r"row \d+ lies in page \d+, which 2 requests share"):
        write(pool, other, 5, data[:1])
    other.extend(8)
    write(pool, other, 6, data[:2])
    np.testing.assert_array_equal(contents(pool, one), data)
    np.testing.assert_array_equal(contents(pool, other), data[[0, 1, 2, 3, 4, 5, 0, 1]])
    assert counts(pool) == (0, 5, 3)


def test_selection_closes_what_nothing_continues(make_pool: MakePool, random_rows: RandomRows) -> None:
    """A request without a continuation gives its pages back, also where their promise is needed at once."""
    pool = make_pool(4, 4)
    kept, dropped = pool.admit(8), pool.admit(8)
    for seed, request in enumerate((kept, dropped)):
        request.extend(8)
        write(pool, request, 0, random_rows(8, 1152, seed))
    both = pool.rearrange([kept, dropped], [0, 0])
    assert not dropped.is_open
    assert counts(pool) == (0, 2, 2)
    for request in both:
        request.truncate(3)
        request.extend(8)
        np.testing.assert_array_equal(contents(pool, request)[:3], random_rows(8, 1152, 0)[:3])
    assert pool.rearrange(both, []) == []
    assert counts(pool) == (4, 0, 0)


def test_a_refused_rearrangement_changes_nothing(make_pool: MakePool) -> None:
    """Too few pages, a source out of range, a repeated or foreign request: all requests stay as they were."""
    pool, foreign = make_pool(6, 4), make_pool(6, 4)
    one, two = pool.admit(8), pool.admit(8)
    one.extend(5)
    stranger = foreign.admit(4)
    with pytest.raises(HostPoolFullError, match="6 pages needed, 4 free of 6"):
        pool.rearrange([one, two], [0, 0, 0, 0])
    for source in (-1, 2):
        with pytest.raises(PositionError, match=f"source {source} is outside 0 to 1"):
            pool.rearrange([one, two], [0, source])
    with pytest.raises(StateError, match="given twice"):
        pool.rearrange([one, one], [0, 1])
    with pytest.raises(StateError, match="another pool"):
        pool.rearrange([one, stranger], [0, 1])
    assert one.is_open
    assert two.is_open
    assert counts(pool) == (2, 2, 2)
