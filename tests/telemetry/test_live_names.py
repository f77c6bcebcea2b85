"""The names under which a real Prometheus stores what is exported, and what promtool says about them."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from full_producer import FullProducer
from hisparse.telemetry import CATALOGUE, TelemetryPipeline, start_metrics_server
from live_prometheus import DOCUMENTED, LivePrometheus, documented_scrape

HITS = "hisparse_cache_hits_total"


@pytest.fixture
def pipeline(registry: CollectorRegistry) -> Iterator[TelemetryPipeline]:
    """Return a pipeline that exports the whole catalogue, with a value in every series."""
    with TelemetryPipeline(model_name="m", registry=registry, catalogue=CATALOGUE) as running:
        FullProducer(running, CATALOGUE).publish()
        yield running


def stored_name(name: str) -> str:
    """Return a name under which samples of the metric are stored."""
    suffix = {"counter": "_total", "gauge": "", "histogram": "_count"}[CATALOGUE[name].kind]
    return name.removesuffix("_total") + suffix


@contextmanager
def openmetrics_endpoint(registry: CollectorRegistry, port: int) -> Iterator[None]:
    """Serve as prometheus_client does: in the format that Prometheus asks for, which is OpenMetrics."""
    server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("options", [(), ("--extended",)])
def test_promtool_finds_nothing_but_the_operator_names(
    pipeline: TelemetryPipeline, scrape: Callable[[str], str], promtool: Path, options: tuple[str, ...]
) -> None:
    """Of the whole exposition promtool only reports the colons of names that operators know."""
    with start_metrics_server(pipeline.registry) as server:
        text = scrape(server.url)
    done = subprocess.run(
        [promtool, "check", "metrics", *options], input=text, capture_output=True, text=True, check=False
    )
    found = set((done.stdout + done.stderr).splitlines())
    colon = re.compile(r"vllm:\S+ metric names should not contain ':'")
    with_colon = {name.removesuffix("_total") for name in CATALOGUE if name.startswith("vllm:")}
    assert {line for line in found if line.startswith("vllm:") and not colon.fullmatch(line)} == set()
    reported = {line.split()[0].removesuffix("_total") for line in found if colon.fullmatch(line)}
    assert reported == with_colon
    assert not any(line.startswith("hisparse_") and " should " in line for line in found)
    assert done.returncode == 3


def test_text_keeps_the_colon(prometheus: LivePrometheus, port: int, pipeline: TelemetryPipeline) -> None:
    """Behind this package's endpoint every operator name is stored with its colon, and nothing under another prefix."""
    with start_metrics_server(pipeline.registry, port=port):
        prometheus.wait_for_scrape(port)
        stored = prometheus.stored(port)
    names = {key.split(",")[0] for key in stored}
    assert {stored_name(name) for name in CATALOGUE} <= names
    assert [name for name in names if not name.startswith(("vllm:", "hisparse_", "up", "scrape_"))] == []
    assert prometheus.query(f'{{__name__=~"vllm.{HITS}",instance="127.0.0.1:{port}"}}')


def test_the_selector_reads_both_spellings(prometheus: LivePrometheus, port: int, pipeline: TelemetryPipeline) -> None:
    """Behind an OpenMetrics endpoint the name may lose its colon; the documented selector finds it either way."""
    with openmetrics_endpoint(pipeline.registry, port):
        prometheus.wait_for_scrape(port)
        names = {key.split(",")[0] for key in prometheus.stored(port)}
        assert len(names & {f"vllm_{HITS}", f"vllm:{HITS}"}) == 1
        assert prometheus.value(f'{{__name__=~"vllm.{HITS}",instance="127.0.0.1:{port}"}}') == 1
    assert f'{{__name__=~"vllm.{HITS}"}}' in DOCUMENTED.read_text(encoding="utf-8")


def test_the_documented_scrape_gives_the_colon_back(
    prometheus: LivePrometheus, pipeline: TelemetryPipeline, promtool: Path, tmp_path: Path
) -> None:
    """Scraped as documented, an OpenMetrics endpoint is stored under the names with a colon, and only those."""
    port = prometheus.documented_port
    with openmetrics_endpoint(pipeline.registry, port):
        prometheus.wait_for_scrape(port)
        names = {key.split(",")[0] for key in prometheus.stored(port)}
    assert f"vllm:{HITS}" in names
    assert "vllm:kv_offload_load_size_bucket" in names
    assert [name for name in names if name.startswith("vllm_")] == []
    config = tmp_path / "prometheus.yml"
    config.write_text(json.dumps({"scrape_configs": [documented_scrape()]}), encoding="utf-8")
    subprocess.run([promtool, "check", "config", config], check=True, capture_output=True)
