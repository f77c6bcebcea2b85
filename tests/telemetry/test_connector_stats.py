"""Statistics of a HiSparse connector carry labelled metrics beside the fields operators know."""

import json
import pickle
from typing import Any

import msgspec
import pytest

from hisparse.telemetry import (
    HiSparseConnectorStats,
    HiSparseKVConnectorStats,
    Histogram,
    SkipReason,
    build_kv_connector_stats,
    decode_stats,
    encode_stats,
)

SELECTIONS = "hisparse_hot_selections_total"
MISSES = "hisparse_hot_request_misses_rows"
BYTES = "vllm:hisparse_host_to_device_bytes"
BUCKETS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


def filled(rank: int | None = None, *, hits: int = 12) -> HiSparseConnectorStats:
    """Return statistics of every kind."""
    stats = HiSparseConnectorStats(rank=rank)
    stats.record_snapshot(hits, 4, 64)
    stats.increase_counter(SELECTIONS, hits, ("hit", 0))
    stats.set_gauge("hisparse_host_used_bytes", 512)
    misses = Histogram.empty(tuple(map(float, BUCKETS)))
    misses.observe(4)
    stats.merge_histogram(MISSES, misses)
    stats.set_info("hisparse_hot_config_info", {"top_k": "16"})
    return stats


def values(stats: Any) -> dict[tuple[str, ...], Any]:
    """Return counters and gauges by name and labels."""
    return {(s.name, *s.labels): s.value for s in stats.samples() if not isinstance(s.value, Histogram)}


@pytest.mark.parametrize(
    "carry",
    [
        lambda stats: stats.to_dict(),
        lambda stats: json.loads(json.dumps(stats.to_dict())),
        lambda stats: msgspec.msgpack.decode(msgspec.msgpack.encode(stats.to_dict())),
        lambda stats: pickle.loads(pickle.dumps(stats.to_dict())),  # noqa: S301 - what the line before made
        lambda stats: decode_stats(encode_stats(stats)),
    ],
)
@pytest.mark.parametrize("rank", [None, 1])
def test_both_parts_survive_the_way_to_another_process(rank: int | None, carry: Any) -> None:
    """Fields, labelled series, info and rank are the same after every form of transport."""
    stats = filled(rank)
    carried = carry(stats)
    arrived = carried if isinstance(carried, HiSparseConnectorStats) else build_kv_connector_stats(carried)
    assert arrived == stats
    assert arrived.info() == {"hisparse_hot_config_info": [{"top_k": "16"}]}
    assert arrived.rank == rank


def test_steps_of_one_rank_add_up() -> None:
    """Fields extend and labelled counters add, whichever of the two a step carries."""
    stats = filled().aggregate(filled(hits=3)).aggregate(HiSparseKVConnectorStats({"cache_hits": [5]}))
    assert stats.data["cache_hits"] == [12, 3, 5]
    assert values(stats)[SELECTIONS, "hit", "0"] == 15
    assert stats.reduce()["HiSparse hot-buffer hits"] == 20


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_ranks_that_did_alike_count_once(order: tuple[int, int]) -> None:
    """Of two ranks, selections show once and bytes twice, in either order of arrival."""
    first, second = (filled(rank) for rank in order)
    merged = HiSparseConnectorStats(first.aggregate(second).to_dict())
    assert merged.reduce()["HiSparse hot-buffer hits"] == 12
    assert merged.reduce()["HiSparse host-to-device bytes"] == 128
    by_rank = [s.value for s in merged.samples() if (s.name, *s.labels) == (SELECTIONS, "hit", "0")]
    assert by_rank == [12, 12]


def test_a_fault_in_the_labelled_part_is_counted_once() -> None:
    """A bad name, value or section is skipped under its reason, and travels with the container it was put into."""
    stats = filled()
    stats.increase_counter(SELECTIONS, -1, ("hit", 0))
    stats.set_gauge("no name", 1)
    stats.merge_histogram(MISSES, Histogram.empty((1.0,)))
    stats.aggregate({"metrics": 3})
    expected = {SkipReason.NEGATIVE: 1, SkipReason.WRONG_TYPE: 2, SkipReason.BUCKET_MISMATCH: 1}
    assert stats.errors == expected
    assert HiSparseConnectorStats(stats.to_dict()).errors == expected
    assert values(stats)[SELECTIONS, "hit", "0"] == 12


def test_taking_leaves_nothing() -> None:
    """After a hand-over both parts are empty, and empty ones have no section."""
    stats = filled(rank=1)
    assert stats.take()["metrics"]["rank"] == 1
    assert stats.is_empty()
    assert stats == HiSparseConnectorStats(rank=1)
    assert stats != filled(rank=1)
    assert "metrics" not in stats.to_dict()
    assert not list(stats.samples())


def test_the_log_takes_no_operator_name_of_another_kind() -> None:
    """What a labelled part records under an operator's name, as another kind, is not in the reduced numbers."""
    stats = filled()
    stats.aggregate({"types": {BYTES: "histogram"}, "data": {BYTES: {"": [3.0]}}})
    assert stats.reduce()["HiSparse host-to-device bytes"] == 64
