"""The metrics endpoint."""

import gc
import http.client
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import Metric

from hisparse.errors import SettingError
from hisparse.telemetry import MetricsServer, start_metrics_server


@pytest.fixture
def server(registry: CollectorRegistry) -> Iterator[MetricsServer]:
    """Return an endpoint with one counter whose name has a colon."""
    Counter("vllm:hits", "Hits.", registry=registry).inc(3)
    with start_metrics_server(registry) as running:
        yield running


def test_a_name_with_a_colon_survives(server: MetricsServer, scrape: Callable[[str], str]) -> None:
    """A client that prefers OpenMetrics gets text with the name as declared."""
    assert "vllm:hits_total 3.0" in scrape(server.url).splitlines()


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=1.0.0; escaping=allow-utf-8", "*/*", ""])
def test_the_format_is_always_text(server: MetricsServer, accept: str) -> None:
    """Whatever a client accepts, it is told and given text format 0.0.4."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", "/metrics", headers={"Accept": accept})
    response = connection.getresponse()
    assert response.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    assert len(response.read()) == int(response.getheader("Content-Length") or 0)
    connection.close()


def test_it_listens_on_loopback_only(server: MetricsServer) -> None:
    """Without being told otherwise the endpoint is not reachable from elsewhere."""
    assert server.host == "127.0.0.1"
    assert server.port > 0


@pytest.mark.parametrize(("path", "status"), [("/nothing", 404), ("/metrics/x", 404)])
def test_other_paths_are_not_found(server: MetricsServer, path: str, status: int) -> None:
    """Anything but /metrics answers with where the metrics are."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10)
    with caught.value as answer:
        assert (answer.code, answer.read()) == (status, b"metrics are at /metrics\n")


def test_a_failing_collector_answers_and_recovers(
    server: MetricsServer, registry: CollectorRegistry, scrape: Callable[[str], str]
) -> None:
    """A foreign collector that raises fails its scrape with a status, and the next one works."""

    class Failing:
        def describe(self) -> list[Metric]:
            return []

        def collect(self) -> Iterator[Metric]:
            raise RuntimeError

    failing = Failing()
    registry.register(failing)
    with pytest.raises(urllib.error.HTTPError) as caught:
        scrape(server.url)
    with caught.value as answer:
        assert answer.code == 500
    registry.unregister(failing)
    assert "vllm:hits_total 3.0" in scrape(server.url)


def test_a_client_that_hangs_up_does_no_harm(server: MetricsServer, scrape: Callable[[str], str]) -> None:
    """A connection dropped before its answer leaves the endpoint serving."""
    for _ in range(3):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", "/metrics")
        connection.close()
    assert "vllm:hits_total 3.0" in scrape(server.url)


def test_a_taken_port_names_the_knob(server: MetricsServer, registry: CollectorRegistry) -> None:
    """A port in use is an error that says which one and how to choose another."""
    with pytest.raises(SettingError, match=rf"127.0.0.1:{server.port} .*in use.*--metrics-port"):
        start_metrics_server(registry, port=server.port)


@pytest.mark.parametrize("port", [-1, 65536, "9464", 80.5, None, True])
def test_an_impossible_port_names_the_knob(registry: CollectorRegistry, port: Any) -> None:
    """A port out of range, or that is no whole number, is an error with the range and the knob."""
    with pytest.raises(SettingError, match=r"0 to 65535, got .*--metrics-port"):
        start_metrics_server(registry, port=port)


def test_an_address_of_another_machine_names_the_knob(registry: CollectorRegistry) -> None:
    """An address that this machine does not have is an error with the knob."""
    with pytest.raises(SettingError, match="--metrics-host"):
        start_metrics_server(registry, host="203.0.113.1")


@pytest.mark.parametrize("host", ["", " ", "a\0b", None, 0, b"127.0.0.1"])
def test_what_is_no_address_names_the_knob(registry: CollectorRegistry, host: Any) -> None:
    """Nothing, which would mean every address of the machine, and what is no text are errors with the knob."""
    with pytest.raises(SettingError, match=r"metrics host must be an address, got .*--metrics-host"):
        start_metrics_server(registry, host=host)


@pytest.mark.parametrize("host", ["x" * 300, ".", "a..b", "no such host", "\ud800", "\n"])
def test_a_name_that_is_no_host_names_the_knob(registry: CollectorRegistry, host: str) -> None:
    """Text that no resolver takes is an error with the knob, in one line."""
    with pytest.raises(SettingError, match="--metrics-host") as caught:
        start_metrics_server(registry, host=host)
    assert str(caught.value).isprintable()


def test_a_forked_child_does_not_hold_the_port() -> None:
    """While a child lives on, its parent serves, hangs up, closes and binds the port again."""
    script = """
    import os, socket, time
    from prometheus_client import CollectorRegistry, Counter
    from hisparse.telemetry import start_metrics_server
    registry = CollectorRegistry()
    Counter("hits", "Hits.", registry=registry).inc(3)
    server = start_metrics_server(registry)
    idle = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    while not server.clients:
        time.sleep(0.01)
    ready, is_ready = os.pipe()
    hold, stop = os.pipe()
    child = os.fork()
    if not child:
        os.close(stop)
        idle.close()
        os.write(is_ready, b"x")
        os.read(hold, 1)
        server.close()
        os._exit(server.clients)
    os.read(ready, 1)
    idle.sendall(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
    answer = b"".join(iter(lambda: idle.recv(65536), b""))
    server.close()
    with start_metrics_server(registry, port=server.port) as again:
        os.close(stop)
        print(b"hits_total 3.0" in answer, again.port == server.port, os.waitpid(child, 0)[1])
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("True True 0\n", 0), done.stderr


def test_a_closed_server_is_forgotten(registry: CollectorRegistry) -> None:
    """What the system calls in every forked child does not keep servers that are gone."""
    server = start_metrics_server(registry)
    server.close()
    gone = weakref.ref(server._server)
    del server
    gc.collect()
    assert gone() is None


def test_closing_frees_the_port(registry: CollectorRegistry) -> None:
    """After close, which may be called twice, the port can be taken again."""
    server = start_metrics_server(registry)
    server.close()
    server.close()
    with start_metrics_server(registry, port=server.port) as again:
        assert again.port == server.port


def test_a_server_shows_its_address(registry: CollectorRegistry) -> None:
    """The text of an object is its address, and whether it still serves."""
    with start_metrics_server(registry) as server:
        assert repr(server) == f"MetricsServer('http://127.0.0.1:{server.port}/metrics', open)"
    assert repr(server) == f"MetricsServer('http://127.0.0.1:{server.port}/metrics', closed)"


def test_a_refused_setting_is_named_for_python_and_for_the_command_line(registry: CollectorRegistry) -> None:
    """Whoever started the endpoint, the message has the name that they know."""
    with pytest.raises(SettingError, match=r"change port= \(--metrics-port\)"):
        start_metrics_server(registry, port=-1)
    with pytest.raises(SettingError, match=r"change host= \(--metrics-host\)"):
        start_metrics_server(registry, host="")
    with (
        start_metrics_server(registry) as server,
        pytest.raises(SettingError, match=r"choose another port= \(--metrics-port\) \(0 takes a free one\) or host="),
    ):
        start_metrics_server(registry, port=server.port)
