"""Every panel and every alert, asked of a real Prometheus that scrapes a producer of all metrics."""

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from prometheus_client import CollectorRegistry

from full_producer import FullProducer
from hisparse.dashboards import AlertSettings, alerts, rules_yaml
from hisparse.telemetry import CATALOGUE, TelemetryPipeline, start_metrics_server
from live_prometheus import JOB, Labels, LivePrometheus

BOARD = Path(__file__).resolve().parents[2] / "dashboards" / "hisparse.json"
WINDOW = "3s"
# What FullProducer publishes is beyond all of these after a few seconds, and nothing at all is within them.
SOON = AlertSettings(
    window=WINDOW,
    errors_window=WINDOW,
    pending="1s",
    failures_pending="1s",
    stale_pending="1s",
    misses_per_second=1,
    stale_seconds=0.5,
)
DOWN = "HiSparseDown"
PAUSE_SECONDS = 0.1
SCRAPES = 10


@pytest.fixture(scope="module")
def server(
    prometheus_programs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LivePrometheus]:
    """Return a server that evaluates the alerts with short durations."""
    folder = tmp_path_factory.mktemp("alerts")
    with LivePrometheus(prometheus_programs[0], folder, rules=rules_yaml(SOON), ports=5) as running:
        yield running


@contextmanager
def served(port: int) -> Iterator[TelemetryPipeline]:
    """Serve a pipeline over the whole catalogue on `port`."""
    registry = CollectorRegistry()
    with (
        TelemetryPipeline(model_name="m", engines=(0, 1), registry=registry, catalogue=CATALOGUE) as pipeline,
        start_metrics_server(registry, port=port),
    ):
        yield pipeline


@contextmanager
def publishing(pipeline: TelemetryPipeline) -> Iterator[None]:
    """Publish something for every metric of two engines, a mistake included, until the block ends."""
    stop = Event()
    producer = FullProducer(pipeline, CATALOGUE)

    def publish() -> None:
        while not stop.wait(PAUSE_SECONDS):
            producer.publish(engine=0)
            producer.publish(engine=1)
            pipeline.publish({"full": "no statistics"}, engine=1)

    thread = Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def panel_queries(port: int) -> dict[str, str]:
    """Return each query of the committed dashboard with the variables filled in, by panel and letter."""
    chosen = {"job": JOB, "instance": f"127.0.0.1:{port}", "model_name": "m", "engine": ".*", "__rate_interval": WINDOW}
    queries = {}
    for panel in json.loads(BOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in chosen.items():
                expression = expression.replace(f"${name}", value)
            queries[f"{panel['title']} {target['refId']}"] = expression
    return queries


def test_every_panel_shows_data(server: LivePrometheus) -> None:
    """Each query of the dashboard returns at least one number while every metric is published."""
    port = server.take_port()
    with served(port) as pipeline, publishing(pipeline):
        answers: dict[str, dict[Labels, float]] = {}
        for _ in range(SCRAPES):  # the first two make a rate, later ones do where one of them was too slow
            server.wait_for_scrape(port)
            answers = {panel: server.query(query) for panel, query in panel_queries(port).items()}
            if all(answers.values()):
                break
    assert len(answers) > 20
    assert [panel for panel, series in answers.items() if not series] == []
    assert [panel for panel, series in answers.items() if any(map(math.isnan, series.values()))] == []
    growing = (
        *("Hit ratio A", "Link use A", "Gather time A", "Failures by reason A"),
        *("Offloaded bytes per second of time A", "Speed of offload, idle time left out A"),
    )
    assert [panel for panel in growing if not sum(answers[panel].values()) > 0] == []


def shown_expressions() -> list[str]:
    """Return the blocks of PromQL on all pages."""
    pages = sorted(BOARD.parents[1].glob("docs/*.md"))
    return [text for page in pages for text in re.findall(r"```promql\n(.*?)```", page.read_text("utf-8"), re.DOTALL)]


def test_every_expression_on_a_page_shows_data(server: LivePrometheus) -> None:
    """Each block of PromQL in the documentation returns at least one number while every metric is published."""
    port = server.take_port()
    answers: dict[str, dict[Labels, float]] = {}
    with served(port) as pipeline, publishing(pipeline):
        for _ in range(SCRAPES):
            server.wait_for_scrape(port)
            answers = {text: server.query(text) for text in shown_expressions()}
            if all(answers.values()):
                break
    assert len(answers) > 10
    assert [text for text, series in answers.items() if not series] == []


def test_an_idle_engine_is_quiet(server: LivePrometheus) -> None:
    """An engine that has just started and does nothing raises no alert, and every ratio has no value."""
    port = server.take_port()
    with served(port):
        for _ in range(5):
            server.wait_for_scrape(port)
        queries = panel_queries(port)
        assert server.query(queries["Hit ratio A"]) == {}
        assert server.query(queries["Link use A"]) == {}
        assert alerts_of(server, port) == []


def test_every_alert_goes_from_pending_to_firing(server: LivePrometheus) -> None:
    """Each alert fires for an engine at fault, the last one when it is gone; one with a duration is pending before."""
    port = server.take_port()
    names = {alert.name for alert in alerts(SOON)}
    with served(port) as pipeline, publishing(pipeline):
        server.wait(lambda: names - {DOWN} <= states_so_far(server, port, "firing"), "all alerts of an engine fire")
        assert DOWN not in states_so_far(server, port, "pending")
    server.wait(lambda: DOWN in states_so_far(server, port, "firing"), "its end is noticed")
    lasting = {alert.name for alert in alerts(SOON) if alert.pending != "0s"}
    assert states_so_far(server, port, "pending") == lasting


def test_a_firing_alert_says_what_it_measured(server: LivePrometheus) -> None:
    """The summary has the value in words, and the address is the alert's own paragraph."""
    port = server.take_port()
    with served(port) as pipeline, publishing(pipeline):
        (alert, *_) = server.wait(
            lambda: [a for a in alerts_of(server, port) if a["labels"]["alertname"] == "HiSparseHotBufferThrashing"],
            "thrashing is noticed",
        )
    assert alert["annotations"]["summary"].startswith(f"Hot buffers of m on 127.0.0.1:{port}, engine ")
    assert "hit only 30% of the selected rows" in alert["annotations"]["summary"]
    assert alert["annotations"]["runbook_url"] == "docs/runbook.md#hisparsehotbufferthrashing"


def alerts_of(server: LivePrometheus, port: int) -> list[dict[str, dict[str, str]]]:
    """Return the alerts of one instance."""
    return [dict(alert) for alert in server.alerts() if alert["labels"].get("instance") == f"127.0.0.1:{port}"]


def states_so_far(server: LivePrometheus, port: int, state: str) -> set[str]:
    """Return the alerts of one instance that have been in a state, as Prometheus itself recorded it."""
    recorded = (
        dict(part.split("=") for part in key.split(",")[1:]) for key in server.history(port) if "ALERTS," in key
    )
    return {labels["alertname"] for labels in recorded if labels["alertstate"] == state}
