"""The telemetry of one command: a pipeline that caches publish to, and an endpoint that serves it."""

from typing import Self

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

    def __enter__(self) -> Self:
        """Return the feed; leaving the block stops the server."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Take no more counts, and serve them no longer."""
        self.pipeline.close()
        if self._server is not None:
            self._server.close()
