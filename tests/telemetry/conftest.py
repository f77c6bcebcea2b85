"""What the telemetry tests share: a registry of their own and a reader of an endpoint."""

import os
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hisparse.telemetry.multiprocess import VARIABLE, shared_registry

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def registry() -> CollectorRegistry:
    """Return an empty registry, so that no test sees another one's series."""
    return CollectorRegistry()


@pytest.fixture
def parse() -> Callable[[str], Series]:
    """Return a reader of exposition text that refuses a series or a family given twice."""

    def read(text: str) -> Series:
        families = list(text_string_to_metric_families(text))
        assert len({family.name for family in families}) == len(families)
        samples = [sample for family in families for sample in family.samples]
        series = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
        assert len(series) == len(samples)
        return series

    return read


@pytest.fixture
def scrape() -> Callable[[str], str]:
    """Return a client that gets an address as Prometheus 2.42 does, preferring OpenMetrics."""
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"

    def get(url: str) -> str:
        request = urllib.request.Request(url, headers={"Accept": accept})  # noqa: S310 - a loopback address
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 - a loopback address
            body: bytes = response.read()
            return body.decode()

    return get


PRELUDE = """
import logging, math, os, sys
from prometheus_client import CollectorRegistry
from hisparse.telemetry import *
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")

def step(pipeline, engine, hits, usage, seconds=(), **info):
    stats, rows = HiSparseKVConnectorStats(), OffloadingConnectorStats()
    stats.record_snapshot(hits, 1, 64)
    stats.record_host_usage(usage, 0)
    rows.increase_counter("hisparse_hot_selections_total", hits, ("hit", 3))
    rows.increase_counter("vllm:kv_offload_load_bytes", 100)
    rows.observe_histogram("hisparse_hot_gather_seconds", list(seconds))
    if info:
        rows.set_info("hisparse_hot_config_info", info)
    pipeline.publish({"HiSparse": stats, "rows": rows}, engine=engine)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory that the environment names."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Callable[..., str]:
    """Return a runner of a script in a process of its own; it returns what was printed."""
    assert folder.is_dir()

    def start(script: str, **environment: str) -> str:
        code = PRELUDE + textwrap.dedent(script)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return start


@pytest.fixture
def shared(parse: Callable[[str], Series]) -> Callable[[], Series]:
    """Return a reader of what all processes wrote."""

    def read() -> Series:
        registry = shared_registry()
        assert registry is not None
        return parse(generate_latest(registry).decode())

    return read
