"""From counters in two worker processes to the log line and the scrape of a front end."""

import logging
import re
import urllib.request
from collections.abc import Iterator

import pytest
from engine import HITS, MISSES, PAGES, RANKS, STEP_BYTES, USED_PAGES, Engine
from prometheus_client import CollectorRegistry

from hisparse.telemetry import TelemetryPipeline, start_metrics_server


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Return an engine of three processes."""
    with Engine() as running:
        yield running


def scrape(url: str, name: str) -> float:
    """Return the value of the one series that begins with `name`."""
    with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - a loopback address
        text = response.read().decode()
    found = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, flags=re.MULTILINE)
    assert len(found) == 1, found
    return float(found[0])


def test_ranks_that_select_alike_count_selections_once_and_bytes_each(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """After 1, 1999 and 2001 steps and the end, over a reset, scrape and log line have the exact totals."""
    registry = CollectorRegistry()
    steps = 0
    with (
        TelemetryPipeline(registry=registry, log_interval_seconds=3600) as pipeline,
        start_metrics_server(registry) as server,
    ):
        for target, ending in ((1, "step"), (1999, "reset"), (2001, "shutdown")):
            while steps < target:
                pipeline.publish({"HiSparse": engine.say("step")})
                steps += 1
            if ending != "step":
                pipeline.publish({"HiSparse": engine.say(ending)})
            assert scrape(server.url, "vllm:hisparse_cache_hits_total") == HITS * steps
            assert scrape(server.url, "vllm:hisparse_cache_misses_total") == MISSES * steps
            assert scrape(server.url, "vllm:hisparse_host_to_device_bytes_total") == STEP_BYTES * steps * RANKS
            assert scrape(server.url, "hisparse_hot_gather_seconds_count") == steps * RANKS
            assert scrape(server.url, "hisparse_hot_request_misses_rows_count") == steps
            assert scrape(server.url, "vllm:hisparse_host_cache_usage_perc") == USED_PAGES / PAGES
        with caplog.at_level(logging.INFO, logger="hisparse"):
            pipeline.flush()
        said = dict(item.split("=", 1) for item in caplog.text.split("metrics: ", 1)[1].strip().split(", "))
        assert said["HiSparse hot-buffer hits"] == str(HITS * steps)
        assert said["HiSparse hot-buffer misses"] == str(MISSES * steps)
        assert said["HiSparse host-to-device bytes"] == str(STEP_BYTES * steps * RANKS)
        assert said["HiSparse hot-buffer hit ratio"] == "0.750"
        assert said["HiSparse host KV cache usage %"] == "25.0"
    assert "skipped" not in caplog.text
