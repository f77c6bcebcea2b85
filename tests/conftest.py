"""What tests of several packages share: a real Prometheus."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from live_prometheus import LivePrometheus

TOOL = Path(__file__).resolve().parents[1] / "tools" / "get_prometheus.py"


@pytest.fixture(scope="session")
def prometheus_programs() -> tuple[Path, Path]:
    """Return the programs prometheus and promtool; fail with how to get them where they are missing."""
    done = subprocess.run([sys.executable, TOOL, "--find"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(done.stderr.strip(), pytrace=False)
    server, tool = map(Path, done.stdout.split("\n")[:2])
    return server, tool


@pytest.fixture(scope="session")
def promtool(prometheus_programs: tuple[Path, Path]) -> Path:
    """Return the program that checks metrics and rules."""
    return prometheus_programs[1]


@pytest.fixture(scope="session")
def prometheus(
    prometheus_programs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LivePrometheus]:
    """Return one running server for all tests; each test takes a port of its own."""
    with LivePrometheus(prometheus_programs[0], tmp_path_factory.mktemp("prometheus")) as running:
        yield running


@pytest.fixture
def port(prometheus: LivePrometheus) -> int:
    """Return a port that Prometheus scrapes."""
    return prometheus.take_port()
