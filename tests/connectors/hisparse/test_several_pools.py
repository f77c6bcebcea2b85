"""Pools of several caches: what they show together, and how to see each."""

from dataclasses import dataclass

from faking import Clock, Device
from prometheus_client import CollectorRegistry

from hisparse.connectors import HiSparseConnector, HostLevels, MultiConnector
from hisparse.telemetry import CATALOGUE, TelemetryPipeline, merge_step

USED = "hisparse_host_used_bytes"
HITS = "vllm:hisparse_cache_hits_total"


@dataclass
class Pool:
    """A pool with some pages in use."""

    used: int

    def levels(self) -> HostLevels:
        return HostLevels(pages=8, used_pages=self.used, page_bytes=64)


def test_children_of_their_own_names_combine_levels() -> None:
    """Two pools that are children of one connector use the bytes of both, under names that tell them apart."""
    sides = [HiSparseConnector("scheduler", levels=Pool(used), clock=Clock(), name=f"Pool {used}") for used in (1, 2)]
    multi = MultiConnector(sides)
    registry = CollectorRegistry()
    with TelemetryPipeline(registry=registry, catalogue=CATALOGUE.merged(multi.metrics), build=multi.build) as pipeline:
        stats = multi.get_kv_connector_stats()
        assert stats is not None
        assert list(stats.children) == ["Pool 1", "Pool 2"]
        pipeline.publish({multi.name: stats.to_dict()})
        assert registry.get_sample_value(USED, {"model_name": "", "engine": "0"}) == 3 * 64


def test_a_model_name_for_each_shows_each() -> None:
    """On one registry two pipelines of different names keep counters and levels of two caches apart."""
    registry = CollectorRegistry()
    pipelines = {name: TelemetryPipeline(model_name=name, registry=registry) for name in ("first", "second")}
    for number, (name, pipeline) in enumerate(pipelines.items(), start=1):
        device = Device()
        device.count(number, 0)
        worker = HiSparseConnector("worker", source=device, clock=Clock())
        levels = HiSparseConnector("scheduler", levels=Pool(number), clock=Clock())
        step = merge_step(worker.get_kv_connector_stats(), levels.get_kv_connector_stats())
        pipeline.publish({worker.name: step})
        labels = {"model_name": name, "engine": "0"}
        assert registry.get_sample_value(HITS, labels) == number
        assert registry.get_sample_value(USED, labels) == 64 * number
    assert registry.get_sample_value(USED, {"model_name": "first", "engine": "0"}) == 64
    for pipeline in pipelines.values():
        pipeline.close()
