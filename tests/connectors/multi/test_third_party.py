"""Somebody else's connector: written by the public contract alone, it reaches the log and a scrape."""

import logging
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from children import NixlConnector, NixlStats
from prometheus_client import CollectorRegistry

from hisparse.connectors import MultiConnector, StatsBuilder
from hisparse.telemetry import (
    CATALOGUE,
    Catalogue,
    KVConnectorStats,
    TelemetryPipeline,
    encode_stats,
    merge_ranks,
    merge_step,
    start_metrics_server,
)


def test_three_kinds_of_failures_are_failed_transfers() -> None:
    """A failed transfer, handshake and notification make 3 failed transfers, as plain numbers."""
    stats = NixlStats({"failed_transfers": 1})
    stats.aggregate({"failed_handshakes": 1}).aggregate({"failed_notifications": 1, "xfer_seconds": [0.5]})
    assert stats.reduce() == {"Num transfers": 1, "Num failed transfers": 3}
    assert {type(value) for value in stats.reduce().values()} == {int}


@pytest.mark.parametrize("where", ["in a MultiConnector", "alone"])
def test_it_reaches_log_and_scrape(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """Plain data of a class this package has never seen shows in the log line and at the endpoint."""
    caplog.set_level(logging.INFO)
    connector, registry = NixlConnector(), CollectorRegistry()
    connector.stats.aggregate({"failed_handshakes": 3, "xfer_seconds": [0.01, 0.1]})
    source = MultiConnector([connector]) if where != "alone" else connector
    stats = source.get_kv_connector_stats()
    assert stats is not None
    catalogue, build = CATALOGUE.merged(NixlConnector.catalogue), StatsBuilder([NixlConnector])
    with (
        TelemetryPipeline(registry=registry, catalogue=catalogue, build=build) as pipeline,
        start_metrics_server(registry) as server,
    ):
        pipeline.publish({source.name: stats.to_dict()})
        pipeline.flush()
        with urllib.request.urlopen(server.url, timeout=10) as response:  # noqa: S310 - a loopback address
            text = response.read().decode()
    assert "NIXL failures=3" in caplog.text
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("nixl_") and "le=" not in line]
    assert {name.partition("{")[0]: float(value) for name, _, value in lines} == {
        "nixl_failed_transfers_total": 3,
        "nixl_xfer_seconds_count": 2,
        "nixl_xfer_seconds_sum": 0.11,
    }


def test_alone_it_is_held_to_the_rules_too() -> None:
    """Plain data that its own class lets in and no sink can take is counted, within several connectors or alone."""
    registry, build = CollectorRegistry(), StatsBuilder([NixlConnector])
    catalogue = CATALOGUE.merged(NixlConnector.catalogue)
    with TelemetryPipeline(registry=registry, catalogue=catalogue, build=build) as pipeline:
        for payload in ({"xfer_seconds": [float("inf")]}, {"children": {"Nixl": {"xfer_seconds": [float("inf")]}}}):
            pipeline.publish({"Nixl": payload})
        labels = {"model_name": "", "engine": "0"}
        assert registry.get_sample_value("nixl_xfer_seconds_sum", labels) == 0
        skipped = registry.get_sample_value("hisparse_telemetry_errors_total", {**labels, "reason": "not_finite"})
        assert skipped == 2


@pytest.mark.parametrize("wire", [lambda stats: stats.to_dict(), encode_stats], ids=["plain", "bytes"])
@pytest.mark.parametrize("where", ["in a MultiConnector", "alone"])
def test_plain_data_of_ranks_and_sides_merges(wire: Callable[[KVConnectorStats], Any], where: str) -> None:
    """With a builder that knows its class, workers and scheduler of one step add up before the front end sees them."""
    said, registry = [], CollectorRegistry()
    for failures in (1, 2, 4):
        connector = NixlConnector()
        connector.stats.aggregate({"failed_handshakes": failures, "xfer_seconds": [0.01]})
        stats = (MultiConnector([connector]) if where != "alone" else connector).get_kv_connector_stats()
        assert stats is not None
        said.append(wire(stats))
    catalogue, build = CATALOGUE.merged(NixlConnector.catalogue), StatsBuilder([NixlConnector])
    workers = merge_ranks(said[:2], catalogue=catalogue, build=build)
    step = merge_step(workers, said[2], catalogue=catalogue, build=build)
    assert step is not None
    assert step.errors == {}
    with TelemetryPipeline(registry=registry, catalogue=catalogue, build=build) as pipeline:
        pipeline.publish({"Nixl": step})
        labels = {"model_name": "", "engine": "0"}
        assert registry.get_sample_value("nixl_failed_transfers_total", labels) == 7
        assert registry.get_sample_value("nixl_xfer_seconds_count", labels) == 3


def test_without_a_builder_the_warning_says_what_to_do() -> None:
    """What nobody here knows is counted once for each sender, and the sentence names the argument to give."""
    merged = merge_ranks([{"failed_handshakes": 1}, {"failed_handshakes": 1}])
    step = merge_step(None, {"failed_handshakes": 1})
    assert step is not None
    for stats, count in ((merged, 2), (step, 1)):
        assert stats.errors == {"unknown_connector": count}
        assert "give build=StatsBuilder([...])" in stats.examples["unknown_connector"]


def test_a_builder_that_raises_costs_what_it_was_given() -> None:
    """A fault of somebody else's class ends no step."""

    def broken(data: Any, catalogue: Catalogue) -> KVConnectorStats | None:
        raise ValueError(data, catalogue)

    assert merge_ranks([{"x": 1}, encode_stats(NixlStats())], build=broken).errors == {"unknown_connector": 2}
