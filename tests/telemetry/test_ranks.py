"""Several workers of one engine: what all did alike counts once, what each did for itself adds up."""

import logging
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from hisparse.telemetry import (
    CATALOGUE,
    GaugeMetadata,
    HiSparseConnectorStats,
    HiSparseKVConnectorStats,
    KVConnectorStats,
    MetricStore,
    OffloadingConnectorStats,
    TelemetryPipeline,
    decode_stats,
    encode_stats,
    merge_ranks,
    merge_step,
)
from hisparse.telemetry.values import MAX_RANKS

SELECTIONS, BYTES = "hisparse_hot_selections_total", "hisparse_hot_copied_bytes_total"
MISSES = "hisparse_hot_request_misses_rows"
HIT, LOADED = ("hit", "0"), ("host_to_device", "0")
LABELS = {"model_name": "m", "engine": "0"}


def operator_stats(rank: int | None) -> HiSparseKVConnectorStats:
    """Return 12 hits, 4 misses and 64 bytes under operator names."""
    stats = HiSparseKVConnectorStats(rank=rank)
    stats.record_snapshot(12, 4, 64)
    return stats


def labelled_stats(rank: int | None) -> OffloadingConnectorStats:
    """Return the same under this package's names, with the misses of two requests."""
    stats = OffloadingConnectorStats(rank=rank)
    stats.increase_counter(SELECTIONS, 12, HIT)
    stats.increase_counter(SELECTIONS, 4, ("miss", "0"))
    stats.increase_counter(BYTES, 64, LOADED)
    stats.observe_histogram(MISSES, [3, 1])
    return stats


def connector_stats(rank: int | None) -> HiSparseConnectorStats:
    """Return both in one container."""
    stats = HiSparseConnectorStats(rank=rank)
    stats.record_snapshot(12, 4, 64)
    stats.increase_counter(SELECTIONS, 12, HIT)
    stats.increase_counter(BYTES, 64, LOADED)
    return stats


Make = Callable[[int | None], KVConnectorStats]
ONCE = {
    operator_stats: {"HiSparse hot-buffer hits": 12, "HiSparse hot-buffer misses": 4},
    labelled_stats: {f"{SELECTIONS}:{HIT}": 12, f"{MISSES}_count": 2, f"{MISSES}_sum": 4.0},
    connector_stats: {"HiSparse hot-buffer hits": 12},
}
TWICE = {
    operator_stats: {"HiSparse host-to-device bytes": 128},
    labelled_stats: {f"{BYTES}:{LOADED}": 128},
    connector_stats: {"HiSparse host-to-device bytes": 128},
}


def assert_once_and_twice(make: Make, stats: KVConnectorStats) -> None:
    """Assert that two ranks' selections are reported once and their bytes twice."""
    wanted = {**ONCE[make], **TWICE[make]}  # type: ignore[index]  # the keys are these functions
    assert {key: value for key, value in stats.reduce().items() if key in wanted} == wanted


def scraped(payloads: Sequence[Any]) -> dict[str, float | None]:
    """Return hits, misses and bytes after publishing each of `payloads` under both families of names."""
    registry = CollectorRegistry()
    pipeline = TelemetryPipeline(model_name="m", registry=registry)
    for payload in payloads:
        pipeline.publish({"HiSparse": payload})

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, LABELS | labels)

    return {
        "hits": value("vllm:hisparse_cache_hits_total"),
        "bytes": value("vllm:hisparse_host_to_device_bytes_total"),
        "labelled hits": value(SELECTIONS, outcome="hit", group="0"),
        "labelled bytes": value(BYTES, direction="host_to_device", layer="0"),
    }


@pytest.fixture(params=[operator_stats, labelled_stats, connector_stats])
def make(request: pytest.FixtureRequest) -> Make:
    """Return a maker of each kind of container."""
    made: Make = request.param
    return made


@pytest.mark.parametrize(
    "wire", [lambda stats: stats, lambda stats: stats.to_dict(), encode_stats], ids=["object", "plain", "bytes"]
)
def test_two_ranks_report_selections_once_and_bytes_twice(make: Make, wire: Callable[[Any], Any]) -> None:
    """Two ranks merged, as objects, plain data or bytes, count their common selections once and their bytes twice."""
    assert_once_and_twice(make, merge_ranks([wire(make(0)), None, wire(make(2))]))
    assert_once_and_twice(make, merge_ranks([wire(make(None)), wire(make(None))]))


def test_bare_aggregation_knows_the_ranks_in_any_grouping_and_order(make: Make) -> None:
    """An engine that only calls ``a.aggregate(b)`` gets the same from every grouping and order of three ranks."""
    for first, second, third in permutations((0, 1, 2)):
        left = make(first).aggregate(make(second)).aggregate(make(third))
        right = make(first).aggregate(make(second).aggregate(make(third)))
        assert left.reduce() == right.reduce() == make(0).aggregate(make(1)).aggregate(make(2)).reduce()


def test_an_accumulator_without_a_rank_knows_the_ranks_that_join_it(make: Make) -> None:
    """Ranks merged into an empty container, step after step and over a wire, count as if merged at once."""
    log = type(make(0))()
    for _ in range(3):
        step = merge_ranks([make(0), make(1)])
        log.aggregate(type(log)(step.to_dict())).aggregate(decode_stats(encode_stats(step)))
    one_rank = reduce(lambda total, stats: total.aggregate(stats), [make(0) for _ in range(6)], type(log)())
    hits = [key for key in one_rank.reduce() if "hits" in key or HIT[0] in key]
    assert [log.reduce()[key] for key in hits] == [72] * len(hits)
    moved = [key for key in one_rank.reduce() if "bytes" in key]
    assert [log.reduce()[key] for key in moved] == [2 * 6 * 64] * len(moved)


def test_each_ranks_own_payload_counts_as_the_merged_one(make: Make) -> None:
    """Published one by one, merged, as plain data or as bytes: the scrape is the same."""
    merged = merge_ranks([make(0), make(1)])
    ways = [
        [make(0), make(1)],
        [make(1), make(0)],
        [make(0).to_dict(), make(1).to_dict()],
        [encode_stats(make(0)), encode_stats(make(1))],
        [merged],
        [merged.to_dict()],
        [encode_stats(merged)],
    ]
    results = [scraped(way) for way in ways]
    assert results == [results[0]] * len(ways)
    found = {key: value for key, value in results[0].items() if value}
    assert set(found.values()) == {12, 128}
    assert all((value == 12) == ("hits" in key) for key, value in found.items())


def test_a_rank_that_lags_changes_nothing(make: Make) -> None:
    """Samples that arrive in other steps than those of their peers count once all the same, and never fall."""
    seen = []
    registry = CollectorRegistry()
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        for rank in (0, 0, 1, 0, 1, 1):
            pipeline.publish({"HiSparse": make(rank)})
            hits = registry.get_sample_value("vllm:hisparse_cache_hits_total", LABELS)
            seen.append(hits or registry.get_sample_value(SELECTIONS, {**LABELS, "outcome": "hit", "group": "0"}))
    assert seen == [12, 24, 24, 36, 36, 36]


def test_a_rank_that_starts_again_neither_doubles_nor_lowers_a_counter() -> None:
    """A rank that lost what it had counted since its last sample is covered by its peer."""
    store, seen = MetricStore(CATALOGUE), []
    for ranks in ((0, 1), (1,), (0, 1)):  # in the second step rank 0 died with its sample
        store.apply(merge_ranks([operator_stats(rank) if rank in ranks else None for rank in (0, 1)]))
        seen.append(store.snapshot()["vllm:hisparse_cache_hits"][()])
    assert seen == [12, 24, 36]


@pytest.mark.parametrize("scheduler_rank", [0, None])
def test_the_scheduler_side_joins_its_workers(scheduler_rank: int | None) -> None:
    """A scheduler that calls itself rank 0, or nothing, adds its levels and doubles nobody's counts."""
    scheduler = HiSparseKVConnectorStats(rank=scheduler_rank)
    scheduler.record_host_usage(0.5, 2)
    step = merge_step(merge_ranks([operator_stats(0), operator_stats(1)]), scheduler)
    assert step is not None
    assert_once_and_twice(operator_stats, step)
    assert step.reduce()["HiSparse host KV cache usage %"] == 50.0
    assert scraped([step.to_dict()])["hits"] == 12


def test_a_step_has_four_cases() -> None:
    """Workers only, scheduler only, both, and neither, which is None and not an empty object."""
    worker, scheduler = operator_stats(0), operator_stats(None)
    assert merge_step(None, None) is None
    assert merge_step(HiSparseKVConnectorStats(), {}) is None
    for one in (merge_step(worker, None), merge_step(None, worker.to_dict()), merge_step(encode_stats(worker), b"")):
        assert one is not None
        assert one.reduce()["HiSparse hot-buffer hits"] == 12
    both = merge_step(worker, scheduler)
    assert both is not None
    assert both.reduce()["HiSparse hot-buffer hits"] == 24


def test_merging_leaves_what_is_merged_alone(make: Make) -> None:
    """Merging ranks or sides of a step reads its arguments only."""
    stats = [make(None), make(1)]
    before = [one.to_dict() for one in stats]
    merge_ranks(stats).aggregate(make(0))
    merge_step(stats[0], stats[1])
    assert [one.to_dict() for one in stats] == before


def test_levels_of_ranks_combine_by_their_rule() -> None:
    """The latest of each rank counts: bytes of pools add up, usage is the fullest, health the lowest."""
    mine = CATALOGUE.merged({"mine_health_ratio": GaugeMetadata("Health.", unit="ratio", across_ranks="min")})
    steps = []
    for used, usage, health in ((10, 0.9, 0.2), (5, 0.25, 0.75)):
        stats = [OffloadingConnectorStats(rank=rank, catalogue=mine) for rank in (0, 1)]
        for rank, one in enumerate(stats):
            one.set_gauge("hisparse_host_used_bytes", used + rank)
            one.set_gauge("vllm:hisparse_host_cache_usage_perc", usage / (rank + 1))
            one.set_gauge("mine_health_ratio", health + rank)
        steps.append(stats)
    wanted = {
        "hisparse_host_used_bytes": 11,
        "vllm:hisparse_host_cache_usage_perc": 0.25,
        "mine_health_ratio": 0.75,
    }
    store = MetricStore(mine)
    for stats in steps:
        for one in reversed(stats):
            store.apply(one)
    assert {name: store.snapshot()[name][()] for name in wanted} == wanted
    merged = merge_ranks(steps[0], catalogue=mine).aggregate(steps[1][1]).aggregate(steps[1][0])
    assert merged.reduce() == wanted


def test_a_level_said_for_the_engine_replaces_its_ranks_until_they_speak_again() -> None:
    """A level without a rank stands for all; the next one of a rank stands again, here and in the totals."""
    name, store = "hisparse_host_used_bytes", MetricStore(CATALOGUE)
    total, seen = OffloadingConnectorStats(), []
    for rank, level in ((0, 7), (1, 8), (None, 3), (1, 5)):
        one = OffloadingConnectorStats(rank=rank)
        one.set_gauge(name, level)
        total.aggregate(one)
        store.apply(one)
        assert total.reduce()[name] == store.snapshot()[name][()]
        seen.append(total.reduce()[name])
    assert seen == [7, 15, 3, 5]


def test_an_undeclared_metric_adds_up_over_ranks() -> None:
    """A count nobody declared adds up, a level shows its highest."""
    stats = []
    for rank in (0, 1):
        one = OffloadingConnectorStats(rank=rank)
        one.increase_counter("x", 2 + rank)
        one.set_gauge("y", 7 - rank)
        stats.append(one)
    assert merge_ranks(stats).reduce() == {"x": 5, "y": 7}


@pytest.mark.parametrize("kind", [HiSparseKVConnectorStats, OffloadingConnectorStats])
def test_ranks_are_bounded(kind: type[KVConnectorStats]) -> None:
    """Ranks beyond the bound, and what is no rank, are counted and left out."""
    total = kind()
    for rank in range(MAX_RANKS + 3):
        data = {"cache_hits": [1]} if kind is HiSparseKVConnectorStats else labelled_stats(None).to_dict()
        total.aggregate({**data, "rank": rank})
    lost = 3 * (1 if kind is HiSparseKVConnectorStats else labelled_stats(None).own.count_kept())
    assert total.errors == {"unknown_rank": lost}
    assert len(total.to_dict()["ranks"]) == MAX_RANKS
    total = kind({"rank": -1}, rank="x")  # type: ignore[arg-type]  # the point
    assert total.errors == {"unknown_rank": 2}


def test_a_containers_rank_survives_reset_and_travels() -> None:
    """The rank stays when what was recorded is taken, and comes back with the plain form."""
    stats = operator_stats(3)
    plain = stats.take()
    assert stats.rank == 3
    assert HiSparseKVConnectorStats(plain).rank == 3
    assert HiSparseKVConnectorStats(plain, rank=1).rank == 1
    assert stats.is_empty()


def test_four_ranks_of_one_transfer_add_up_and_average_per_transfer() -> None:
    """Each of four ranks moving 10 MB counts four transfers and 40 MB, and the mean of one stays 10 MB."""
    parts = []
    for rank in range(4):
        one = OffloadingConnectorStats(rank=rank)
        one.increase_counter("vllm:kv_offload_load_bytes", 10_000_000)
        one.observe_histogram("vllm:kv_offload_load_size", [10_000_000])
        parts.append(one)
    reduced = merge_ranks(parts).reduce()
    count, total = (reduced[f"vllm:kv_offload_load_size_{part}"] for part in ("count", "sum"))
    assert (reduced["vllm:kv_offload_load_bytes"], count, total / count) == (40_000_000, 4, 10_000_000)


def test_the_rate_in_the_line_is_of_the_clock_and_of_all_ranks(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """Four transfers of 100 MiB at once on each of two ranks are 800 MiB in a second, whatever their spans overlap."""
    caplog.set_level(logging.INFO, logger="hisparse")
    seconds = [0.0]
    pipeline = TelemetryPipeline(model_name="m", registry=registry, clock=lambda: seconds[0])
    parts = []
    for rank in (0, 1):
        one = OffloadingConnectorStats(rank=rank)
        for _ in range(4):
            one.increase_counter("vllm:kv_offload_load_bytes", 100 * 2**20)
            one.increase_counter("vllm:kv_offload_load_time", 1.0)
        parts.append(one)
    pipeline.publish({"rows": merge_ranks(parts)})
    seconds[0] = 1.0
    pipeline.flush()
    assert "Offload load GiB/s=0.7812" in caplog.messages[0]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 99), st.integers(0, 99)), max_size=12))
def test_a_breakdown_adds_up_to_its_total_over_engines(steps: list[tuple[int, int, int, int]]) -> None:
    """Whatever engines and ranks say, the outcomes by label add up to what the operator names count."""
    stores = [MetricStore(CATALOGUE) for _ in range(4)]
    for engine, rank, hits, misses in steps:
        total, parts = HiSparseKVConnectorStats(rank=rank), OffloadingConnectorStats(rank=rank)
        total.record_snapshot(hits, misses, 0)
        for outcome, count in (("hit", hits), ("miss", misses)):
            parts.increase_counter(SELECTIONS, count, (outcome, "0"))
        for stats in (total, parts):
            stores[engine].apply(stats)
    for snapshot in (store.snapshot() for store in stores):
        for outcome, name in (("hit", "vllm:hisparse_cache_hits"), ("miss", "vllm:hisparse_cache_misses")):
            assert snapshot[SELECTIONS].get((outcome, "0"), 0) == snapshot[name][()]


def test_a_wrong_number_of_labels_says_how_many_are_expected() -> None:
    """A series with label values its metric does not have is counted, and the sentence names the number."""
    stats = OffloadingConnectorStats()
    stats.increase_counter(SELECTIONS, 1, ("hit",))
    stats.increase_counter(BYTES, 1, LOADED)
    store = MetricStore(CATALOGUE)
    assert "expects 2 labels" in store.apply(stats)["label_mismatch"]
    assert store.snapshot()[BYTES][LOADED] == 1


def test_a_rank_over_other_buckets_changes_nothing() -> None:
    """A histogram over other bounds is skipped and counted, and the same rank's next one is taken."""
    store = MetricStore(CATALOGUE)
    foreign = {"bounds": [1.0], "counts": [1, 0], "sum": 1.0, "count": 1}
    store.apply(OffloadingConnectorStats({"types": {MISSES: "histogram"}, "data": {MISSES: {"": foreign}}}, rank=0))
    for rank in (0, 0, 1):
        store.apply(labelled_stats(rank))
    assert store.snapshot()[MISSES][()].count == 4  # type: ignore[union-attr]  # a histogram
    assert store.snapshot()["hisparse_telemetry_errors_total"][("bucket_mismatch",)] == 1
