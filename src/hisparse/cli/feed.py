"""The telemetry of one command: a pipeline that caches publish to, and an endpoint that serves it."""

from time import sleep
from typing import Self

import typer
from prometheus_client import CollectorRegistry

from hisparse.cli.options import LOOPBACK
from hisparse.telemetry import MetricsServer, TelemetryPipeline, start_metrics_server


class MetricsFeed:
    """A pipeline of its own, served where a port is given; both end with the ``with`` block.

    Attributes:
        pipeline: For `HiSparseCache`'s `telemetry`.
    """

    def __init__(self, model_name: str, port: int | None, host: str = LOOPBACK) -> None:
        """Bind the port (0: a free one; None: serve nothing) before any work is done.

        Raises:
            SettingError: the port is taken or out of range, or the host is no address of this machine.
        """
        registry = CollectorRegistry()
        self._server: MetricsServer | None = None
        if port is not None:
            self._server = start_metrics_server(registry, host=host, port=port)
        self.pipeline = TelemetryPipeline(model_name=model_name, registry=registry)

    @property
    def url(self) -> str | None:
        """Where the metrics are, None where nothing is served."""
        return None if self._server is None else self._server.url

    def linger(self, seconds: int) -> None:
        """Go on serving for `seconds`, so that a scraper finds the last counts; not at all where nothing is served."""
        if self._server is not None and seconds:
            typer.echo(f"metrics for {seconds} s more: {self.url}", err=True)
            sleep(seconds)

    def __enter__(self) -> Self:
        """Return the feed; leaving the block stops the server."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Take no more counts, and serve them no longer."""
        self.pipeline.close()
        if self._server is not None:
            self._server.close()
