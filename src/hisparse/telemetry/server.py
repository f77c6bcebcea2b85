"""The metrics endpoint: text format 0.0.4 over HTTP, on loopback unless told otherwise."""

import gzip
import logging
import os
import socket
import time
import weakref
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, Self

from prometheus_client.registry import REGISTRY, CollectorRegistry

from hisparse.errors import SettingError
from hisparse.telemetry.multiprocess import shared_registry
from hisparse.telemetry.prometheus import registry_text
from hisparse.telemetry.values import show

logger = logging.getLogger("hisparse")

# Whatever the client accepts, it gets this format: encoders of newer ones rewrite the ':' of operator names.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_PORT = 65535
MAX_CONNECTIONS = 16
MAX_CONNECTION_SECONDS = 10.0
# The fastest level makes the text 20 times smaller, and zlib lets other threads run meanwhile.
_GZIP_LEVEL = 1
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def accepts_gzip(header: str) -> bool:
    """Tell whether an Accept-Encoding header lets the answer be compressed."""
    for part in header.lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "").rstrip("0") not in {"q=", "q=0."}
    return False


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of /metrics and nothing else."""

    server_version, sys_version = "hisparse", ""
    default_request_version = "HTTP/1.0"  # what cannot be read gets a status line too
    timeout = MAX_CONNECTION_SECONDS

    def __init__(self, read: Callable[[], bytes], *args: Any) -> None:
        self._read = read
        super().__init__(*args)

    def do_GET(self) -> None:
        if self.path.split("?")[0] not in {"/", "/metrics"}:
            self._answer(HTTPStatus.NOT_FOUND, b"metrics are at /metrics\n")
            return
        try:
            body = self._read()
        except Exception as error:  # noqa: BLE001  any collector of the registry may fail, the endpoint must not
            logger.warning("a collector of the registry failed: %s: %s", type(error).__name__, error)
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"a collector of the registry failed, see the log\n")
            return
        if accepts_gzip(self.headers.get("Accept-Encoding", "")):
            body = gzip.compress(body, compresslevel=_GZIP_LEVEL, mtime=0)
            self._answer(HTTPStatus.OK, body, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
        else:
            self._answer(HTTPStatus.OK, body, ("Vary", "Accept-Encoding"))

    def do_HEAD(self) -> None:
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002  the base class passes it
        """Answer what the base class refuses, a malformed request or a method that has no function here."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"metrics are read with GET\n", ("Allow", "GET, HEAD"))
        else:
            self._answer(HTTPStatus(code), f"{message or HTTPStatus(code).phrase}\n".encode())

    def _answer(self, status: HTTPStatus, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", CONTENT_TYPE), ("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names the argument
        """Keep scrapes out of the log."""


class _Server(ThreadingHTTPServer):
    """Serves at most `MAX_CONNECTIONS` clients at once, and none for longer than `MAX_CONNECTION_SECONDS`."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], read: Callable[[], bytes]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._lock = Lock()
        self._since: dict[socket.socket, float] = {}
        super().__init__(address, partial(_Handler, read))
        if hasattr(os, "register_at_fork"):
            # A function of the system's list is there for good, so it must not keep the server.
            this = weakref.WeakMethod(self.leave)
            os.register_at_fork(after_in_child=lambda: (leave := this()) and leave())

    def leave(self) -> None:
        """Close this process's copies of the sockets, in a child that was forked: nobody would ever answer on them."""
        self._lock = Lock()  # somebody may have held it, who is not here
        for connection in [self.socket, *self._since]:
            connection.close()
        self._since.clear()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            is_busy = len(self._since) >= MAX_CONNECTIONS
            if not is_busy:
                self._since[request] = time.monotonic()
        if is_busy:
            request.settimeout(0)
            request.send(_BUSY)
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._since.pop(request, None)
        super().shutdown_request(request)

    @property
    def clients(self) -> int:
        """Connections that are open."""
        with self._lock:
            return len(self._since)

    def service_actions(self) -> None:
        """Hang up on clients that send or read too slowly; called several times a second."""
        oldest = time.monotonic() - MAX_CONNECTION_SECONDS
        with self._lock:
            late = [connection for connection, since in self._since.items() if since < oldest]
        for connection in late:
            try:
                connection.shutdown(socket.SHUT_RDWR)  # its thread finds the end of the stream and closes
            except OSError as error:
                logger.debug("a metrics client was gone already: %s", error)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  the base class calls it so
        """Take no notice of clients that hang up."""
        logger.debug("metrics request from %s ended early", client_address)


# A setting by both of its names: in Python and on the command line.
_PORT, _HOST = "port= (--metrics-port)", "host= (--metrics-host)"


class MetricsServer:
    """A running endpoint; a context manager that closes it.

    Attributes:
        host: Address it listens on.
        port: Port it listens on, the chosen one where 0 was asked for.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        """Bind and serve from a daemon thread; see `start_metrics_server`."""
        self._server = _Server((host, port), partial(registry_text, registry))
        self.host = host
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Address to scrape."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    @property
    def clients(self) -> int:
        """Connections that are open, at most `MAX_CONNECTIONS`."""
        return self._server.clients

    def __repr__(self) -> str:
        """Return the address, and whether it is still served."""
        return f"{type(self).__name__}({self.url!r}, {'open' if self._thread.is_alive() else 'closed'})"

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

    Where ``PROMETHEUS_MULTIPROC_DIR`` names a directory, what all processes wrote there is served instead.

    Args:
        registry: prometheus_client's default registry where None.
        host: Address to listen on; loopback unless others shall read the metrics.
        port: Port to listen on; 0 takes a free one.

    Raises:
        SettingError: The port is no number, out of range or taken, or the address is not this machine's.
    """
    if type(port) is not int or not 0 <= port <= MAX_PORT:
        raise SettingError(f"metrics port must be a number 0 to {MAX_PORT}, got {show(port)}: change {_PORT}")
    if not isinstance(host, str) or not host.strip() or "\0" in host:
        # The empty address would be every one of this machine's, and no URL.
        raise SettingError(f"metrics host must be an address, got {show(host)}: change {_HOST} (0.0.0.0 for all)")
    own = REGISTRY if registry is None else registry
    try:
        return MetricsServer(shared_registry() or own, host, port)
    except (OSError, TypeError, UnicodeError) as error:  # the last two: text that is no name of a host
        reason = getattr(error, "strerror", None) or error
        raise SettingError(
            f"cannot serve metrics on {host if host.isprintable() else show(host)}:{port} ({reason}): "
            f"choose another {_PORT} (0 takes a free one) or {_HOST}"
        ) from error
