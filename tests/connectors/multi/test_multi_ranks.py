"""Several connectors on several workers of one engine."""

from collections.abc import Callable

import pytest
from children import NixlStats, Recording
from prometheus_client import CollectorRegistry

from hisparse.connectors import MultiConnector, MultiKVConnectorStats, StatsBuilder
from hisparse.telemetry import (
    CATALOGUE,
    KVConnectorStats,
    OffloadingConnectorStats,
    TelemetryPipeline,
    decode_stats,
    encode_stats,
    merge_ranks,
)

BUILDER = StatsBuilder()
ONCE = ("hisparse_hot_selections_total", ("hit", "0"))
BYTES = "vllm:kv_offload_load_bytes"
USED = "hisparse_host_used_bytes"


def worker(rank: int | None, hits: int = 12) -> MultiKVConnectorStats:
    """Return what two children of one class recorded on one worker: hits of each, 64 bytes each, 3 bytes in use."""
    children = [Recording(), Recording()]
    multi = MultiConnector(children)
    for child in children:
        child.stats = OffloadingConnectorStats(rank=rank)
        child.stats.increase_counter(ONCE[0], hits, ONCE[1])
        child.stats.increase_counter(BYTES, 64)
        child.stats.set_gauge(USED, 3)
    stats = multi.get_kv_connector_stats()
    assert stats is not None
    return stats


def by_engine(first: MultiKVConnectorStats, second: MultiKVConnectorStats) -> KVConnectorStats:
    """Join as an engine does that knows nothing of ranks."""
    return first.aggregate(second)


def by_plain(first: MultiKVConnectorStats, second: MultiKVConnectorStats) -> KVConnectorStats:
    """Join plain forms."""
    built = BUILDER(second.to_dict())
    assert built is not None
    return built.aggregate(first.to_dict())


def by_rank(first: MultiKVConnectorStats, second: MultiKVConnectorStats) -> KVConnectorStats:
    """Join as workers that are told apart by position."""
    return merge_ranks([None, first, second])


@pytest.mark.parametrize("join", [by_engine, by_plain, by_rank])
@pytest.mark.parametrize("form", ["container", "plain", "bytes"])
def test_what_ranks_do_alike_counts_once(
    join: Callable[[MultiKVConnectorStats, MultiKVConnectorStats], KVConnectorStats], form: str
) -> None:
    """Two workers with the same hits report those of both children once, and their bytes and levels twice."""
    registry = CollectorRegistry()
    joined = join(worker(0), worker(1))
    sent = {"container": lambda: joined, "plain": joined.to_dict, "bytes": lambda: encode_stats(joined)}[form]()
    with TelemetryPipeline(registry=registry, build=BUILDER) as pipeline:
        pipeline.publish({"Multi": sent})
        labels = {"model_name": "", "engine": "0"}
        assert registry.get_sample_value(ONCE[0], {**labels, "outcome": "hit", "group": "0"}) == 24
        assert registry.get_sample_value(f"{BYTES}_total", labels) == 256
        assert registry.get_sample_value(USED, labels) == 12


def test_the_position_is_the_rank_of_what_carries_none() -> None:
    """Workers that do not know their rank are told apart by where they stand in the list."""
    registry = CollectorRegistry()
    with TelemetryPipeline(registry=registry, build=BUILDER) as pipeline:
        pipeline.publish({"Multi": merge_ranks([worker(None), worker(None)])})
        labels = {"model_name": "", "engine": "0"}
        assert registry.get_sample_value(ONCE[0], {**labels, "outcome": "hit", "group": "0"}) == 24
        assert registry.get_sample_value(f"{BYTES}_total", labels) == 256


def test_children_travel_as_bytes_of_their_own() -> None:
    """A child's statistics may be bytes beside plain ones, and bytes that are nothing are counted."""
    child = OffloadingConnectorStats()
    child.increase_counter(BYTES, 64)
    stats = BUILDER({"children": {"Offloading#0": encode_stats(child), "Offloading#1": child.to_dict()}})
    assert isinstance(stats, MultiKVConnectorStats)
    assert stats.reduce() == {f"Offloading#0: {BYTES}": 64, f"Offloading#1: {BYTES}": 64}
    assert (
        stats.aggregate({"children": {"Offloading#0": encode_stats(child)}}).reduce()[f"Offloading#0: {BYTES}"] == 128
    )
    assert stats.aggregate({"children": {"Other": b"\xc1"}}).errors == {"wrong_type": 1}


def test_bytes_come_back_in_the_classes_they_had() -> None:
    """What was encoded with a foreign child decodes with a builder that knows it, equal to what it was."""
    stats = MultiKVConnectorStats({"children": {"Nixl": NixlStats({"xfer_seconds": [0.5]})}}, build=BUILDER.child)
    decoded = decode_stats(encode_stats(stats), CATALOGUE, StatsBuilder([_Nixl]))
    assert decoded == stats


class _Nixl(Recording):
    """Builds the statistics of a foreign class."""

    @classmethod
    def build_kv_connector_stats(cls, data: object = None) -> NixlStats | None:
        """Return them where there are times of transfers."""
        return NixlStats(data) if isinstance(data, dict) and "xfer_seconds" in data else None
