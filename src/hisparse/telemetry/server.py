"""The metrics endpoint: text format 0.0.4 over HTTP, on loopback unless told otherwise."""

import logging
import socket
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self

from prometheus_client.exposition import generate_latest
from prometheus_client.registry import REGISTRY, CollectorRegistry

from hisparse.errors import SettingError

logger = logging.getLogger("hisparse")

# Whatever the client accepts, it gets this format: encoders of newer ones rewrite the ':' of operator names.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_PORT = 65535


class _Handler(BaseHTTPRequestHandler):
    """Answers GET /metrics and nothing else."""

    timeout = 10  # a client that sends nothing does not hold its thread for longer

    def __init__(self, registry: CollectorRegistry, *args: Any) -> None:
        self._registry = registry
        super().__init__(*args)

    def do_GET(self) -> None:
        if self.path.split("?")[0] not in {"/", "/metrics"}:
            self._answer(HTTPStatus.NOT_FOUND, b"metrics are at /metrics\n")
            return
        try:
            body = generate_latest(self._registry)
        except Exception as error:  # noqa: BLE001  any collector of the registry may fail, the endpoint must not
            logger.warning("a collector of the registry failed: %s: %s", type(error).__name__, error)
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"a collector of the registry failed, see the log\n")
            return
        self._answer(HTTPStatus.OK, body)

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names the argument
        """Keep scrapes out of the log."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, partial(_Handler, registry))

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  the base class calls it so
        """Take no notice of clients that hang up."""
        logger.debug("metrics request from %s ended early", client_address)


class MetricsServer:
    """A running endpoint; a context manager that closes it.

    Attributes:
        host: Address it listens on.
        port: Port it listens on, the chosen one where 0 was asked for.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        """Bind and serve from a daemon thread; see `start_metrics_server`."""
        self._server = _Server((host, port), registry)
        self.host = host
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Address to scrape."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop listening and wait for the thread. Harmless twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        """Return the endpoint; leaving the block closes it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()


def start_metrics_server(
    registry: CollectorRegistry | None = None, *, host: str = "127.0.0.1", port: int = 0
) -> MetricsServer:
    """Serve `registry` at ``http://host:port/metrics`` and return the running endpoint.

    Args:
        registry: prometheus_client's default registry where None.
        host: Address to listen on; loopback unless others shall read the metrics.
        port: Port to listen on; 0 takes a free one.

    Raises:
        SettingError: The port is out of range or taken, or the address is not this machine's.
    """
    if not 0 <= port <= MAX_PORT:
        raise SettingError(f"metrics port must be 0 to {MAX_PORT}, got {port}: change --metrics-port")
    try:
        return MetricsServer(REGISTRY if registry is None else registry, host, port)
    except OSError as error:
        raise SettingError(
            f"cannot serve metrics on {host}:{port} ({error.strerror or error}): "
            "choose another --metrics-port (0 takes a free one) or --metrics-host"
        ) from error
