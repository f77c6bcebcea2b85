"""Engines that stand still: levels fall to the truth, and nothing is said twice."""

import logging
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from hisparse.telemetry import HiSparseKVConnectorStats, OffloadingConnectorStats, TelemetryPipeline, merge_step

USAGE = "vllm:hisparse_host_cache_usage_perc"
PENDING = "vllm:hisparse_pending_page_transfers"
HITS = "vllm:hisparse_cache_hits_total"
LABELS = {"model_name": "m", "engine": "0"}


@dataclass
class Producer:
    """The scheduler side of a connector: tells its levels at every call, also where no step was scheduled."""

    capacity_pages: int
    used_pages: int = 0
    pending: int = 0
    new_hits: int = 0

    def get_kv_connector_stats(self) -> HiSparseKVConnectorStats:
        """Return what happened since the last call, and the levels as they are."""
        stats = HiSparseKVConnectorStats(rank=0)
        if self.new_hits:
            stats.record_snapshot(self.new_hits, 0, 0)
            self.new_hits = 0
        stats.record_host_usage(self.used_pages / self.capacity_pages, self.pending)
        return stats

    def abort_all(self) -> None:
        """End every request; no forward step follows."""
        self.used_pages = self.pending = 0


def test_levels_fall_to_the_truth_without_a_forward_step(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """After everything is aborted the next idle tick shows zeros once, and then the log is silent."""
    caplog.set_level(logging.INFO, logger="hisparse")
    producer = Producer(capacity_pages=7, used_pages=6, pending=2, new_hits=12)
    pipeline = TelemetryPipeline(model_name="m", registry=registry)
    pipeline.publish({"HiSparse": producer.get_kv_connector_stats()})
    pipeline.flush()
    assert registry.get_sample_value(USAGE, LABELS) == 6 / 7
    producer.abort_all()
    for _ in range(3):
        step = merge_step(None, producer.get_kv_connector_stats())
        assert step is not None
        pipeline.publish({"HiSparse": step.to_dict()})
        pipeline.publish({})
        pipeline.flush()
    assert registry.get_sample_value(USAGE, LABELS) == 0
    assert registry.get_sample_value(PENDING, LABELS) == 0
    assert len(caplog.messages) == 2
    assert "cache usage %=0.0" in caplog.messages[1]
    assert "85.7" not in caplog.messages[1]


def test_idle_ticks_of_two_collectors_add_nothing(registry: CollectorRegistry) -> None:
    """Two collectors that ask one producer with five pending hits export five, and idle intervals keep them."""
    producer = Producer(capacity_pages=7, new_hits=5)
    pipelines = [TelemetryPipeline(model_name="m", registry=registry) for _ in range(2)]
    for _ in range(5):
        for pipeline in pipelines:
            pipeline.publish({"HiSparse": producer.get_kv_connector_stats()})
            pipeline.publish({})
    assert registry.get_sample_value(HITS, LABELS) == 5


def test_levels_repeated_at_every_step_keep_the_line_silent(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """A thousand steps that repeat the same levels write the first line and no other."""
    caplog.set_level(logging.INFO, logger="hisparse")
    producer = Producer(capacity_pages=7, used_pages=3)
    pipeline = TelemetryPipeline(model_name="m", registry=registry)
    for step in range(1000):
        pipeline.publish({"HiSparse": producer.get_kv_connector_stats()})
        if step % 100 == 0:
            pipeline.flush()
    assert len(caplog.messages) == 1


def test_info_alone_is_carried_and_writes_no_line(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """A step of nothing but configuration is not empty, survives the merge, is exported, and writes no line."""
    caplog.set_level(logging.INFO, logger="hisparse")
    stats = OffloadingConnectorStats()
    stats.set_info("hisparse_hot_config_info", {"top_k": 128})
    step = merge_step(None, stats)
    assert step is not None
    assert step.reduce() == {}
    pipeline = TelemetryPipeline(model_name="m", registry=registry)
    pipeline.publish({"rows": step})
    pipeline.publish({"rows": {"types": {}, "data": {}}})
    pipeline.flush()
    assert caplog.messages == []
    infos = [s for family in registry.collect() for s in family.samples if s.name == "hisparse_hot_config_info"]
    assert [(sample.labels["top_k"], sample.value) for sample in infos] == [("128", 1)]


def test_a_lasting_fault_is_named_again_but_seldom(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """A reason that keeps occurring is named once in ten minutes; every occurrence is counted."""
    seconds = [0.0]
    pipeline = TelemetryPipeline(
        model_name="m", registry=registry, clock=lambda: seconds[0], log_interval_seconds=10**6
    )
    for _ in range(121):
        pipeline.publish({"HiSparse": {"cache_hits": [-1]}})
        seconds[0] += 10
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 3
    errors = {**LABELS, "reason": "negative"}
    assert registry.get_sample_value("hisparse_telemetry_errors_total", errors) == 121
