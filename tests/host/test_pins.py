"""Pages in flight: never freed, never promised to anybody else, given back by the last unpin."""

from collections.abc import Callable

import numpy as np
import pytest
from prefixes import ROW_BYTES, counts, keys_of, read, run

from hisparse.errors import HostPoolFullError, PositionError, StateError
from hisparse.host import HostPool

MakePool = Callable[..., HostPool]


@pytest.fixture
def pool(make_pool: MakePool) -> HostPool:
    """Return a pool of 12 pages of 4 rows."""
    return make_pool(12, 4, (ROW_BYTES,))


def test_a_page_in_flight_is_not_freed_with_its_request(pool: HostPool) -> None:
    """Pages of a request that ends during their transfer are freed, or cached, by the last unpin."""
    request = run(pool, "abcdefgh", max_positions=12)
    request.extend(9)
    pages = request.pages
    for _ in range(2):
        pool.ledger.pin(pages)
    request.close()
    assert counts(pool) == (9, 3, 0, 0)
    assert pool.ledger.evict(9) == 0
    pool.ledger.unpin(pages)
    assert counts(pool) == (9, 3, 0, 0)
    pool.ledger.unpin(pages)
    assert counts(pool) == (12, 0, 0, 2)


def test_a_page_is_not_freed_twice(pool: HostPool) -> None:
    """One unpin too many is refused by name and changes nothing, alone or in a batch."""
    request = run(pool, "abcdefgh", max_positions=8, publish=False)
    pages = request.pages
    pool.ledger.pin(pages)
    request.close()
    request.close()
    with pytest.raises(StateError, match="page 1 is pinned 1 times, cannot unpin it 2 times"):
        pool.ledger.unpin(pages[[0, 1, 1]])
    assert counts(pool) == (10, 2, 0, 0)
    pool.ledger.unpin(pages)
    for _ in range(3):
        with pytest.raises(StateError, match="page 0 is pinned 0 times"):
            pool.ledger.unpin(pages)
    assert counts(pool) == (12, 0, 0, 0)


def test_pins_that_cannot_hold_are_refused(pool: HostPool) -> None:
    """A free page, a page outside the pool, and a cached page promised to others can't be pinned."""
    run(pool, "abcdefgh", max_positions=8).close()
    with pytest.raises(StateError, match="page 5 is free"):
        pool.ledger.pin(np.array([0, 5], np.int32))
    for page in (-1, 12):
        with pytest.raises(PositionError, match="a page is outside 0 to 11"):
            pool.ledger.pin(np.array([0, page], np.int32))
    blocking = pool.admit(48)
    with pytest.raises(HostPoolFullError, match="2 pages needed, 0 free"):
        pool.ledger.pin(np.array([0, 1], np.int32))
    assert not pool.ledger.pins.any()
    blocking.close()
    pool.ledger.pin(np.array([0, 1], np.int32))
    assert counts(pool) == (10, 2, 0, 0)
    assert pool.admit(8, keys=keys_of("abcdefgh")).length == 8
    pool.ledger.unpin(np.array([0, 1], np.int32))


def test_a_page_in_flight_outlives_its_key(pool: HostPool) -> None:
    """Where a page must go that a pinned one follows, the pinned one loses its key only, and is freed when unpinned."""
    run(pool, "abcdefgh", max_positions=8).close()
    pool.ledger.pin(np.array([1], np.int32))
    filling = pool.admit(44)
    filling.extend(44)
    assert counts(pool) == (0, 12, 0, 0)
    assert 1 not in filling.pages
    pool.ledger.unpin(np.array([1], np.int32))
    assert counts(pool) == (1, 11, 0, 0)


def test_a_promise_is_not_broken_by_a_page_in_flight(pool: HostPool) -> None:
    """A full pool refuses a cut, or a copy on write, that would leave a page in flight without a page in its place."""
    request = run(pool, "abcdefgh", max_positions=48)
    pool.ledger.pin(request.pages)
    for length in (0, 4):
        with pytest.raises(HostPoolFullError, match="in flight, 0 free of 12; wait for their transfers"):
            request.truncate(length)
    request.truncate(6)
    with pytest.raises(HostPoolFullError, match="1 of the pages to be given up are in flight"):
        request.extend(7)
    assert (request.length, read(pool, request)) == (6, "abcdef")
    pool.ledger.unpin(request.pages)
    request.extend(48)
    assert counts(pool) == (0, 12, 0, 0)


def test_a_rearrangement_counts_pages_in_flight(pool: HostPool) -> None:
    """Requests are not dropped for others to be repeated, if their pages in flight leave too little room for these."""
    kept, dropped = run(pool, "abcdefgh", max_positions=24), run(pool, "stuvwxyz", max_positions=24)
    pool.ledger.pin(dropped.pages)
    with pytest.raises(HostPoolFullError, match="6 pages needed, 4 free"):
        pool.rearrange([kept, dropped], [0, 0])
    assert (read(pool, kept), read(pool, dropped)) == ("abcdefgh", "stuvwxyz")
    assert counts(pool) == (0, 4, 8, 0)
    pool.ledger.unpin(dropped.pages)
    assert len(pool.rearrange([kept, dropped], [0, 0])) == 2


def test_every_exit_leaves_the_same_pages(pool: HostPool) -> None:
    """Close, close with pins, cut to nothing, fork and rearrange: references and pins all come back to zero."""
    for _ in range(3):
        one = run(pool, "abcdefgh", max_positions=12)
        two = one.fork()
        pool.ledger.pin(two.pages)
        one.truncate(0)
        (three,) = pool.rearrange([one, two], [1])
        three.close()
        pool.ledger.unpin(np.array([0, 1], np.int32))
        assert not pool.ledger.references.any()
        assert not pool.ledger.pins.any()
        assert counts(pool) == (12, 0, 0, 2)
