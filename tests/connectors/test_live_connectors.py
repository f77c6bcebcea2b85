"""From the counters of connectors to what a real Prometheus stores."""

from collections.abc import Iterator
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from hisparse.connectors import (
    GroupCounterSource,
    HiSparseConnector,
    OffloadingConnectorScheduler,
    OffloadingWorkerMetadata,
)
from hisparse.hot import GroupCounters
from hisparse.telemetry import CATALOGUE, HiSparseConnectorStats, KVConnectorStats, TelemetryPipeline
from hisparse.telemetry import start_metrics_server as serve
from live_prometheus import LivePrometheus

HITS, MISSES, STEP_BYTES = 12, 4, 64


class Worker:
    """One worker: an index group of layers 0 and 1 that counts known steps, and its connector."""

    def __init__(self, rank: int | None = None) -> None:
        """Start at zero as `rank`."""
        self.counters = GroupCounters(requests=1, layers=2)
        source = GroupCounterSource([(0, 1)], [self.counters])
        self.connector = HiSparseConnector("worker", source=source, rank=rank)

    def step(self) -> KVConnectorStats | None:
        """Count one step and do what an engine does after it: ask for statistics."""
        self.counters.record_selection(np.zeros(1, np.int32), np.array([[HITS, MISSES, 0, 0]]), HITS + MISSES)
        self.counters.record_load(0, STEP_BYTES, 0.001)
        return self.connector.get_kv_connector_stats()


def publish(pipeline: TelemetryPipeline, stats: KVConnectorStats | None) -> None:
    """Publish statistics as they arrive from another process."""
    if stats is not None:
        plain = msgspec.msgpack.decode(msgspec.msgpack.encode(stats.to_dict()))
        pipeline.publish({"HiSparse": plain})


def expected(steps: int, *, ranks: int = 1) -> dict[str, float]:
    """Return what must be stored after `steps` steps that `ranks` ranks made alike."""
    return {
        "vllm:hisparse_cache_hits_total": HITS * steps,
        "vllm:hisparse_cache_misses_total": MISSES * steps,
        "vllm:hisparse_host_to_device_bytes_total": STEP_BYTES * steps * ranks,
        "hisparse_hot_selections_total,group=0,outcome=hit": HITS * steps,
        "hisparse_hot_selections_total,group=0,outcome=miss": MISSES * steps,
        "hisparse_hot_selections_total,group=0,outcome=resident": 0,
        "hisparse_hot_copied_bytes_total,direction=host_to_device,layer=0": STEP_BYTES * steps * ranks,
        "hisparse_hot_copied_bytes_total,direction=host_to_device,layer=1": 0,
        "hisparse_hot_gather_seconds_count": steps * ranks,
        "hisparse_hot_request_misses_rows_count": steps,
        "hisparse_hot_request_misses_rows_sum": MISSES * steps,
    }


@pytest.fixture
def pipeline(registry: CollectorRegistry, port: int) -> Iterator[TelemetryPipeline]:
    """Return a pipeline that is served on the scraped port."""
    with TelemetryPipeline(model_name="m", registry=registry) as running, serve(registry, port=port):
        yield running


def check_stored(prometheus: LivePrometheus, port: int, values: dict[str, float]) -> None:
    """Check that the next scrape stores `values`, and no telemetry error."""
    prometheus.wait_for_scrape(port)
    found = prometheus.stored(port)
    assert {key: found.get(key) for key in values} == values
    assert sum(value for key, value in found.items() if key.startswith("hisparse_telemetry_errors_total")) == 0


def test_a_worker_loses_nothing(prometheus: LivePrometheus, port: int, pipeline: TelemetryPipeline) -> None:
    """The first step is stored at once; after 1999 steps and a reset, and 2001 and a shutdown, all steps are."""
    worker = Worker()
    publish(pipeline, worker.step())
    check_stored(prometheus, port, expected(1))
    ends = (worker.connector.reset_cache, worker.connector.shutdown)
    for (before, steps), end in zip(pairwise((1, 1999, 2001)), ends, strict=True):
        for _ in range(steps - before):
            publish(pipeline, worker.step())
        end()
        publish(pipeline, worker.connector.get_kv_connector_stats())
        check_stored(prometheus, port, expected(steps))


@pytest.mark.parametrize("is_merged", [True, False], ids=["merged", "apart"])
def test_two_ranks_select_once_and_copy_twice(
    prometheus: LivePrometheus, port: int, pipeline: TelemetryPipeline, *, is_merged: bool
) -> None:
    """Ranks that resolve the same selections report them once and their bytes twice, merged or apart."""
    ranks = [Worker(rank) for rank in range(2)]
    spoken = [[worker.step() for worker in ranks] for _ in range(5)]
    for worker in ranks:
        worker.connector.flush()
    spoken.append([worker.connector.get_kv_connector_stats() for worker in ranks])
    for first, second in spoken:
        if is_merged and first is not None:
            publish(pipeline, first.aggregate(second))
        else:
            publish(pipeline, first)
            publish(pipeline, second)
    check_stored(prometheus, port, expected(5, ranks=2))


def test_levels_of_the_scheduler_join_the_counts(
    prometheus: LivePrometheus, port: int, pipeline: TelemetryPipeline
) -> None:
    """What the two sides say in one step is stored together."""
    worker, levels = Worker(), HiSparseConnectorStats()
    levels.record_host_usage(0.25, 3)
    levels.set_gauge("hisparse_host_used_bytes", 4096)
    counted = worker.step()
    assert counted is not None
    publish(pipeline, counted.aggregate(levels))
    own = {
        "vllm:hisparse_host_cache_usage_perc": 0.25,
        "vllm:hisparse_pending_page_transfers": 3,
        "hisparse_host_used_bytes": 4096,
    }
    check_stored(prometheus, port, expected(1) | own)


def test_offload_transfers_are_stored_under_new_and_old_names(
    prometheus: LivePrometheus, port: int, pipeline: TelemetryPipeline
) -> None:
    """Overlapping stores and a failed load arrive with bytes, times and reasons, under deprecated names too."""
    worker, scheduler = OffloadingWorkerMetadata(), OffloadingConnectorScheduler()
    for _ in range(4):
        worker.transfers.record("store", size_bytes=1000, submitted=9.5, started=10.0, ended=11.0)
    worker.transfers.record("load", size_bytes=4096, started=11.0, ended=11.5, failure="checksum")
    scheduler.update(worker.take())
    publish(pipeline, scheduler.get_kv_connector_stats())
    assert CATALOGUE["vllm:kv_offload_total_bytes"].deprecation is not None
    values = {
        "vllm:kv_offload_store_bytes_total": 4000,
        "vllm:kv_offload_store_time_total": 4,
        "vllm:kv_offload_load_bytes_total": 0,
        "vllm:kv_offload_store_size_count": 4,
        "vllm:kv_offload_total_bytes_total,transfer_type=GPU_to_CPU": 4000,
        "vllm:kv_offload_total_bytes_total,transfer_type=CPU_to_GPU": 0,
        "hisparse_offload_busy_seconds_total,direction=store": 1,
        "hisparse_offload_transfers_total,direction=store,outcome=success": 4,
        "hisparse_offload_transfers_total,direction=load,outcome=failure": 1,
        "hisparse_offload_failed_transfers_total,direction=load,reason=checksum": 1,
    }
    check_stored(prometheus, port, values)
