"""The scheduler side of offloading."""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from prometheus_client import CollectorRegistry
from unreadable import UnreadableError

from hisparse.connectors import OffloadingConnectorScheduler, OffloadingWorkerMetadata
from hisparse.connectors.offloading.direction import MAX_FAILURE_REASONS
from hisparse.telemetry import (
    CATALOGUE,
    GaugeMetadata,
    KVConnectorStats,
    OffloadingConnectorStats,
    TelemetryPipeline,
)

INFO = "hisparse_offload_config_info"
WITH_INFO = CATALOGUE.merged(
    {INFO: GaugeMetadata("Tiers; always 1.", unit="info", labelnames=("capacity_blocks", "tier"), log=None)}
)


class Manager:
    """A manager that skipped 3 stores since it was last asked, and has two tiers."""

    def __init__(self, capacity_blocks: int | None = 16384) -> None:
        self.skipped = 3
        self.capacity_blocks = capacity_blocks

    def get_stats(self) -> KVConnectorStats | Mapping[str, Any] | None:
        """Return the stores skipped since the last call."""
        stats = OffloadingConnectorStats()
        stats.increase_counter("vllm:kv_offload_stores_skipped", self.skipped)
        skipped, self.skipped = self.skipped, 0
        return stats if skipped else None

    def config_info(self) -> Mapping[str, Any]:
        """Return the tiers."""
        tiers = [{"tier": "cpu", "capacity_blocks": self.capacity_blocks}, {"tier": "file"}]
        return {INFO: tiers}


class Broken:
    """A manager that raises whenever it is asked."""

    def get_stats(self) -> None:
        """Raise."""
        raise ValueError("no statistics today")

    def config_info(self) -> Mapping[str, Any]:
        """Raise."""
        raise KeyError("spec")


def report(**changed: Any) -> OffloadingWorkerMetadata:
    """Return one worker's report of one transfer."""
    metadata = OffloadingWorkerMetadata()
    measured = {"direction": "load", "size_bytes": 100, "started": 0, "ended": 2, **changed}
    metadata.transfers.record(measured.pop("direction"), **measured)
    return metadata


def test_a_transfer_is_in_the_statistics_of_its_step() -> None:
    """What workers report before a drain is in it, flat, and the next drain has nothing."""
    connector = OffloadingConnectorScheduler()
    connector.update(report())
    connector.update(report().take())
    connector.update(None)
    stats = connector.get_kv_connector_stats()
    assert stats is not None
    reduced = stats.reduce()
    assert reduced["vllm:kv_offload_load_bytes"] == 200
    assert reduced["vllm:kv_offload_load_time"] == 4
    assert reduced["hisparse_offload_transfers_total:('load', 'success')"] == 2
    assert connector.get_kv_connector_stats() is None


def test_what_a_manager_skipped_passes_through() -> None:
    """A manager's counters reach the statistics as they are, each increment once."""
    connector = OffloadingConnectorScheduler(Manager())
    stats = connector.get_kv_connector_stats()
    assert stats is not None
    assert stats.reduce() == {"vllm:kv_offload_stores_skipped": 3}
    assert connector.get_kv_connector_stats() is None


def test_counters_are_growth_and_levels_are_told_each_time() -> None:
    """What a manager counts leaves once, and a level it tells is in every drain."""

    class Telling(Manager):
        def get_stats(self) -> KVConnectorStats:
            stats = OffloadingConnectorStats(super().get_stats())
            stats.set_gauge("used_blocks", 4)
            return stats

    connector = OffloadingConnectorScheduler(Telling())
    drained = [stats.reduce() for _ in range(3) if (stats := connector.get_kv_connector_stats())]
    assert drained == [{"vllm:kv_offload_stores_skipped": 3, "used_blocks": 4}, {"used_blocks": 4}, {"used_blocks": 4}]


def test_the_configuration_is_sent_once_and_again_on_demand() -> None:
    """The first drain carries the tiers; later ones don't until somebody new must hear, or a reset."""
    connector = OffloadingConnectorScheduler(Manager())
    told = []
    for step in range(6):
        if step == 2:
            connector.announce()
        if step == 4:
            connector.reset_cache()
        stats = connector.get_kv_connector_stats()
        told.append(stats is not None and INFO in stats.info())
    assert told == [True, False, True, False, True, False]


@pytest.mark.parametrize(("capacity_blocks", "shown"), [(16384, "16384"), (None, "")])
def test_an_unknown_capacity_is_empty_text(capacity_blocks: int | None, shown: str) -> None:
    """A label is the number, or empty while it is not known; never the text None."""
    stats = OffloadingConnectorScheduler(Manager(capacity_blocks)).get_kv_connector_stats()
    assert stats is not None
    assert stats.info() == {INFO: [{"tier": "cpu", "capacity_blocks": shown}, {"tier": "file"}]}


def test_a_broken_manager_is_counted_and_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """A manager that raises costs its own numbers; the workers' are there, and the log has one line for each call."""
    connector = OffloadingConnectorScheduler(Broken())
    for _ in range(3):
        connector.update(report())
        stats = connector.get_kv_connector_stats()
        assert stats is not None
        assert stats.reduce()["vllm:kv_offload_load_bytes"] == 100
        assert stats.errors["internal"] >= 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "get_stats of Broken raised ValueError: no statistics today" in caplog.text


def test_what_a_worker_could_not_measure_is_counted_at_the_front_end(registry: CollectorRegistry) -> None:
    """An error of a worker travels with its transfers and reaches the error counter."""
    connector = OffloadingConnectorScheduler()
    connector.update(report(size_bytes=-1).take())
    with TelemetryPipeline(registry=registry, catalogue=WITH_INFO) as pipeline:
        pipeline.publish({connector.name: connector.get_kv_connector_stats()})
        assert registry.get_sample_value(
            "hisparse_telemetry_errors_total", {"model_name": "", "engine": "0", "reason": "negative"}
        )


def test_configuration_alone_writes_no_log_line(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    """An info-only payload shows in Prometheus, is not cleared by later payloads, and the log stays silent."""
    caplog.set_level(logging.INFO)
    manager = Manager()
    manager.skipped = 0
    connector = OffloadingConnectorScheduler(manager)
    with TelemetryPipeline(registry=registry, catalogue=WITH_INFO) as pipeline:
        pipeline.publish({connector.name: connector.get_kv_connector_stats()})
        pipeline.flush()
        assert caplog.messages == []
        connector.update(report())
        pipeline.publish({connector.name: connector.get_kv_connector_stats()})
        labels = {"model_name": "", "engine": "0", "capacity_blocks": "16384", "tier": "cpu"}
        assert registry.get_sample_value(INFO, labels) == 1
        assert registry.get_sample_value(INFO, {**labels, "capacity_blocks": "", "tier": "file"}) == 1


def test_nothing_recorded_is_lost_at_reset_or_shutdown() -> None:
    """What was reported before a reset and a shutdown comes out after them."""
    connector = OffloadingConnectorScheduler()
    connector.update(report())
    connector.reset_cache()
    connector.update(report())
    connector.shutdown()
    connector.shutdown()
    stats = connector.get_kv_connector_stats()
    assert stats is not None
    assert stats.reduce()["vllm:kv_offload_load_bytes"] == 200


@pytest.mark.parametrize("data", [None, {}])
def test_nothing_builds_empty_statistics(data: Any) -> None:
    """None and an empty mapping build an empty container of the right kind."""
    stats = OffloadingConnectorScheduler.build_kv_connector_stats(data)
    assert isinstance(stats, OffloadingConnectorStats)
    assert stats.is_empty()


def test_a_handle_goes_on_after_a_drain() -> None:
    """A counter found once counts in every drain: nothing of it is lost, and nothing is counted twice."""
    connector = OffloadingConnectorScheduler()
    handle = connector.stats.counter("hisparse_offload_busy_seconds_total", ("load",))
    found = []
    for amount in (5, 10):
        handle.add(amount)
        stats = connector.get_kv_connector_stats()
        assert stats is not None
        found.append(stats.reduce()["hisparse_offload_busy_seconds_total:('load',)"])
    assert found == [5, 10]
    assert connector.get_kv_connector_stats() is None


def test_a_drain_says_what_was_skipped() -> None:
    """The sentence about what was wrong leaves with the count, for the warning."""
    connector = OffloadingConnectorScheduler()
    connector.update(report(size_bytes=-1))
    stats = connector.get_kv_connector_stats()
    assert stats is not None
    assert stats.errors == {"negative": 1}
    assert "size_bytes must be >= 0, got -1" in stats.examples["negative"]


def test_failures_are_the_sum_over_their_reasons_after_many_drains() -> None:
    """Ever new reasons from ever new workers make a bounded number of series, which add up to the failures."""
    connector, totals = OffloadingConnectorScheduler(), OffloadingConnectorStats()
    for number in range(200):
        connector.update(report(failure=f"errno {number}").take())
        totals.aggregate(connector.get_kv_connector_stats())
    series = totals.data["data"]
    reasons = series["hisparse_offload_failed_transfers_total"]
    assert len(reasons) == MAX_FAILURE_REASONS + 1
    assert sum(reasons.values()) == series["hisparse_offload_transfers_total"]["load", "failure"] == 200


def test_a_malformed_histogram_ends_no_step() -> None:
    """A worker that names one bucket many times costs its histogram."""
    connector = OffloadingConnectorScheduler()
    connector.update({"transfers": {"load": {"transfers": 1, "durations": [1.0] + [18, 2**53] * 2048}}})
    stats = connector.get_kv_connector_stats()
    assert stats is not None
    assert stats.reduce()["hisparse_offload_transfers_total:('load', 'success')"] == 1
    assert stats.to_dict()["telemetry_errors"] == {"bucket_mismatch": 1}


def test_a_configuration_is_asked_for_until_it_is_told() -> None:
    """A manager that raises at first, and then does not know yet, is asked again; then never more."""

    class Starting(Manager):
        answers: ClassVar = [ValueError("starting"), None]

        def config_info(self) -> Mapping[str, Any]:
            answer = self.answers.pop(0) if self.answers else super().config_info()
            if isinstance(answer, Exception):
                raise answer
            return answer

    connector = OffloadingConnectorScheduler(Starting())
    told = []
    for _ in range(4):
        stats = connector.get_kv_connector_stats()
        told.append((stats is not None and INFO in stats.info(), {} if stats is None else stats.errors))
    assert told == [(False, {"internal": 1}), (False, {}), (True, {}), (False, {})]


def test_labels_that_are_none_cost_their_own_gauge() -> None:
    """Of two info gauges the one whose labels are a number is left out and counted."""

    class Mixed(Manager):
        def config_info(self) -> Mapping[str, Any]:
            return {**super().config_info(), "another_info": 3}

    stats = OffloadingConnectorScheduler(Mixed()).get_kv_connector_stats()
    assert stats is not None
    assert list(stats.info()) == [INFO]
    assert stats.errors == {"wrong_type": 1}


def test_an_error_without_text_ends_no_step() -> None:
    """A manager's error is named by its class where its own text raises."""

    class Telling(Broken):
        def get_stats(self) -> None:
            raise UnreadableError

    stats = OffloadingConnectorScheduler(Telling()).get_kv_connector_stats()
    assert stats is not None
    assert stats.errors == {"internal": 2}


def test_the_first_failure_of_each_reason_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Direction and reason are named once, with where later ones are counted."""
    scheduler = OffloadingConnectorScheduler()
    with caplog.at_level(logging.WARNING, "hisparse"):
        for _ in range(3):
            metadata = OffloadingWorkerMetadata()
            for failed in ("load checksum", "load checksum", "store checksum", "load gone"):
                direction, reason = failed.split()
                metadata.transfers.record(direction, size_bytes=1, started=0.0, ended=1.0, failure=reason)
            scheduler.update(metadata)
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "a load of blocks failed (checksum, 2 in this step)",
        "a load of blocks failed (gone, 1 in this step)",
        "a store of blocks failed (checksum, 1 in this step)",
    ]
    assert "hisparse_offload_failed_transfers_total{direction='load',reason='checksum'}" in caplog.text
