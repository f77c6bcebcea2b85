"""The committed dashboard, as Grafana would read it."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

from hisparse.dashboards import dashboard_json, sections

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "generate_dashboards.py"
BOARD: dict[str, Any] = json.loads((ROOT / "dashboards" / "hisparse.json").read_text(encoding="utf-8"))
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def drawn() -> Iterator[dict[str, Any]]:
    """Yield the panels that are not headings."""
    return (panel for panel in BOARD["panels"] if panel["type"] != "row")


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    """Tell whether two places share a cell of the grid."""
    apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    return not apart and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]


def test_it_is_what_is_generated() -> None:
    """The committed file is what the generator writes, twice the same."""
    assert json.loads(dashboard_json()) == BOARD
    assert dashboard_json() == dashboard_json()


def test_every_panel_is_there_once() -> None:
    """Headings and panels are those of the sections, in order, with numbers of their own."""
    titles = [title for section in sections() for title in (section.title, *(p.title for p in section.panels))]
    assert [panel["title"] for panel in BOARD["panels"]] == titles
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(titles)
    assert all(panel["description"] for panel in drawn())


def test_nothing_is_null() -> None:
    """No value is null, which Grafana would take instead of its own default."""
    text = (ROOT / "dashboards" / "hisparse.json").read_text(encoding="utf-8")
    assert not re.search(r": null\b|\[null\b", text)


def test_no_panels_overlap() -> None:
    """No two panels share a place, and none leaves the 24 columns."""
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    assert not [pair for pair in combinations(places, 2) if overlap(*pair)]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in places)


def test_every_query_asks_the_chosen_source() -> None:
    """Each panel and each of its queries names the data source variable, and queries have letters of their own."""
    for panel in drawn():
        assert panel["datasource"] == SOURCE
        assert panel["targets"]
        assert all(target["datasource"] == SOURCE for target in panel["targets"])
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)


def test_every_variable_is_defined_before_it_is_used() -> None:
    """Queries use the five variables and Grafana's own interval; a variable's query uses those before it."""
    names = [variable["name"] for variable in BOARD["templating"]["list"]]
    assert names == ["datasource", "job", "instance", "model_name", "engine"]
    used = {name for panel in drawn() for target in panel["targets"] for name in re.findall(r"\$(\w+)", target["expr"])}
    assert used == {*names[1:], "__rate_interval"}
    for position, variable in enumerate(BOARD["templating"]["list"]):
        assert set(re.findall(r"\$(\w+)", variable["query"])) == set(names[1:position])


def test_ratios_are_shown_as_percent_of_one() -> None:
    """A panel in percent spans 0 to 1; a heat map has its unit on the axis and counts in its cells."""
    for panel in drawn():
        defaults = panel["fieldConfig"]["defaults"]
        assert (defaults.get("unit") == "percentunit") == ((defaults.get("min"), defaults.get("max")) == (0, 1))
        if panel["type"] == "heatmap":
            assert panel["options"]["yAxis"]["unit"] == "s"
            assert panel["options"]["calculate"] is False
            assert {target["format"] for target in panel["targets"]} == {"heatmap"}


def test_the_tool_notices_an_old_file(tmp_path: Path) -> None:
    """Checking passes right after writing, fails where a file is changed or missing, and writes nothing."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, TOOL, "--folder", tmp_path, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run().returncode == 0
    assert run("--check").returncode == 0
    (tmp_path / "hisparse.json").write_text("{}", encoding="utf-8")
    (tmp_path / "alerts.yml").unlink()
    done = run("--check")
    assert done.returncode == 1
    for name in ("hisparse.json", "alerts.yml"):
        assert f"{name} is out of date: run python tools/generate_dashboards.py" in done.stdout
    assert not (tmp_path / "alerts.yml").exists()
