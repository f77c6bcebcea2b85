"""The documentation, held to the code: the public is described, the shown runs, the linked exists."""

import dataclasses
import importlib
import inspect
import logging
import pkgutil
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import hisparse
from hisparse.telemetry import CounterMetadata, GaugeMetadata, HistogramMetadata, OffloadingConnectorStats
from hisparse.telemetry.metadata import UNITS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
PROSE = sorted([*PAGES, *ROOT.glob("*.md"), *(ROOT / "changelog.d").glob("*.md")])
# Packages whose callables are made by users: each parameter is a setting.
MADE_FOR_USERS = {"Enabled", "RequestPages"}  # handed out by calls; nobody constructs one
USER_PACKAGES = ("hisparse.host", "hisparse.integrations.transformers", "hisparse.kernels")
FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def page_name(path: Path) -> str:
    """Return a page's path from the root of the tree."""
    return str(path.relative_to(ROOT))


@cache
def code_on_pages() -> str:
    """Return everything the pages show as code: fenced blocks and spans."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    fenced = [found["text"] for found in FENCE.finditer(text)]
    return "\n".join([*fenced, *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))])


def missing(names: set[str]) -> list[str]:
    """Return the names that no page shows as code."""
    return sorted(name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", code_on_pages()))


def packages() -> list[str]:
    """Return the dotted names of the packages under ``hisparse``."""
    found = pkgutil.walk_packages(hisparse.__path__, "hisparse.")
    return ["hisparse.errors", *(module.name for module in found if module.ispkg)]


def public(name: str) -> dict[str, Any]:
    """Return what a package lists in ``__all__``, by name."""
    module = importlib.import_module(name)
    return {key: getattr(module, key) for key in getattr(module, "__all__", ())}


@pytest.mark.parametrize("package", packages())
def test_every_public_name_is_documented(package: str) -> None:
    """Each name of each ``__all__`` appears as code on a page."""
    assert missing(set(public(package))) == []


def test_every_setting_is_documented() -> None:
    """Each field of the settings, and each parameter of what users call, appears as code on a page."""
    settings = {
        field.name
        for value in public("hisparse.config").values()
        if dataclasses.is_dataclass(value)
        for field in dataclasses.fields(value)
    }
    for package in USER_PACKAGES:
        for name, value in public(package).items():
            if name not in MADE_FOR_USERS and (inspect.isclass(value) or inspect.isfunction(value)):
                settings |= inspect.signature(value).parameters.keys()
    assert settings - {"args", "kwargs"}
    assert missing(settings - {"args", "kwargs", "self"}) == []


def test_every_argument_of_a_metric_is_documented() -> None:
    """Each field of the metadata, each unit and each call that records has a row on the page for authors."""
    page = (ROOT / "docs" / "recording.md").read_text(encoding="utf-8")
    kinds = (CounterMetadata, GaugeMetadata, HistogramMetadata)
    fields = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert [name for name in fields if f"\n| `{name}` |" not in page] == []
    assert [unit for unit in UNITS if f"`{unit}`" not in page] == []
    functions = inspect.getmembers(OffloadingConnectorStats, inspect.isfunction)
    calls = {name for name, call in functions if "labelvalues" in inspect.signature(call).parameters} | {"set_info"}
    assert [name for name in calls if name[0] != "_" and f"\n| `{name}(" not in page] == []


# -------------------------------------------------------------- command line


def group() -> Any:
    """Return the command line as the group of its commands."""
    return get_command(importlib.import_module("hisparse.cli").app)


def commands() -> dict[str, Any]:
    """Return the commands of the command line by name."""
    return dict(group().commands)


def run_commands() -> set[str]:
    """Return the commands that the run script's help lists."""
    usage = (ROOT / "run").read_text(encoding="utf-8").split("END", 2)[1]
    return set(re.findall(r"^  ([a-z]+)  ", usage, flags=re.MULTILINE))


def test_every_command_and_option_is_documented() -> None:
    """Each command, and each option of it, appears as code on a page."""
    found = commands()
    options = {name for command in (group(), *found.values()) for param in command.params for name in param.opts}
    long_options = {name for name in options if name.startswith("--")} - {"--help"}
    assert missing({f"hisparse {name}" for name in found} | long_options) == []
    assert missing({f"./run {name}" for name in run_commands()}) == []


def benchmarks() -> set[str]:
    """Return the names of the benchmarks."""
    return {path.stem.removeprefix("bench_") for path in (ROOT / "benchmarks").glob("bench_*.py")}


def test_every_benchmark_is_documented() -> None:
    """Each benchmark has a row in the table of the page about them, and each row a benchmark."""
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)) == benchmarks()


def shown_commands() -> Iterator[tuple[str, list[str]]]:
    """Yield each command line shown in a console block, with its page."""
    for path in PAGES:
        for block in FENCE.finditer(path.read_text(encoding="utf-8")):
            if block["language"] == "console":
                joined = block["text"].replace("\\\n", " ")
                for line in re.findall(r"^\$ (.*)$", joined, flags=re.MULTILINE):
                    yield page_name(path), shlex.split(line, comments=True)


def fault_of(words: list[str]) -> str | None:
    """Return what is wrong with one command line of this project, or None."""
    door, name, *arguments = [*words, "", ""][: max(3, len(words))]
    known = {"./run": run_commands(), "hisparse": set(commands())}.get(door)
    if known is None:
        return None
    given = {word.split("=")[0] for word in arguments if word.startswith("--")}
    options = given
    if name in commands():
        options = {option for param in commands()[name].params for option in (*param.opts, *param.secondary_opts)}
    names = {word for word in arguments if word and not word.startswith("--")} if name == "bench" else set()
    faults = {
        f"{door} has no command {name!r}": name not in known,
        f"{door} {name} has no option {sorted(given - options)}": bool(given - options - {"--help"}),
        f"there is no benchmark {sorted(names - benchmarks())}": bool(names - benchmarks()),
    }
    return next((fault for fault, holds in faults.items() if holds), None)


def test_shown_commands_exist() -> None:
    """Each command line on a page names a command and options that exist."""
    faults = [f"{page}: {shlex.join(words)}: {fault}" for page, words in shown_commands() if (fault := fault_of(words))]
    assert faults == []


# ------------------------------------------------------------------ examples


def python_blocks(path: Path) -> list[tuple[int, str]]:
    """Return the Python blocks of a page with the line each begins on."""
    text = path.read_text(encoding="utf-8")
    found = [block for block in FENCE.finditer(text) if block["language"] == "python"]
    return [(text.count("\n", 0, block.start("text")), block["text"]) for block in found]


@pytest.mark.parametrize("path", [path for path in PAGES if python_blocks(path)], ids=page_name)
def test_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page run from top to bottom in one namespace."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "example"}
    try:
        for line, text in python_blocks(path):
            # Empty lines in front make a traceback point into the page.
            exec(compile("\n" * line + text, str(path), "exec"), namespace)  # noqa: S102 - running it is the test
    finally:
        logging.getLogger("hisparse").setLevel(logging.NOTSET)  # pages show how to make it speak


# --------------------------------------------------------------------- links


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PROSE, ids=page_name)
def test_links_lead_somewhere(path: Path) -> None:
    """Each relative link of a page leads to a file, and each anchor to a heading."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        page = (path.parent / file).resolve() if file else path
        if not page.exists() or (anchor and anchor not in anchors(page)):
            broken.append(target)
    assert broken == []


def test_every_page_is_reached_from_the_index() -> None:
    """The index of the documentation links to every page."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    others = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "index.md"]
    assert [name for name in others if f"({name})" not in index] == []


def test_no_page_promises_later() -> None:
    """No page carries a note to its own author."""
    notes = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|TBD|XXX|lorem)\b", re.IGNORECASE)
    assert [page_name(path) for path in PROSE if notes.search(path.read_text(encoding="utf-8"))] == []
