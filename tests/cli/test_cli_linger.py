"""Metrics that stay for a while after the results."""

import json
import re
import urllib.request
from collections.abc import Callable

import pytest
from click.testing import Result

from hisparse.cli.feed import MetricsFeed

DEMO = ("demo", "--requests", "1", "--context-tokens", "200", "--new-tokens", "3")
GENERATE = ("generate", "--prompt", "class Cache:\n" * 60, "--max-new-tokens", "3", "--metrics-port", "0")


@pytest.fixture
def lingered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    """Return for how long a command stayed after its results, and what it served meanwhile; takes no time."""
    found: list[tuple[float, str]] = []
    linger = MetricsFeed.linger

    def read_and_linger(feed: MetricsFeed, seconds: int) -> None:
        def read(pause: float) -> None:
            with urllib.request.urlopen(str(feed.url), timeout=10) as response:  # noqa: S310 - a loopback address
                found.append((pause, response.read().decode()))

        monkeypatch.setattr("hisparse.cli.feed.sleep", read)
        linger(feed, seconds)

    monkeypatch.setattr(MetricsFeed, "linger", read_and_linger)
    return found


@pytest.mark.parametrize("command", [DEMO, GENERATE], ids=["demo", "generate"])
def test_the_last_counts_are_served_after_the_results(
    command: tuple[str, ...], run_cli: Callable[..., Result], lingered: list[tuple[float, str]]
) -> None:
    """For the seconds asked for, a scraper reads what the report says, and levels that have fallen to 0."""
    done = run_cli(*command, "--json", "--metrics-linger", "30")
    assert done.exit_code == 0, done.stderr
    assert re.search(r"metrics for 30 s more: http://127\.0\.0\.1:\d+/metrics", done.stderr)
    ((seconds, text),) = lingered
    assert seconds == 30
    values = dict(re.findall(r"^(\S+?)\{.*\} (\S+)$", text, re.MULTILINE))
    hits, told = float(values["vllm:hisparse_cache_hits_total"]), json.loads(done.stdout)["selections"]["hit"]
    assert hits == told > 0
    assert float(values["hisparse_host_reserved_bytes"]) == 0


def test_nothing_lingers_unless_asked(run_cli: Callable[..., Result], lingered: list[tuple[float, str]]) -> None:
    """Without the option a command ends with its results."""
    done = run_cli(*GENERATE, "--json")
    assert done.exit_code == 0, done.stderr
    assert lingered == []


def test_lingering_without_an_endpoint_is_refused(run_cli: Callable[..., Result]) -> None:
    """Where nothing is served, the option is an error with the one that is missing."""
    done = run_cli("generate", "--prompt", "x", "--metrics-linger", "5")
    assert done.exit_code == 2
    assert "--metrics-port" in done.stderr
