"""The interval log line."""

import logging

import pytest
from prometheus_client import CollectorRegistry

from hisparse.telemetry import (
    CATALOGUE,
    Catalogue,
    GaugeMetadata,
    HiSparseKVConnectorStats,
    HistogramMetadata,
    OffloadingConnectorStats,
    TelemetryPipeline,
)


class Clock:
    """Seconds that move when told to."""

    def __init__(self) -> None:
        """Start at 100 seconds."""
        self.seconds = 100.0

    def __call__(self) -> float:
        """Return the present second."""
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands still."""
    return Clock()


@pytest.fixture
def pipeline(registry: CollectorRegistry, clock: Clock, caplog: pytest.LogCaptureFixture) -> TelemetryPipeline:
    """Return a pipeline of one engine that logs every ten seconds of `clock`."""
    caplog.set_level(logging.INFO, logger="hisparse")
    return TelemetryPipeline(model_name="m", registry=registry, clock=clock)


def snapshot(hits: int, misses: int, moved_bytes: int) -> dict[str, HiSparseKVConnectorStats]:
    """Return a payload of one snapshot."""
    stats = HiSparseKVConnectorStats()
    stats.record_snapshot(hits, misses, moved_bytes)
    return {"HiSparse": stats}


def usage(used: float, pending: int) -> dict[str, HiSparseKVConnectorStats]:
    """Return a payload of levels."""
    stats = HiSparseKVConnectorStats()
    stats.record_host_usage(used, pending)
    return {"HiSparse": stats}


def test_the_line_has_sums_ratios_and_rates(
    pipeline: TelemetryPipeline, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The line says how much, which share hit, and how fast bytes moved over the interval."""
    pipeline.publish(snapshot(8, 4, 0))
    clock.seconds += 10
    pipeline.publish(snapshot(4, 0, 5 * 2**30))
    items = (
        "HiSparse hot-buffer hits=12",
        "HiSparse hot-buffer misses=4",
        "HiSparse hot-buffer hit ratio=0.750",
        "HiSparse host-to-device bytes=5368709120",
        "HiSparse host-to-device GiB=5",
        "HiSparse host-to-device GiB/s=0.5",
    )
    assert caplog.messages == [f"KV Transfer metrics: {', '.join(items)}"]


def test_idle_intervals_are_silent(pipeline: TelemetryPipeline, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """A hundred idle intervals, levels repeated, write no line; one event writes one."""
    pipeline.publish(usage(0.0, 0))
    pipeline.flush()
    caplog.clear()
    for _ in range(100):
        clock.seconds += 10
        pipeline.publish({})
        pipeline.publish(usage(0.0, 0))
    assert caplog.messages == []
    clock.seconds += 10
    pipeline.publish(snapshot(1, 0, 0))
    assert len(caplog.messages) == 1


def test_a_line_repeats_nothing_of_the_one_before(
    pipeline: TelemetryPipeline, caplog: pytest.LogCaptureFixture
) -> None:
    """Each line counts its own interval only."""
    for hits in (5, 3):
        pipeline.publish(snapshot(hits, 0, 0))
        pipeline.flush()
    assert [line.split(", ")[0] for line in caplog.messages] == [
        "KV Transfer metrics: HiSparse hot-buffer hits=5",
        "KV Transfer metrics: HiSparse hot-buffer hits=3",
    ]


def test_levels_fall_to_the_truth_once(pipeline: TelemetryPipeline, caplog: pytest.LogCaptureFixture) -> None:
    """After everything ended one line shows zeros, and then there is silence."""
    pipeline.publish(usage(0.904, 3))
    pipeline.flush()
    for _ in range(3):
        pipeline.publish(usage(0.0, 0))
        pipeline.flush()
    assert caplog.messages == [
        "KV Transfer metrics: HiSparse host KV cache usage %=90.4, HiSparse pending page transfers=3",
        "KV Transfer metrics: HiSparse host KV cache usage %=0.0, HiSparse pending page transfers=0",
    ]


def test_a_ratio_over_engines_is_a_ratio_of_sums(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    """Hits of 10 in 20 and 20 in 20 are 75 %, and the line says how many engines it covers."""
    caplog.set_level(logging.INFO, logger="hisparse")
    with TelemetryPipeline(model_name="m", engines=(0, 1), registry=registry) as pipeline:
        pipeline.publish(snapshot(10, 10, 0), engine=0)
        pipeline.publish(snapshot(20, 0, 0), engine=1)
    assert "hits=30, HiSparse hot-buffer misses=10, HiSparse hot-buffer hit ratio=0.750" in caplog.messages[0]
    assert caplog.messages[0].endswith("engines=2")


def test_levels_of_engines_combine_by_their_rule(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    """Pools of two engines add up in bytes; their usage is that of the fuller one."""
    caplog.set_level(logging.INFO, logger="hisparse")
    with TelemetryPipeline(model_name="m", engines=(0, 1), registry=registry) as pipeline:
        for engine, used in enumerate((0.75, 0.25)):
            stats = OffloadingConnectorStats()
            stats.set_gauge("hisparse_host_used_bytes", 2**30)
            pipeline.publish({**usage(used, 0), "rows": stats}, engine=engine)
    assert "HiSparse host KV cache usage %=75.0" in caplog.messages[0]
    assert "HiSparse host pool used GiB=2" in caplog.messages[0]


def test_info_alone_writes_no_line(pipeline: TelemetryPipeline, caplog: pytest.LogCaptureFixture) -> None:
    """A payload that only carries configuration is not worth a line."""
    stats = OffloadingConnectorStats()
    stats.set_info("hisparse_hot_config_info", {"top_k": 128})
    pipeline.publish({"rows": stats})
    pipeline.flush()
    assert caplog.messages == []


def test_histograms_show_count_and_mean(pipeline: TelemetryPipeline, caplog: pytest.LogCaptureFixture) -> None:
    """A distribution is shown by the interval's count and mean, in its unit."""
    for seconds in ([4.0], [0.25, 0.5]):
        stats = OffloadingConnectorStats()
        stats.observe_histogram("hisparse_hot_gather_seconds", seconds)
        pipeline.publish({"rows": stats})
        pipeline.flush()
    assert caplog.messages[1] == ("KV Transfer metrics: HiSparse gather count=2, HiSparse gather mean seconds=0.375")


def test_skipped_items_reach_the_line(pipeline: TelemetryPipeline, caplog: pytest.LogCaptureFixture) -> None:
    """The line counts skipped items by reason."""
    pipeline.publish({"HiSparse": {"cache_hits": [-1, -2]}})
    pipeline.flush()
    assert caplog.messages[-1] == "KV Transfer metrics: telemetry errors{reason=negative}=2"


def test_a_lowest_level_is_the_lowest_of_all_engines(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """A level whose worst is the lowest shows the lowest, whichever engine spoke last."""
    caplog.set_level(logging.INFO, logger="hisparse")
    mine = CATALOGUE.merged({"mine_health_ratio": GaugeMetadata("Health.", unit="ratio", across_ranks="min")})
    with TelemetryPipeline(engines=(0, 1, 2), registry=registry, catalogue=mine) as pipeline:
        for engine, level in enumerate((0.5, 0.25, 0.75)):
            stats = OffloadingConnectorStats()
            stats.set_gauge("mine_health_ratio", level)
            pipeline.publish({"mine": stats}, engine=engine)
    assert caplog.messages == ["KV Transfer metrics: mine_health_ratio=0.25, engines=3"]


def test_small_levels_and_unitless_means_are_readable(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """A level below 1 MiB is told in bytes, none at all as 0 GiB, and a mean without a unit by its name alone."""
    caplog.set_level(logging.INFO, logger="hisparse")
    mine = Catalogue({"tape_seek_steps": HistogramMetadata("Steps.", buckets=(1, 10), log="tape seek")})
    with TelemetryPipeline(registry=registry, catalogue=CATALOGUE.merged(mine)) as pipeline:
        for level in (400, 2**20, 0):
            stats = OffloadingConnectorStats(catalogue=CATALOGUE.merged(mine))
            stats.set_gauge("hisparse_host_used_bytes", level)
            stats.observe_histogram("tape_seek_steps", [1.8, 6])
            pipeline.publish({"tape": stats})
            pipeline.flush()
    assert "HiSparse host pool used bytes=400," in caplog.messages[0]
    assert "HiSparse host pool used GiB=0.0009766," in caplog.messages[1]
    assert "HiSparse host pool used GiB=0," in caplog.messages[2]
    assert all(line.endswith("tape seek count=2, tape seek mean=3.9") for line in caplog.messages)
