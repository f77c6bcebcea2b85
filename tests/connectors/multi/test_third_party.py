"""Somebody else's connector: written by the public contract alone, it reaches the log and a scrape."""

import logging
import urllib.request

import pytest
from children import NixlConnector, NixlStats
from prometheus_client import CollectorRegistry

from hisparse.connectors import MultiConnector, StatsBuilder
from hisparse.telemetry import CATALOGUE, TelemetryPipeline, start_metrics_server


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
