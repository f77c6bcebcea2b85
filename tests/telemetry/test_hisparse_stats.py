"""Statistics of hot buffers."""

import tracemalloc

import numpy as np
import pytest

from hisparse.telemetry import HiSparseKVConnectorStats
from hisparse.telemetry.hisparse_stats import DELTAS, LEVELS, MAX_DELTAS

LIFETIME = "host_block_lifetime_seconds"


def recorded(hits: int, misses: int, moved_bytes: int) -> HiSparseKVConnectorStats:
    """Return statistics of one snapshot."""
    stats = HiSparseKVConnectorStats()
    stats.record_snapshot(hits, misses, moved_bytes)
    return stats


def test_snapshots_reduce_to_sums() -> None:
    """Two snapshots reduce to the sums of their hits, misses and bytes."""
    stats = recorded(7, 3, 48)
    stats.record_snapshot(5, 1, 16)
    assert stats.reduce() == {
        "HiSparse hot-buffer hits": 12,
        "HiSparse hot-buffer misses": 4,
        "HiSparse host-to-device bytes": 64,
    }


def test_usage_is_the_latest_as_a_percentage() -> None:
    """Usage 0.4 then 0.8 reduces to 80.0, and only the latest level is kept."""
    stats = HiSparseKVConnectorStats()
    stats.record_host_usage(0.4, 3)
    stats.record_host_usage(0.8, 2)
    assert stats.reduce()["HiSparse host KV cache usage %"] == 80.0
    assert (stats.data["host_cache_usage_perc"], stats.data["pending_page_transfers"]) == ([0.8], [2])


def test_aggregating_extends_the_deltas() -> None:
    """Two delta containers aggregate into lists of both, in order, and the same object comes back."""
    stats = recorded(7, 3, 48)
    assert stats.aggregate(recorded(5, 1, 16)) is stats
    assert stats.data["cache_hits"] == [7, 5]
    assert stats.data["cache_misses"] == [3, 1]
    assert stats.data["host_to_device_bytes"] == [48, 16]


def test_aggregating_an_empty_container_changes_nothing() -> None:
    """An empty container adds nothing, levels included."""
    stats = recorded(7, 3, 48)
    stats.record_host_usage(0.5, 1)
    before = stats.to_dict()
    for empty in (HiSparseKVConnectorStats(), {}, HiSparseKVConnectorStats().to_dict()):
        stats.aggregate(empty)
    assert stats.to_dict() == before


def test_aggregating_with_itself_doubles() -> None:
    """A container may be aggregated into itself."""
    stats = recorded(7, 3, 48)
    assert stats.aggregate(stats).data["cache_hits"] == [7, 7]


def test_levels_of_the_other_replace() -> None:
    """The other's latest level stands; one without levels leaves them."""
    stats, other = HiSparseKVConnectorStats(), HiSparseKVConnectorStats()
    stats.record_host_usage(0.2, 5)
    other.aggregate({"host_cache_usage_perc": [0.3, 0.6], "pending_page_transfers": []})
    stats.aggregate(other)
    assert [stats.data[field] for field in LEVELS] == [[0.6], [5]]


def test_building_from_the_plain_form_reduces_alike() -> None:
    """A container built from another one's plain form equals it."""
    stats = recorded(7, 3, 48)
    stats.record_host_usage(0.8, 1)
    stats.record_residency(LIFETIME, [0.5, 7.0])
    built = HiSparseKVConnectorStats(data=stats.to_dict())
    assert built == stats
    assert built.reduce() == stats.reduce()


def test_fresh_and_reset_containers_are_empty() -> None:
    """A container is empty when made and when reset, and not between."""
    stats = HiSparseKVConnectorStats()
    assert stats.is_empty()
    assert stats.reduce() == {}
    stats.record_host_usage(0.0, 0)
    assert not stats.is_empty()
    stats.reset()
    assert stats.is_empty()


def test_take_hands_over_once() -> None:
    """What is taken is the plain form, and it is taken once."""
    stats = recorded(7, 3, 48)
    assert stats.take()["cache_hits"] == [7]
    assert stats.take()["cache_hits"] == []


def test_the_plain_form_is_a_copy() -> None:
    """Changing the plain form leaves the container alone."""
    stats = recorded(7, 3, 48)
    stats.to_dict()["cache_hits"].append(1000)
    assert stats.data["cache_hits"] == [7]


def test_numpy_counts_become_plain_numbers() -> None:
    """Counts handed over as numpy scalars are stored as plain integers."""
    stats = HiSparseKVConnectorStats()
    stats.record_snapshot(np.int64(7), np.int32(3), np.uint64(48))  # type: ignore[arg-type]  # the point
    assert [type(stats.data[field][0]) for field in DELTAS] == [int, int, int]


def test_undrained_deltas_stay_bounded_and_exact() -> None:
    """Steps that nobody drains cost bounded memory, and their sums stay exact."""
    stats = HiSparseKVConnectorStats()
    stats.record_snapshot(1, 2, 3)
    tracemalloc.start()
    for _ in range(20_000):
        stats.record_snapshot(10**9, 2, 3)
        stats.record_host_usage(0.5, 1)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 64 * 1024
    assert stats.reduce()["HiSparse hot-buffer hits"] == 20_000 * 10**9 + 1
    assert [len(stats.data[field]) <= MAX_DELTAS for field in DELTAS + LEVELS] == [True] * 5


def test_a_fold_keeps_the_recent_steps_apart() -> None:
    """Beyond the bound the oldest entries become one; the newest stay as recorded."""
    stats = HiSparseKVConnectorStats()
    for step in range(MAX_DELTAS + 1):
        stats.record_snapshot(step, 0, 0)
    hits = stats.data["cache_hits"]
    assert sum(hits) == MAX_DELTAS * (MAX_DELTAS + 1) // 2
    assert hits[1:] == list(range(MAX_DELTAS // 2, MAX_DELTAS + 1))


def test_residency_samples_of_a_foreign_payload_become_buckets() -> None:
    """A list of samples is accepted and travels on as bucket counts."""
    stats = HiSparseKVConnectorStats({LIFETIME: [0.5, 7.0]}).aggregate({LIFETIME: [7.0]})
    plain = stats.to_dict()[LIFETIME]
    assert (plain["count"], plain["sum"]) == (3, 14.5)


@pytest.mark.parametrize(
    ("payload", "errors"),
    [
        (None, {}),
        (7, {"wrong_type": 1}),
        ([1], {"wrong_type": 1}),
        ({"cache_hits": 7}, {"wrong_type": 1}),
        ({"cache_hits": [7, -1, float("nan"), "a", None, True]}, {"negative": 1, "not_finite": 1, "wrong_type": 3}),
        ({"cache_hits": [2**60]}, {"out_of_range": 1}),
        ({"host_cache_usage_perc": [float("inf")]}, {"not_finite": 1}),
        ({"newer_field": [1], 3: 4}, {"unknown_key": 2}),
        ({LIFETIME: 3}, {"wrong_type": 1}),
        ({LIFETIME: [-1]}, {"negative": 1}),
        ({LIFETIME: {"bounds": [1], "counts": [1, 0], "sum": 1, "count": 1}}, {"bucket_mismatch": 1}),
        ({"telemetry_errors": {"negative": 2, "newer_reason": 1}}, {"negative": 2, "newer_reason": 1}),
        ({"telemetry_errors": 3}, {"wrong_type": 1}),
        ({"telemetry_errors": {"negative": -1}}, {"negative": 1}),
    ],
)
def test_bad_items_are_counted_by_reason(payload: object, errors: dict[str, int]) -> None:
    """What cannot be used is left out and counted; what can be used next to it stays."""
    stats = recorded(7, 3, 48).aggregate(payload)
    assert stats.errors == errors
    assert stats.data["cache_hits"][0] == 7
    assert set(stats.examples) == set(errors)


def test_skipped_items_travel_with_the_payload() -> None:
    """Counts of skipped items survive the plain form, add up and clear on reset."""
    first = recorded(-1, 3, 48)
    stats = HiSparseKVConnectorStats(first.to_dict()).aggregate(first)
    assert stats.errors == {"negative": 2}
    assert stats.data["cache_misses"] == [3, 3]
    stats.reset()
    assert stats.is_empty()


def test_an_unknown_residency_field_is_counted() -> None:
    """Recording into a field that does not exist is counted, not raised."""
    stats = HiSparseKVConnectorStats()
    stats.record_residency("host_block_age_seconds", [1.0])
    assert stats.errors == {"unknown_key": 1}
