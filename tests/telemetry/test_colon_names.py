"""Names with a colon: as this endpoint and as foreign ones spell them, and what the docs say to do."""

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from prometheus_client import CollectorRegistry, make_wsgi_app

from hisparse.telemetry import HiSparseKVConnectorStats, TelemetryPipeline, start_metrics_server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
HITS = "vllm:hisparse_cache_hits_total"
# What Prometheus sends, by version: 2.42 prefers OpenMetrics 1.0.0 and 0.0.1; 3.x adds an escaping to each format.
ACCEPT = {
    "2.42": "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "3.x": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    "3.x underscores": "application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.6,"
    "text/plain;version=1.0.0;escaping=underscores;q=0.4,*/*;q=0.2",
    "curl": "*/*",
}


@pytest.fixture
def filled(registry: CollectorRegistry) -> Iterator[CollectorRegistry]:
    """Return a registry in which one operator counter is 3."""
    stats = HiSparseKVConnectorStats()
    stats.record_snapshot(3, 1, 0)
    with TelemetryPipeline(model_name="m", registry=registry) as pipeline:
        pipeline.publish({"HiSparse": stats})
        yield registry


class Silent(WSGIRequestHandler):
    """A handler that logs no requests."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class names the argument
        """Print nothing."""


@pytest.fixture
def foreign(filled: CollectorRegistry) -> Iterator[str]:
    """Return the address of an endpoint that is the client's own, which negotiates OpenMetrics."""
    server = make_server("127.0.0.1", 0, make_wsgi_app(filled), handler_class=Silent)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    thread.join()
    server.server_close()


def hits(url: str, accept: str) -> tuple[str, str]:
    """Return the content type of an answer, and the name under which the counter of hits is in it."""
    request = urllib.request.Request(url, headers={"Accept": accept})  # noqa: S310  a loopback address
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310  a loopback address
        body: str = response.read().decode()
        found = re.findall(r"^(vllm.hisparse_cache_hits_total)\{.*\} 3\.0$", body, re.MULTILINE)
        assert len(found) == 1
        return response.headers["Content-Type"], found[0]


@pytest.mark.parametrize("version", ACCEPT)
def test_this_endpoint_keeps_the_colon(filled: CollectorRegistry, version: str) -> None:
    """Whatever version of Prometheus asks, the answer is text format 0.0.4 with the name as declared."""
    with start_metrics_server(filled) as server:
        assert hits(server.url, ACCEPT[version]) == ("text/plain; version=0.0.4; charset=utf-8", HITS)


@pytest.mark.parametrize(
    ("version", "spelling"),
    [
        ("2.42", "vllm_hisparse_cache_hits_total"),
        ("3.x", HITS),
        ("3.x underscores", "vllm_hisparse_cache_hits_total"),
        ("curl", HITS),
    ],
)
def test_a_foreign_endpoint_spells_by_what_is_accepted(foreign: str, version: str, spelling: str) -> None:
    """Behind the client's own endpoint the colon is lost where OpenMetrics is negotiated with underscores."""
    content_type, name = hits(foreign, ACCEPT[version])
    assert name == spelling
    assert content_type.startswith("text/plain" if version == "curl" else "application/openmetrics-text")


def test_the_documented_rules_read_both_spellings() -> None:
    """The selector on the page matches both names, and its relabel rule turns one into the other."""
    page = PAGE.read_text(encoding="utf-8")
    selector = re.search(r'__name__=~"(vllm\.hisparse_cache_hits_total)"', page)
    rule = re.search(r"regex: '?(\S+?)'?\n\s+target_label: __name__\n\s+replacement: '?(\S+?)'?\n", page)
    assert selector is not None
    assert rule is not None
    for spelling in (HITS, HITS.replace(":", "_")):
        assert re.fullmatch(selector[1], spelling)
        assert re.sub(f"^(?:{rule[1]})$", rule[2].replace("$1", r"\1"), spelling) == HITS
    assert not re.fullmatch(rule[1], "vllm:hisparse_cache_hits_total")
    assert not re.fullmatch(rule[1], "vllm_num_requests_running"), "other people's names are left alone"
