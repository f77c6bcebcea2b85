"""The metrics endpoint and clients that are odd, slow, many or hostile."""

import gzip
import http.client
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from hisparse.telemetry import MetricsServer, start_metrics_server
from hisparse.telemetry.server import MAX_CONNECTIONS, accepts_gzip

LINE = b"hits_total 3.0\n"


@pytest.fixture
def server(registry: CollectorRegistry) -> Iterator[MetricsServer]:
    """Return an endpoint with one counter."""
    Counter("hits", "Hits.", registry=registry).inc(3)
    with start_metrics_server(registry) as running:
        yield running


def ask(server: MetricsServer, method: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    """Return the answer to one request, and its body as sent."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, "/metrics", headers={key.replace("_", "-"): value for key, value in headers.items()})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_head_answers_as_get_without_a_body(server: MetricsServer) -> None:
    """HEAD has the status and the headers of GET, and nothing after them."""
    got, body = ask(server, "GET")
    head, nothing = ask(server, "HEAD")
    assert (head.status, nothing) == (200, b"")
    for header in ("Content-Type", "Content-Length"):
        assert head.getheader(header) == got.getheader(header)
    assert int(head.getheader("Content-Length") or 0) == len(body)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_metrics_are_only_read(server: MetricsServer, method: str) -> None:
    """Every other method is refused with the ones there are, and changes nothing."""
    response, body = ask(server, method)
    assert (response.status, response.getheader("Allow")) == (405, "GET, HEAD")
    assert b"html" not in body.lower()
    assert LINE in ask(server, "GET")[1]


def test_the_answer_names_no_versions(server: MetricsServer) -> None:
    """The server header tells nobody which Python is running."""
    response, _ = ask(server, "GET")
    assert (response.getheader("Server") or "").strip() == "hisparse"


@pytest.mark.parametrize("accepted", ["gzip", "gzip, deflate, br", "deflate;q=0.5, GZIP;q=0.8", "gzip;q=0.001"])
def test_text_is_compressed_for_who_accepts_it(server: MetricsServer, accepted: str) -> None:
    """A client that accepts gzip gets it, with the length of what was sent."""
    response, body = ask(server, "GET", Accept_Encoding=accepted)
    assert response.getheader("Content-Encoding") == "gzip"
    assert int(response.getheader("Content-Length") or 0) == len(body)
    assert LINE in gzip.decompress(body)


@pytest.mark.parametrize("accepted", ["", "identity", "gzip;q=0", "gzip; q=0.000", "x-gzip", "deflate"])
def test_text_is_plain_for_who_does_not(server: MetricsServer, accepted: str) -> None:
    """Without gzip in the header, or with a weight of 0, the text is sent as it is."""
    assert not accepts_gzip(accepted)
    response, body = ask(server, "GET", Accept_Encoding=accepted)
    assert response.getheader("Content-Encoding") is None
    assert LINE in body


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET /metrics\r\n\r\n", b"200"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400"),
        (b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"431"),
        (b"GET /metrics HTTP/9.9\r\n\r\n", b"505"),
    ],
)
def test_a_malformed_request_is_refused_in_plain_text(
    server: MetricsServer, request_text: bytes, status: bytes
) -> None:
    """Too long, too many headers, another protocol: a short answer, and the next client is served."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(request_text)
        answer = client.recv(65_536)
    assert answer.startswith(b"HTTP/1.0 " + status)
    assert b"<html" not in answer.lower()
    assert LINE in ask(server, "GET")[1]


def is_closed(client: socket.socket) -> bool:
    """Tell whether the server has closed the connection."""
    client.settimeout(0.05)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Return whether the condition came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_a_client_that_drips_is_hung_up_on(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that never ends, a byte at a time, holds a connection for a bounded time."""
    monkeypatch.setattr("hisparse.telemetry.server.MAX_CONNECTION_SECONDS", 0.3)

    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:

        def drip() -> bool:
            try:
                client.sendall(b"G")
            except OSError:
                return True
            return is_closed(client)

        assert wait_until(drip)
    assert LINE in ask(server, "GET")[1]


def test_a_client_that_reads_nothing_is_hung_up_on(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that nobody takes holds a connection for a bounded time."""
    monkeypatch.setattr("hisparse.telemetry.server.MAX_CONNECTION_SECONDS", 0.3)
    Counter("long", "x" * 20_000_000, registry=registry)
    with start_metrics_server(registry) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert wait_until(lambda: not server.clients)


def test_connections_are_bounded_and_come_back(server: MetricsServer) -> None:
    """Beyond the bound a client is told to come later at once; when the others leave, it is served."""
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(MAX_CONNECTIONS)]
    try:
        assert wait_until(lambda: server.clients == MAX_CONNECTIONS)
        response, _ = ask(server, "GET")
        assert response.status == 503
        assert server.clients == MAX_CONNECTIONS
    finally:
        for client in idle:
            client.close()
    assert wait_until(lambda: not server.clients)
    assert LINE in ask(server, "GET")[1]
