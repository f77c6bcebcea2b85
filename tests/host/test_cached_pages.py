"""Pages of requests that ended: found by key, shared, copied before they change, evicted before a promise fails."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from prefixes import ROW_BYTES, counts, data_of, keys_of, read, run

from hisparse.errors import AccountingError, DiskFullError, HostPoolFullError, PositionError, StateError
from hisparse.host import HostPool
from hisparse.host.ledger import PageLedger

MakePool = Callable[..., HostPool]


@pytest.fixture
def pool(make_pool: MakePool) -> HostPool:
    """Return a pool of 12 pages of 4 rows."""
    return make_pool(12, 4, (ROW_BYTES,))


def test_a_later_request_begins_with_what_an_earlier_one_left(pool: HostPool) -> None:
    """Published pages stay when their request ends, and a request with the same beginning has their rows at once."""
    run(pool, "abcdefghij").close()
    assert counts(pool) == (12, 0, 0, 2)
    later = pool.admit(24, keys=keys_of("abcdefghijkl"))
    assert (later.length, later.pages.size) == (8, 2)
    assert read(pool, later) == "abcdefgh"
    assert counts(pool) == (6, 2, 4, 0)
    later.close()
    assert counts(pool) == (12, 0, 0, 2)


def test_pages_under_other_identities_are_not_found(pool: HostPool) -> None:
    """The same tokens under another salt begin from nothing."""
    run(pool, "abcdefgh").close()
    for salt in ("", "tenant"):
        request = pool.admit(8, keys=keys_of("abcdefgh", salt))
        assert request.length == 0
        request.close()


def test_only_full_pages_can_be_published(pool: HostPool) -> None:
    """More keys than full pages are refused, and nothing is found afterwards."""
    request = run(pool, "abcdefg", publish=False)
    with pytest.raises(PositionError, match="2 keys for a request of 1 full pages of 4 rows"):
        request.publish(keys_of("abcdefgh"))
    assert request.publish(keys_of("abcd")) == 1
    assert request.publish(keys_of("abcd")) == 0
    request.close()
    with pytest.raises(StateError, match="closed"):
        request.publish(keys_of("abcd"))
    assert counts(pool) == (12, 0, 0, 1)


def test_a_prefix_is_no_longer_than_the_request(pool: HostPool) -> None:
    """A request that may not become as long as what is cached begins with as many whole pages as fit."""
    run(pool, "abcdefghijkl").close()
    request = pool.admit(7, keys=keys_of("abcdefghijkl"))
    assert (request.length, request.promised_pages) == (4, 2)
    with pytest.raises(PositionError, match="a prefix of 12 positions is longer than max_positions 11"):
        pool.ledger.open(11, pool.ledger.index.lookup(keys_of("abcdefghijkl")))
    request.close()


def test_a_stale_lookup_is_refused(pool: HostPool) -> None:
    """Pages looked up and evicted since can't be opened; the ledger is as it was."""
    run(pool, "abcdefgh").close()
    pages = pool.ledger.index.lookup(keys_of("abcdefgh"))
    assert pool.ledger.evict(1) == 1
    with pytest.raises(StateError, match="look its keys up again"):
        pool.ledger.open(24, pages)
    assert counts(pool) == (12, 0, 0, 1)


def test_a_shared_prefix_is_copied_before_it_changes(pool: HostPool) -> None:
    """A request cut into a published page writes to a copy: whoever shares the page, now or later, keeps its rows."""
    first = run(pool, "abcdefgh", max_positions=12)
    second = pool.admit(12, keys=keys_of("abcdefgh"))
    second.truncate(6)
    second.extend(7)
    pool.write(0, second.rows(np.array([6])), data_of("abcdefX")[6:])
    assert (read(pool, first), read(pool, second)) == ("abcdefgh", "abcdefX")
    first.close()
    second.close()
    third = pool.admit(12, keys=keys_of("abcdefgh"))
    assert read(pool, third) == "abcdefgh"
    third.close()


def test_a_published_page_is_not_written_by_its_own_request(pool: HostPool) -> None:
    """Writing to a published page is refused until the request is cut and extended, and then meets a copy."""
    request = run(pool, "abcdefgh")
    row = request.rows(np.array([6]))
    with pytest.raises(StateError, match=r"lies in page 1, which is published; truncate its request"):
        pool.write(0, row, data_of("abcdefX")[6:])
    request.truncate(6)
    request.extend(8)
    pool.write(0, request.rows(np.array([6, 7])), data_of("abcdefXY")[6:])
    assert read(pool, request) == "abcdefXY"
    assert request.publish(keys_of("abcdefXY")) == 1
    request.close()
    with pytest.raises(PositionError, match="no request holds"):
        pool.write(0, row, data_of("abcdefX")[6:])
    for tokens in ("abcdefgh", "abcdefXY"):
        again = pool.admit(8, keys=keys_of(tokens))
        assert read(pool, again) == tokens
        again.close()


def test_beams_over_a_prefix_part_at_their_own_rows(pool: HostPool) -> None:
    """Copies of a request that began with cached pages share them, and each extends into pages of its own."""
    run(pool, "abcdefgh").close()
    beams = pool.rearrange([pool.admit(12, keys=keys_of("abcdefgh"))], [0, 0, 0])
    for beam, letter in zip(beams, "XYZ", strict=True):
        beam.truncate(7)
        beam.extend(9)
        pool.write(0, beam.rows(np.array([7, 8])), data_of("abcdefg" + 2 * letter)[7:])
    assert [read(pool, beam) for beam in beams] == ["abcdefgXX", "abcdefgYY", "abcdefgZZ"]
    assert counts(pool) == (3, 7, 2, 1)
    for beam in beams:
        beam.publish(keys_of(read(pool, beam)))
        beam.close()
    assert counts(pool) == (12, 0, 0, 5)


def test_cached_pages_never_stand_in_the_way_of_a_promise(pool: HostPool) -> None:
    """A pool full of cached pages admits as many requests as an empty one, and each gets every page."""
    for start in range(6):
        run(pool, "".join(chr(97 + start + idx) for idx in range(8)), max_positions=8).close()
    assert counts(pool) == (12, 0, 0, 12)
    requests = [pool.admit(16) for _ in range(3)]
    with pytest.raises(HostPoolFullError, match=r"1 pages needed, 0 free of 12 \(0 used, 12 reserved\)"):
        pool.admit(1)
    for length in range(1, 17):
        for request in requests:
            request.extend(length)
            pool.check()
    assert counts(pool) == (0, 12, 0, 0)


def test_the_prefix_of_a_running_request_is_not_evicted(pool: HostPool) -> None:
    """Under pressure the pages that a request shares stay, and others give way."""
    run(pool, "abcdefgh", max_positions=8).close()
    run(pool, "stuvwxyz", max_positions=8).close()
    sharing = pool.admit(8, keys=keys_of("abcdefgh"))
    filling = pool.admit(40)
    filling.extend(40)
    assert counts(pool) == (0, 12, 0, 0)
    assert read(pool, sharing) == "abcdefgh"
    assert pool.ledger.index.lookup(keys_of("stuvwxyz")).size == 0


def test_prefix_tokens_are_counted_once_an_admission(pool: HostPool) -> None:
    """Queried and found tokens count when a request is admitted: not when it is refused, nor without keys."""
    run(pool, "abcdefgh", max_positions=8).close()
    assert (pool.prefix_queried_tokens, pool.prefix_hit_tokens) == (8, 0)
    blocking = pool.admit(48)
    for _ in range(5):
        with pytest.raises(HostPoolFullError):
            pool.admit(12, keys=keys_of("abcdefghijkl"))
    blocking.close()
    pool.admit(12, keys=keys_of("abcdefghijkl")).close()
    assert (pool.prefix_queried_tokens, pool.prefix_hit_tokens) == (20, 8)


def test_a_full_disk_takes_cached_pages_before_a_running_request(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file can't grow, a promised page is one whose room on the disk was taken by a cached one."""
    pool = make_pool(12, 4, (ROW_BYTES,), f"disk:{tmp_path}")
    run(pool, "abcdefgh", max_positions=8).close()
    limit = 2

    def ensure(pages: int) -> None:
        if pages > limit:
            raise DiskFullError("the disk is full")

    monkeypatch.setattr(pool._storage, "ensure", ensure)
    request = pool.admit(12)
    request.extend(8)
    with pytest.raises(DiskFullError):
        request.extend(12)
    assert request.length == 8
    assert sorted(request.pages.tolist()) == [0, 1]
    assert counts(pool) == (9, 2, 1, 0)


def test_a_claim_grows_into_cached_pages() -> None:
    """Growing without a word about room first evicts what it needs, and no more."""
    ledger = PageLedger(4, 4)
    ledger.adopt([(keys_of("abcdefghijkl"), np.array([0, 1, 2], np.int32))])
    claim = ledger.open(8)
    ledger.grow(claim, 8, replace_tail=False)
    ledger.check()
    assert (claim.table.tolist(), ledger.cached_pages) == ([2, 3], 2)


def test_long_requests_are_admitted_by_what_the_pool_holds() -> None:
    """Of requests of 63,000 tokens three fit 245,760; a fourth waits for one to end, and a hundred leave nothing."""
    ledger = PageLedger(245_760 // 64, 64)
    claims = [ledger.open(63_000) for _ in range(3)]
    with pytest.raises(HostPoolFullError, match=r"985 pages needed, 885 free of 3840"):
        ledger.open(63_000)
    ledger.drop(claims.pop())
    claims.append(ledger.open(63_000))
    for claim in claims:
        ledger.drop(claim)
    for _ in range(100):
        claim = ledger.open(63_000)
        ledger.grow(claim, 63_000, replace_tail=False)
        ledger.drop(claim)
    ledger.check()
    assert ledger.free_pages == 3840


def test_what_is_asked_again_and_again_stays(make_pool: MakePool) -> None:
    """Over thousands of requests, some ended in flight, a beginning that every fourth one asks for is always there."""
    pool = make_pool(32, 4, (ROW_BYTES,), "ram")
    rng = np.random.default_rng(0)
    run(pool, "hothothothot").close()
    for number in range(2000):
        request = run(pool, f"{number:04d}" * 2 if number % 4 else "hothothothot", max_positions=16)
        if number % 4 == 0:
            assert read(pool, request)[:12] == "hothothothot"
        if rng.random() < 0.3:
            pages = request.pages
            pool.ledger.pin(pages)
            request.close()
            pool.ledger.unpin(pages)
        request.close()
    assert pool.prefix_hit_tokens == 500 * 12
    assert counts(pool) == (32, 0, 0, 32)


# ------------------------------------------------------------------ start and end


def test_rows_of_an_earlier_process_are_adopted(pool: HostPool) -> None:
    """Free pages can be cached under a chain of keys; pages in use, or given twice, are refused whole."""
    keys = keys_of("abcdefghijkl")
    assert pool.ledger.adopt([(keys, np.array([7, 2, 9], np.int32))]) == 3
    assert counts(pool) == (12, 0, 0, 3)
    request = pool.admit(48, keys=keys)
    assert request.pages.tolist() == [7, 2, 9]
    for pages in ([7, 2, 9, 2], [7, 2, 9, 10, 10]):
        with pytest.raises(StateError, match=r"is not free|given twice"):
            pool.ledger.adopt([([*keys, *keys_of("zzzzyyyy")][: len(pages)], np.array(pages, np.int32))])
    with pytest.raises(StateError, match="1 pages were given for 2 keys"):
        pool.ledger.adopt([(keys_of("zzzzyyyy"), np.array([1], np.int32))])
    request.extend(48)
    assert counts(pool) == (0, 12, 0, 0)


def test_forgetting_all_keys_frees_what_nobody_holds(pool: HostPool) -> None:
    """After a reset nothing is cached or found; running requests keep their pages and may write them again."""
    run(pool, "abcdefgh", max_positions=8).close()
    request = run(pool, "stuvwxyz", max_positions=8)
    assert pool.ledger.clear_index() == 2
    assert counts(pool) == (10, 2, 0, 0)
    pool.write(0, request.rows(np.array([7])), data_of("stuvwxyZ")[7:])
    assert pool.admit(8, keys=keys_of("abcdefgh")).length == 0
    assert request.publish(keys_of("stuvwxyZ")) == 2


def test_memory_stays_flat_over_many_requests(make_pool: MakePool) -> None:
    """A thousand further requests through a small pool, each published and evicted, leave no memory behind."""
    pool = make_pool(12, 4, (ROW_BYTES,), "ram")

    def serve(first: int, stop: int) -> None:
        for number in range(first, stop):
            tokens = f"{number % 7}" * 4 + f"{number:08d}"
            run(pool, tokens).close()
        pool.ledger.index.take_times()

    serve(0, 200)
    tracemalloc.start()
    serve(200, 400)
    before, _ = tracemalloc.get_traced_memory()
    serve(400, 1400)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 32 * 1024
    assert counts(pool)[3] == 12


def test_the_recount_finds_wrong_caching() -> None:
    """A cached page on the stack, and a page that may wrongly be written, are found."""
    for damage, message in (
        (lambda ledger: ledger._push(np.array([0], np.int32)), r"free 10 .* != 9|stack 9 \+ used 0 \+ cached 1 != 9"),
        (lambda ledger: ledger.shares.__setitem__(0, 0), "what may be written"),
        (lambda ledger: ledger.pins.__setitem__(0, 1), "stack 8 .* used 1 .* cached 0"),
    ):
        ledger = PageLedger(9, 4)
        ledger.adopt([(keys_of("abcd"), np.array([0], np.int32))])
        ledger.check()
        damage(ledger)
        with pytest.raises(AccountingError, match=message):
            ledger.check()
