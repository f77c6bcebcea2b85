"""The page about metrics."""

import runpy
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from hisparse.telemetry import CATALOGUE, TelemetryPipeline

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    """Return the generator's functions."""
    return runpy.run_path(str(ROOT / "tools" / "generate_metrics_doc.py"))


def test_the_page_is_what_the_catalogue_says(tool: dict[str, Any]) -> None:
    """The committed page equals the generated one."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == tool["render"](CATALOGUE), "run python tools/generate_metrics_doc.py"
    assert tool["main"](["--check"]) == 0


def test_the_page_names_what_is_exported(tool: dict[str, Any], registry: CollectorRegistry) -> None:
    """Every family of a scrape, all options on, is on the page, and every metric of the page is a family."""
    catalogue = CATALOGUE.exported("0.1.0", gates=frozenset(["kv_cache_metrics"]))
    with TelemetryPipeline(registry=registry, catalogue=catalogue):
        lines = generate_latest(registry).decode().splitlines()
    exposed = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert exposed == {tool["exposed_name"](name, metadata) for name, metadata in CATALOGUE.items()}
    page = tool["render"](CATALOGUE)
    assert [name for name in exposed if f"| `{name}` |" not in page] == []
