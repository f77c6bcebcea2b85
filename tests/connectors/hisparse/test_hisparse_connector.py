"""Both sides of the HiSparse connector, and its Prometheus side, as an engine calls them."""

from dataclasses import dataclass
from typing import Any

import pytest
from faking import Clock, Device, Ledger
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from hisparse.connectors import HiSparseConnector, HostLevels, KVConnector
from hisparse.errors import SettingError
from hisparse.telemetry import HiSparseConnectorStats

METRIC_TYPES: dict[type, type] = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}


@dataclass
class Pool:
    """A pool of 8 blocks, one of which is the null block."""

    used: int = 0
    pending: int = 0

    def levels(self) -> HostLevels:
        return HostLevels(
            pages=8,
            null_pages=1,
            used_pages=self.used,
            page_bytes=64,
            pending_page_transfers=self.pending,
            labels={"top_k": "4"},
        )


def scheduler_of(pool: Pool, clock: Clock | None = None) -> HiSparseConnector:
    """Return the scheduler side over a pool."""
    return HiSparseConnector("scheduler", levels=pool, clock=Clock() if clock is None else clock)


def test_levels_are_told_at_every_step() -> None:
    """Fresh: nothing used, nothing pending; then used / 7, at every step, changed or not."""
    pool = Pool()
    connector = scheduler_of(pool)
    stats = connector.get_kv_connector_stats()
    assert stats is not None
    assert stats.data["host_cache_usage_perc"] == [0.0]
    assert stats.data["pending_page_transfers"] == [0]
    pool.used, pool.pending = 3, 2
    for _ in range(3):
        stats = connector.get_kv_connector_stats()
        assert stats is not None
        assert stats.data["host_cache_usage_perc"] == [3 / 7]
        assert stats.data["pending_page_transfers"] == [2]
        assert stats.reduce()["HiSparse host KV cache usage %"] == 42.9
    assert not stats.errors


def test_bytes_and_configuration_are_told_when_they_change_and_once_a_period() -> None:
    """What rarely changes does not travel with every step, and reaches a front end that came late all the same."""
    pool, clock = Pool(), Clock()
    connector = scheduler_of(pool, clock)
    told = []
    for used, elapsed in ((0, 0), (0, 0.5), (2, 0.1), (2, 0.1), (2, 1.0), (2, 0.5)):
        pool.used, clock.now = used, clock.now + elapsed
        ledger = Ledger()
        stats = connector.get_kv_connector_stats()
        ledger.take(stats)
        told.append(("hisparse_host_used_bytes",) in ledger.totals)
        assert stats is not None
        assert bool(stats.info()) == told[-1]
    assert told == [True, False, True, False, True, False]
    assert HostLevels().usage_ratio == 0


def test_a_pool_that_fails_ends_no_step() -> None:
    """A source of levels that raises is counted, and the step goes on without levels."""

    class Failing(Pool):
        def levels(self) -> HostLevels:
            raise OSError("no pool")

    stats = scheduler_of(Failing()).get_kv_connector_stats()
    assert stats is not None
    assert (stats.errors, stats.data["host_cache_usage_perc"]) == ({"internal": 1}, [])


def test_a_worker_hands_its_samples_out() -> None:
    """The worker side is a `HiSparseConnectorWorker`: flushed by a reset, ended by a shutdown."""
    device, ledger = Device(looks=5), Ledger()
    connector: KVConnector = HiSparseConnector("worker", source=device, rank=1, clock=Clock())
    for end in (connector.reset_cache, connector.shutdown):
        device.count(12, 4)
        ledger.take(connector.get_kv_connector_stats())
        device.looks = 0
        for copy in device.copies:
            copy.looks = 0
        end()
        ledger.take(connector.get_kv_connector_stats())
        device.reset()
    assert ledger.selections == (24, 8)
    assert connector.get_kv_connector_stats() is None


def test_resets_and_the_end_are_harmless_on_the_scheduler_side() -> None:
    """The side that only looks has nothing to flush and tells levels before and after."""
    connector = scheduler_of(Pool(used=1))
    connector.reset_cache()
    connector.shutdown()
    stats = connector.get_kv_connector_stats()
    assert stats is not None
    assert stats.data["host_cache_usage_perc"] == [1 / 7]


@pytest.mark.parametrize("given", [("scheduler", {}), ("worker", {}), ("worker", {"levels": Pool()}), ("kv_both", {})])
def test_a_side_without_what_it_reads_is_refused(given: tuple[Any, dict[str, Any]]) -> None:
    """A role that is unknown, or was not given its source, is refused by name."""
    role, sources = given
    with pytest.raises(
        SettingError, match=f"role must be 'scheduler' with levels or 'worker' with source, got '{role}"
    ):
        HiSparseConnector(role, **sources)


def test_statistics_are_built_from_their_plain_form() -> None:
    """None makes empty ones, a plain form the same again, and another connector's none."""
    worker = HiSparseConnector("worker", source=Device(), rank=1, clock=Clock())
    stats = worker.get_kv_connector_stats()
    assert stats is not None
    assert HiSparseConnector.build_kv_connector_stats(stats.to_dict()) == stats
    empty = HiSparseConnector.build_kv_connector_stats()
    assert isinstance(empty, HiSparseConnectorStats)
    assert empty.is_empty()
    assert HiSparseConnector.build_kv_connector_stats({"num_failed_transfers": [1]}) is None


def prom_of(registry: CollectorRegistry) -> Any:
    """Return the Prometheus side as vLLM's front end makes it, on a registry of its own."""
    types = {kind: _on(kind, registry) for kind in METRIC_TYPES}
    return HiSparseConnector.build_prom_metrics(
        None, types, ["model_name", "engine"], {0: ["tiny", "0"], 1: ["tiny", "1"]}
    )


def _on(kind: Any, registry: CollectorRegistry) -> Any:
    class Registered(kind):  # type: ignore[misc] # a class chosen at run time
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "registry": registry})

    return Registered


def test_observed_statistics_reach_the_host_s_own_classes() -> None:
    """Twelve hits, four misses and 64 bytes of one engine are what its series say, and the other's stay at zero."""
    registry = CollectorRegistry()
    prom = prom_of(registry)
    device = Device()
    device.count(12, 4)
    worker = HiSparseConnector("worker", source=device, rank=0, clock=Clock())
    stats = worker.get_kv_connector_stats()
    assert stats is not None
    levels = scheduler_of(Pool(used=3)).get_kv_connector_stats()
    prom.observe(stats.aggregate(levels).to_dict(), engine_idx=1)

    def value(name: str, engine: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"model_name": "tiny", "engine": engine, **labels})

    assert value("vllm:hisparse_cache_hits_total", "1") == 12
    assert value("vllm:hisparse_cache_misses_total", "1") == 4
    assert value("vllm:hisparse_host_to_device_bytes_total", "1") == 64
    assert value("vllm:hisparse_host_cache_usage_perc", "1") == 3 / 7
    assert value("hisparse_hot_selections_total", "1", outcome="hit", group="0") == 12
    assert value("hisparse_hot_gather_seconds_count", "1") == 1
    assert value("hisparse_hot_request_misses_rows_sum", "1") == 4
    silent = {
        sample.name for family in registry.collect() for sample in family.samples if sample.labels["engine"] == "0"
    }
    assert {"vllm:hisparse_cache_hits_total", "hisparse_hot_gather_seconds_count", "hisparse_host_used_bytes"} <= silent
    assert not {value(name, "0") for name in silent if not name.endswith(("_bucket", "_created"))} - {0, None}


@pytest.mark.parametrize("data", [None, 7, [], {"metrics": 3}, {"cache_hits": [-1, float("nan")]}, {"x": 1}, b"\xff"])
def test_observing_anything_raises_nothing(data: Any) -> None:
    """Foreign data, and an engine nobody knows, are left out; what follows is observed as ever."""
    registry = CollectorRegistry()
    prom = prom_of(registry)
    prom.observe(data)
    prom.observe(data, engine_idx=99)
    prom.observe({"cache_hits": [5], "cache_misses": [2], "host_to_device_bytes": [32]})
    labels = {"model_name": "tiny", "engine": "0"}
    assert registry.get_sample_value("vllm:hisparse_cache_hits_total", labels) == 5
