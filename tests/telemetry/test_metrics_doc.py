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


def test_every_row_states_how_the_metric_merges(tool: dict[str, Any]) -> None:
    """Each metric's row has its kind, unit, rule across ranks and across processes, deprecation and option."""
    page = tool["render"](CATALOGUE)
    rows = {cells[1].strip("` "): [cell.strip() for cell in cells] for cells in map(cells_of, page.splitlines())}
    for name, metadata in CATALOGUE.items():
        _, _, kind, unit, _, ranks, processes, _, deprecated, meaning, _ = rows[tool["exposed_name"](name, metadata)]
        assert (kind, unit, ranks) == (metadata.kind, metadata.unit, metadata.across_ranks)
        assert processes == getattr(metadata, "multiprocess_mode", "sum")
        assert deprecated == (f"since {metadata.deprecation.since}" if metadata.deprecation else "")
        assert f"`{metadata.gate}`" in meaning if metadata.gate else "option" not in meaning


def cells_of(line: str) -> list[str]:
    """Return the cells of a row of the tables of metrics; of any other line, one nobody asks for."""
    cells = line.split("|")
    return cells if len(cells) == 11 else ["", line]


def test_every_old_series_names_what_it_is_computed_from(tool: dict[str, Any]) -> None:
    """The table of deprecated names has a row for each replacement of each, with a name that exists."""
    page = tool["render"](CATALOGUE)
    for metadata in CATALOGUE.values():
        for (value,), source in metadata.deprecation.sources.items() if metadata.deprecation else ():
            exposed = tool["exposed_name"](source, CATALOGUE[source])
            assert any(value in line and line.endswith(f"| `{exposed}` |") for line in page.splitlines())
