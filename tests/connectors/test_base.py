"""What a connector gets for naming its metrics."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from hisparse.connectors import KVConnector
from hisparse.telemetry import Catalogue, CounterMetadata, HistogramMetadata, OffloadingConnectorStats


class Fetching(KVConnector):
    """A connector of somebody else."""

    name = "Fetching"
    catalogue = Catalogue(
        {
            "mine_fetches_total": CounterMetadata("Fetches.", labelnames=("peer",)),
            "mine_rows": HistogramMetadata("Rows of one fetch.", unit="rows", buckets=(1, 8)),
        }
    )

    def __init__(self) -> None:
        self.stats = OffloadingConnectorStats(catalogue=self.catalogue)
        self.flushed = 0

    def get_kv_connector_stats(self) -> OffloadingConnectorStats | None:
        if self.stats.is_empty():
            return None
        return OffloadingConnectorStats(self.stats.take(), catalogue=self.catalogue)

    def flush(self) -> None:
        self.flushed += 1


class Silent(Fetching):
    """One without metrics."""

    catalogue = Catalogue({})


@pytest.fixture
def metric_types(registry: CollectorRegistry) -> dict[type, Any]:
    """Return prometheus_client's classes on a registry of the test's own."""

    def on(kind: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **given: kind(**given, registry=registry)

    return {kind: on(kind) for kind in (Counter, Gauge, Histogram)}


def test_declared_metrics_reach_the_host_s_classes(
    registry: CollectorRegistry, metric_types: Mapping[type, Any]
) -> None:
    """A catalogue is all a class gives to have its statistics built from plain data and observed."""
    prom = Fetching.build_prom_metrics(None, metric_types, ["model_name", "engine"], {0: ["m", 0]})
    assert prom is not None
    connector = Fetching()
    assert connector.get_kv_connector_stats() is None
    connector.stats.increase_counter("mine_fetches_total", 3, ("a",))
    connector.stats.observe_histogram("mine_rows", [1, 2, 30])
    stats = connector.get_kv_connector_stats()
    assert stats is not None
    prom.observe(stats.to_dict())
    labels = {"model_name": "m", "engine": "0"}
    assert registry.get_sample_value("mine_fetches_total", labels | {"peer": "a"}) == 3
    assert registry.get_sample_value("mine_rows_bucket", labels | {"le": "8.0"}) == 2
    assert registry.get_sample_value("mine_rows_sum", labels) == 33


def test_a_class_without_metrics_has_no_prometheus_side(metric_types: Mapping[type, Any]) -> None:
    """Nothing declared is nothing to create."""
    assert Silent.build_prom_metrics(None, metric_types, ["engine"], {0: ["0"]}) is None


def test_statistics_are_built_by_class() -> None:
    """None makes empty statistics, plain data the same again, and what nobody knows none."""
    empty = Fetching.build_kv_connector_stats()
    assert empty is not None
    assert empty.is_empty()
    connector = Fetching()
    connector.stats.increase_counter("mine_fetches_total", 3, ("a",))
    stats = connector.get_kv_connector_stats()
    assert stats is not None
    assert Fetching.build_kv_connector_stats(stats.to_dict()) == stats
    assert Fetching.build_kv_connector_stats({"of": "somebody"}) is None


def test_a_reset_and_the_end_flush() -> None:
    """What is counted elsewhere is taken in before anything is forgotten."""
    connector = Fetching()
    connector.reset_cache()
    connector.shutdown()
    assert connector.flushed == 2
