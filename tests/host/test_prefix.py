"""The prefix index: what is found, what goes first, what is counted."""

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.errors import AccountingError, SettingError, StateError
from hisparse.host.prefix import PrefixIndex
from hisparse.host.times import MAX_SAMPLES, Samples
from hisparse.layout import page_keys
from hisparse.telemetry import HiSparseKVConnectorStats


def keys_of(*tokens: int) -> list[bytes]:
    """Return the keys of pages of one token each."""
    return page_keys(tokens, 1, model="m", revision=None, dtype="bfloat16", row_format="test")


def put(index: PrefixIndex, tokens: str, pages: list[int], *, idle: bool = True) -> None:
    """Index a chain, a letter a page, and let what is new of it be idle."""
    added = index.insert(keys_of(*tokens.encode()), np.array(pages, np.int32))
    if idle:
        index.release(added)


def found(index: PrefixIndex, tokens: str) -> list[int]:
    """Return the pages found for a chain."""
    return index.lookup(keys_of(*tokens.encode())).tolist()


def use(index: PrefixIndex, tokens: str) -> None:
    """Use a chain again, all of it idle, and let it go."""
    pages = index.lookup(keys_of(*tokens.encode()))
    index.reuse(pages)
    index.hold(pages)
    index.release(pages)


def evicted(index: PrefixIndex, num_pages: int) -> list[int]:
    """Return the pages evicted, after a recount."""
    pages = index.evict(num_pages).tolist()
    index.check()
    return pages


def test_the_longest_beginning_is_found() -> None:
    """A lookup gives the pages of the longest prefix that is there, over branches, and nothing of a middle."""
    index = PrefixIndex(20)
    put(index, "abcd", [3, 1, 4, 10])
    put(index, "abxy", [3, 1, 5, 9])
    put(index, "abxz", [3, 1, 5, 2])
    index.check()
    assert len(index) == 7
    cases = {"abcd": [3, 1, 4, 10], "abcde": [3, 1, 4, 10], "ab": [3, 1], "abx": [3, 1, 5], "abxzq": [3, 1, 5, 2]}
    assert {tokens: found(index, tokens) for tokens in cases} == cases
    assert found(index, "b") == found(index, "xabc") == found(index, "") == []


def test_keys_that_are_no_chain_are_not_found() -> None:
    """A key is found only at its own depth of its own chain, behind a beginning that is there."""
    index = PrefixIndex(20)
    put(index, "abcd", [0, 1, 2, 3])
    put(index, "abxx", [0, 1, 4, 5])
    keys, other = keys_of(*b"abcd"), keys_of(*b"zzzz")
    assert index.lookup([keys[0], other[1], other[2], other[3]]).tolist() == [0]
    assert index.lookup([other[0], *keys[1:]]).size == 0
    assert index.lookup([keys[0], keys[2]]).tolist() == [0]
    assert index.lookup(keys[2:]).size == 0
    assert index.lookup([*keys[:2], *keys[:2]]).tolist() == [0, 1]


def test_the_tail_of_the_least_recent_chain_goes_first() -> None:
    """Chains go in the order of their last use, each from its tail to its head; a shared head goes last."""
    index = PrefixIndex(20)
    put(index, "abc", [0, 1, 2])
    put(index, "xyz", [3, 4, 5])
    put(index, "aqr", [0, 6, 7])
    use(index, "xyz")
    assert evicted(index, 1) == [2]
    assert evicted(index, 2) == [1, 7]
    use(index, "aq")
    assert evicted(index, 9) == [5, 4, 3, 6, 0]
    assert (len(index), index.idle_pages) == (0, 0)


def test_using_part_of_a_chain_leaves_the_rest_as_old_as_it_was() -> None:
    """What follows the used part of a chain goes before a chain that was used in between."""
    index = PrefixIndex(20)
    put(index, "abcdef", [0, 1, 2, 3, 4, 5])
    put(index, "xy", [6, 7])
    use(index, "ab")
    assert evicted(index, 8) == [5, 4, 3, 2, 7, 6, 1, 0]


def test_pages_in_use_stay() -> None:
    """Eviction takes idle pages only, and stops where none is left."""
    index = PrefixIndex(20)
    put(index, "abcd", [0, 1, 2, 3])
    put(index, "xy", [4, 5], idle=False)
    index.hold(np.array([0, 1], np.int32))
    assert evicted(index, 9) == [3, 2]
    assert evicted(index, 9) == []
    assert (found(index, "abcd"), found(index, "xy")) == ([0, 1], [4, 5])


def test_a_page_in_use_leaves_the_index_with_the_page_before_it() -> None:
    """Where an idle page must go that others follow in use, those can't be found any more, and only it is evicted."""
    index = PrefixIndex(20)
    put(index, "abc", [0, 1, 2], idle=False)
    index.release(np.array([0], np.int32))
    put(index, "aq", [0, 3], idle=False)
    assert sorted(evicted(index, 1)) == [0, 1, 2, 3]
    assert len(index.take_times()["host_block_lifetime_seconds"]) == 1
    assert (len(index), index.idle_pages) == (0, 0)


def test_a_key_keeps_its_page() -> None:
    """The same rows published twice stay where they were first, and what follows continues from there."""
    index = PrefixIndex(20)
    put(index, "abc", [0, 1, 2])
    assert index.insert(keys_of(*b"abc"), np.array([7, 8, 9], np.int32)).size == 0
    assert index.insert(keys_of(*b"abcd"), np.array([7, 8, 9, 10], np.int32)).tolist() == [10]
    index.check()
    assert found(index, "abcd") == [0, 1, 2, 10]


def test_what_does_not_fit_is_refused_whole() -> None:
    """A page under a second key, a key or page given twice, a prefix that is gone: nothing changes."""
    index = PrefixIndex(20)
    put(index, "ab", [0, 1])
    keys = keys_of(*b"xyz")
    with pytest.raises(StateError, match="page 1 is indexed already, under another key"):
        index.insert(keys, np.array([5, 1, 6], np.int32))
    for repeated in ([keys[0], keys[0], keys[1]], keys):
        with pytest.raises(StateError, match="given twice"):
            index.insert(repeated, np.array([5, 5, 6] if repeated is keys else [5, 6, 7], np.int32))
    for gone in ([1], [0, 2], [0, 1, 2], [5]):
        with pytest.raises(StateError, match="does not continue an indexed prefix; look its keys up again"):
            index.reuse(np.array(gone, np.int32))
    with pytest.raises(SettingError, match="policy must be one of"):
        PrefixIndex(20, policy="none")
    index.check()
    assert (len(index), index.idle_pages, found(index, "xyz")) == (2, 2, [])


def test_forgetting_all_leaves_nothing() -> None:
    """After a reset no key is found, and every page is given back once."""
    index = PrefixIndex(20)
    put(index, "abcd", [0, 1, 2, 3])
    put(index, "abx", [0, 1, 4], idle=False)
    assert sorted(index.clear().tolist()) == [0, 1, 2, 3, 4]
    index.check()
    assert (len(index), index.idle_pages, found(index, "a")) == (0, 0, [])
    put(index, "ab", [1, 0])
    assert found(index, "ab") == [1, 0]


def test_times_are_those_of_the_clock() -> None:
    """Lifetime and idle time of each evicted page, and the gap before each reuse, in seconds, are taken once."""
    now = [100.0]
    index = PrefixIndex(20, clock=lambda: now[0])
    put(index, "ab", [0, 1])
    now[0] = 103.0
    use(index, "a")
    now[0] = 110.0
    index.evict(1)
    now[0] = 111.0
    index.evict(1)
    times = {field: seconds.tolist() for field, seconds in index.take_times().items()}
    assert times == {
        "host_block_lifetime_seconds": [10.0, 11.0],
        "host_block_idle_before_evict_seconds": [10.0, 8.0],
        "host_block_reuse_gap_seconds": [3.0],
    }
    stats = HiSparseKVConnectorStats()
    for field, seconds in times.items():
        stats.record_residency(field, seconds)
    assert {field: stats.data[field].count for field in times} == dict(zip(times, (2, 2, 1), strict=True))
    assert all(seconds.size == 0 for seconds in index.take_times().values())


def test_times_that_nobody_takes_stay_bounded() -> None:
    """Beyond the bound the oldest times go, and are counted."""
    clock = count()
    index = PrefixIndex(1000, clock=lambda: float(next(clock)))
    added = index.insert(keys_of(*range(1000)), np.arange(1000, dtype=np.int32))
    for _ in range(70):
        index.reuse(added)
    gaps = index.take_times()["host_block_reuse_gap_seconds"]
    assert (gaps.size, index.dropped_times) == (MAX_SAMPLES, 70_000 - MAX_SAMPLES)


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 3))
@settings(deadline=None)
def test_the_newest_times_are_kept_in_order(sizes: list[int], takes: int) -> None:
    """Whatever sizes they come in, the newest samples are taken, oldest first, and the others counted."""
    samples = Samples()
    for _ in range(takes):
        given = np.empty(0)
        dropped = samples.dropped
        for size in sizes:
            part = given.size + np.arange(size * MAX_SAMPLES // 8, dtype=np.float64)
            samples.add(part)
            given = np.concatenate([given, part])
        np.testing.assert_array_equal(samples.take(), given[-MAX_SAMPLES:])
        assert samples.dropped - dropped == max(0, given.size - MAX_SAMPLES)
        assert samples.take().size == 0


chains = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=8)


@given(chains, st.lists(st.text("ab", max_size=6), max_size=8), st.data())
@settings(deadline=None, max_examples=150)
def test_no_page_goes_before_its_followers(texts: list[str], uses: list[str], data: st.DataObject) -> None:
    """Whatever was stored, used and kept in use, an evicted page has no follower left, and batches equal singles."""
    many, single = PrefixIndex(60), PrefixIndex(60)
    page_of: dict[str, int] = {}
    for text in texts:
        pages = [page_of.setdefault(text[:end], len(page_of)) for end in range(1, len(text) + 1)]
        for index in (many, single):
            put(index, text, pages)
    for text in uses:
        use(many, text)
        use(single, text)
    kept = data.draw(st.sampled_from(texts))
    for index in (many, single):
        index.hold(index.lookup(keys_of(*kept.encode())))
    num_pages = data.draw(st.integers(0, 20))
    batch = evicted(many, num_pages)
    assert batch == [page for _ in range(num_pages) for page in evicted(single, 1)]
    assert len(batch) == min(num_pages, len(page_of) - len(kept))
    left = {text for text, page in page_of.items() if page not in batch}
    assert all(text[:-1] in left for text in left if len(text) > 1)
    assert {kept[:end] for end in range(1, len(kept) + 1)} <= left
    assert all(found(many, text) == [page_of[text[:end]] for end in range(1, len(text) + 1)] for text in left)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda index: index._idle.__setitem__(2, 0), "1 pages of the run .* are idle, 2 were kept"),
        (lambda index: setattr(index, "_num_idle", 3), "2 pages are idle, 3 were kept"),
        (lambda index: index._policy.remove(index._policy.victim()), "1 of 1 runs have idle pages, the policy has 0"),
        (lambda index: index._chains.heads.__setitem__(5, 1), "2 pages in 1 of 1 runs .*, 3 are marked as indexed"),
        (lambda index: index._chains.run_of(1).keys.reverse(), r"the pages \[1, 2\] are not those of their keys"),
        (lambda index: index._chains.heads.__setitem__(2, 2), r"the pages \[1, 2\] are not marked as one run"),
    ],
)
def test_the_recount_finds_what_is_wrong(damage: Callable[[PrefixIndex], object], message: str) -> None:
    """Each kind of wrong bookkeeping of the index is found and told apart."""
    index = PrefixIndex(10)
    put(index, "ab", [1, 2])
    index.check()
    damage(index)
    with pytest.raises(AccountingError, match=message):
        index.check()
