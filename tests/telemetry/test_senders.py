"""Senders that say different things, in any order: nothing that one says is lost for what another said."""

from itertools import permutations
from typing import Any

import pytest
from authors import HITS, MISSES, MOVED, errors, pipe, total
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.telemetry import (
    CATALOGUE,
    HiSparseConnectorStats,
    HiSparseKVConnectorStats,
    KVConnectorStats,
    OffloadingConnectorStats,
    build_kv_connector_stats,
    encode_stats,
    merge_ranks,
    merge_step,
)
from hisparse.telemetry.ranks import decided

OLD, NEW = "vllm:kv_offload_total_bytes", "vllm:kv_offload_load_bytes"
LOAD = ("CPU_to_GPU",)
COPIED = "hisparse_hot_copied_bytes_total"


def values(stats: KVConnectorStats) -> dict[Any, Any]:
    """Return what a container means, by series."""
    return {(key.name, key.labels): value for key, value in decided(stats.samples(), CATALOGUE).items()}


def operator(count: int) -> HiSparseKVConnectorStats:
    """Return statistics of hot buffers alone."""
    stats = HiSparseKVConnectorStats()
    stats.record_snapshot(count, 2 * count, 3 * count)
    return stats


def labelled(count: int) -> OffloadingConnectorStats:
    """Return labelled metrics alone."""
    stats = OffloadingConnectorStats()
    stats.increase_counter(COPIED, count, ("host_to_device", "0"))
    stats.set_gauge("hisparse_host_used_bytes", 7)
    return stats


def both(count: int) -> HiSparseConnectorStats:
    """Return both in one."""
    return HiSparseConnectorStats(operator(count)).aggregate({"metrics": labelled(count).to_dict()})


def idle(_: int) -> HiSparseKVConnectorStats:
    """Return statistics that say nothing."""
    return HiSparseKVConnectorStats()


def nothing(_: int) -> None:
    """Say nothing at all."""


MAKERS = [operator, labelled, both, idle, nothing]


def forms(stats: KVConnectorStats | None, form: str) -> Any:
    """Return a container as it travels."""
    if stats is None or form == "container":
        return stats
    return stats.to_dict() if form == "plain" else encode_stats(stats)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(MAKERS), st.integers(0, 9)), min_size=1, max_size=4),
    st.sampled_from(["container", "plain", "bytes"]),
)
def test_the_order_of_ranks_does_not_matter(said: list[tuple[Any, int]], form: str) -> None:
    """Whatever each rank sends, all of it is in what they mean together, in every order, and nothing is skipped."""
    made = [(make(count), rank) for rank, (make, count) in enumerate(said)]
    for stats, rank in made:
        if stats is not None:
            stats.rank = rank
            if isinstance(stats, HiSparseConnectorStats):
                stats.metrics.rank = rank
    wanted: dict[Any, Any] | None = None
    for order in permutations(made):
        merged = merge_ranks([forms(stats, form) for stats, _ in order])
        assert merged.errors == {}
        wanted = values(merged) if wanted is None else wanted
        assert values(merged) == wanted
    moved = sum(3 * count for make, count in said if make in {operator, both})
    copied = sum(count for make, count in said if make in {labelled, both})
    assert wanted is not None
    assert wanted.get((MOVED, ()), 0) == moved
    assert wanted.get((COPIED, ("host_to_device", "0")), 0) == copied


@pytest.mark.parametrize("first", [None, {}, {"rank": 0}, operator(0), operator(1), HiSparseConnectorStats()])
@pytest.mark.parametrize("later", [operator(5), labelled(5), both(5)])
def test_what_is_merged_takes_whatever_comes_later(first: Any, later: KVConnectorStats) -> None:
    """An accumulator that began with nothing, or with less than a later step says, takes that step whole."""
    plain = first.to_dict() if isinstance(first, KVConnectorStats) else first
    for accumulator in (merge_ranks([first]), build_kv_connector_stats(plain or {})):
        assert accumulator is not None
        before = values(accumulator)
        for step in (later, later.to_dict()):
            accumulator.aggregate(step)
        assert accumulator.errors == {}
        for key, value in values(later).items():
            grown = values(accumulator)[key] - before.get(key, 0)
            assert grown == value if key[0] == "hisparse_host_used_bytes" else grown == 2 * value


@pytest.mark.parametrize("form", ["container", "plain", "bytes"])
def test_worker_and_scheduler_may_send_different_kinds(form: str) -> None:
    """Labelled metrics of one side and hot buffers of the other are both in the step, in either order."""
    sides = [forms(labelled(5), form), forms(operator(5), form)]
    steps = [merge_step(*sides), merge_step(*sides[::-1])]
    for step in steps:
        assert step is not None
        assert step.errors == {}
        assert values(step)[COPIED, ("host_to_device", "0")] == 5
        assert values(step)[MOVED, ()] == 15


def sender(name: str, count: int) -> OffloadingConnectorStats:
    """Return what one sender counted under one name."""
    stats = OffloadingConnectorStats()
    stats.increase_counter(name, count, LOAD if name == OLD else ())
    return stats


@pytest.mark.parametrize("form", ["container", "plain", "bytes"])
@pytest.mark.parametrize("names", [(OLD, NEW), (NEW, OLD), (OLD, OLD), (NEW, OLD, OLD)])
def test_old_and_new_senders_add_up(names: tuple[str, ...], form: str) -> None:
    """Versions that know different names of one datum lose nothing when they are merged before publishing."""
    said = [forms(sender(name, 100), form) for name in names]
    accumulated = sender(names[0], 100)
    for other in said[1:]:
        accumulated.aggregate(other if form != "bytes" else merge_ranks([other]))
    for merged in (merge_ranks(said), accumulated):
        with pipe() as pipeline:
            pipeline.publish({"a": merged})
            assert total(pipeline, f"{NEW}_total") == 100 * len(names)
            assert errors(pipeline) == {}


@pytest.mark.parametrize("form", ["container", "plain", "bytes"])
@pytest.mark.parametrize("merged", [False, True])
def test_one_sender_of_both_names_counts_once(form: str, *, merged: bool) -> None:
    """A sender that writes one datum under both names has it counted once, merged with others or not."""
    stats = sender(NEW, 100)
    stats.increase_counter(OLD, 100, LOAD)
    said = [forms(stats, form), *([forms(sender(OLD, 50), form)] if merged else [])]
    with pipe() as pipeline:
        pipeline.publish({"a": merge_ranks(said) if merged else said[0]})
        assert total(pipeline, f"{NEW}_total") == 100 + 50 * merged
        assert errors(pipeline) == {"deprecated_name": 1}


@pytest.mark.parametrize("rank", [2**21, -1, "r0", 0.5, True, [0], float("nan")])
@pytest.mark.parametrize("kind", [HiSparseKVConnectorStats, OffloadingConnectorStats, HiSparseConnectorStats])
@pytest.mark.parametrize("way", ["published", "merged", "plain", "bytes", "constructed"])
def test_an_unread_rank_is_nobodys(rank: Any, kind: Any, way: str) -> None:
    """A worker whose rank cannot be read never counts as the whole engine: selections stay, its bytes add up."""
    good = {"cache_hits": [10], "cache_misses": [5], "host_to_device_bytes": [7]}
    plain: dict[str, Any] = {**good, "rank": rank}
    if kind is OffloadingConnectorStats:
        types = dict.fromkeys((HITS, MISSES, MOVED), "counter")
        plain = {"types": types, "data": {HITS: {"": 10}, MISSES: {"": 5}, MOVED: {"": 7}}, "rank": rank}
    stats: Any = kind(plain)
    if way == "constructed":
        stats = kind(rank=rank)
        if kind is OffloadingConnectorStats:
            for name, count in zip((HITS, MISSES, MOVED), (10, 5, 7), strict=True):
                stats.increase_counter(name, count)
        else:
            stats.record_snapshot(10, 5, 7)
    said = {"plain": plain, "bytes": encode_stats(stats) if way == "bytes" else b""}.get(way, stats)
    with pipe() as pipeline:
        if way == "merged":
            pipeline.publish({"a": merge_ranks([HiSparseKVConnectorStats({**good, "rank": 0}), said])})
        else:
            pipeline.publish({"a": {**good, "rank": 0}})
            pipeline.publish({"b": said})
        assert total(pipeline, f"{HITS}_total") == 10
        assert total(pipeline, f"{MISSES}_total") == 5
        assert total(pipeline, f"{MOVED}_total") == 14
        assert errors(pipeline).keys() == {"unknown_rank"}
        assert errors(pipeline)["unknown_rank"] >= 2


def test_a_rank_that_became_a_float_is_read() -> None:
    """A whole float is the rank it equals, as JSON of some senders writes it."""
    assert HiSparseKVConnectorStats({"cache_hits": [1], "rank": 3.0}).rank == 3
    assert OffloadingConnectorStats(rank=0.0).rank == 0  # type: ignore[arg-type]  # the point


@pytest.mark.parametrize("kind", [HiSparseKVConnectorStats, OffloadingConnectorStats, HiSparseConnectorStats])
def test_an_unread_rank_is_counted_once_however_far_it_travels(kind: Any) -> None:
    """A container whose rank could not be read comes back from its plain form as it was, not counted again."""
    stats = kind(rank="r0")
    assert stats.errors == {"unknown_rank": 1}
    again = kind(kind(stats.to_dict()).to_dict())
    assert again == stats
