"""What a real Prometheus reads from a running command, and what the command itself reports."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from hisparse.cli.feed import MetricsFeed
from live_prometheus import LivePrometheus, labels

SMALL_DEMO = ("--requests", "2", "--context-tokens", "480", "--new-tokens", "6", "--prefill-chunk", "256")
GENERATE = ("--prompt", "class Cache:\n" * 60, "--max-new-tokens", "6")


Answers = dict[str, dict[Any, float]]


@pytest.fixture
def answers(prometheus: LivePrometheus, port: int, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Return what Prometheus answers at a command's last moment, when all is counted and still served; empty before."""
    found: Answers = {}
    leave = MetricsFeed.__exit__
    here = f'instance="127.0.0.1:{port}"'
    hits, misses = (f"vllm:hisparse_cache_{what}_total{{{here}}}" for what in ("hits", "misses"))
    queries = {
        "outcomes": f"sum by (outcome) (hisparse_hot_selections_total{{{here}}})",
        "layers": f'sum by (layer) (hisparse_hot_copied_bytes_total{{direction="host_to_device",{here}}})',
        "bytes": f"sum(vllm:hisparse_host_to_device_bytes_total{{{here}}})",
        "ratio": f"sum({hits}) / (sum({hits}) + sum({misses}))",
        "errors": f"sum(hisparse_telemetry_errors_total{{{here}}})",
        "reserved": f"sum(hisparse_host_reserved_bytes{{{here}}})",
    }

    def ask_and_leave(feed: MetricsFeed, *exception: object) -> None:
        prometheus.wait_for_scrape(port)
        found.update({name: prometheus.query(query) for name, query in queries.items()})
        leave(feed, *exception)

    monkeypatch.setattr(MetricsFeed, "__exit__", ask_and_leave)
    return found


@pytest.mark.parametrize("command", [("demo", *SMALL_DEMO), ("generate", *GENERATE)], ids=["demo", "generate"])
def test_queries_equal_the_report(
    command: tuple[str, ...], run_cli: Callable[..., Result], port: int, answers: Answers
) -> None:
    """Prometheus answers what the command's own report counts: by outcome, by layer, in bytes, and as a ratio."""
    done = run_cli(*command, "--json", "--metrics-port", str(port))
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    outcomes = {labels(outcome=outcome): count for outcome, count in report["selections"].items()}
    assert answers["outcomes"] == outcomes
    assert answers["layers"] == {labels(layer=str(layer["layer"])): layer["bytes"] for layer in report["layers"]}
    assert answers["bytes"] == {labels(): report["host_to_device_bytes"]}
    assert answers["ratio"] == {labels(): pytest.approx(report["hit_ratio"], rel=1e-12)}
    assert answers["errors"] == {labels(): 0}
    assert answers["reserved"] == {labels(): 0}
    assert report["selections"]["hit"] > 0
    assert report["host_to_device_bytes"] > 0
