"""From a cache's counts to the metrics endpoint, while a command runs."""

import time
from types import TracebackType
from typing import Any, Self

from prometheus_client import CollectorRegistry

from hisparse.cli.counts import OUTCOMES, CacheCounts
from hisparse.telemetry import (
    HiSparseKVConnectorStats,
    MetricsServer,
    OffloadingConnectorStats,
    TelemetryPipeline,
    start_metrics_server,
)

SAMPLE_EVERY_SECONDS = 0.25


class MetricsFeed:
    """Publishes what caches count, and serves it where a port is given; closes both at the end of a ``with``."""

    def __init__(self, model_name: str, port: int | None) -> None:
        """Bind the port (0: a free one; None: serve nothing) before any work is done.

        Raises:
            SettingError: the port is taken or out of range.
        """
        registry = CollectorRegistry()
        self._pipeline = TelemetryPipeline(model_name=model_name, registry=registry)
        self._server: MetricsServer | None = None if port is None else start_metrics_server(registry, port=port)

    @property
    def url(self) -> str | None:
        """Where the metrics are, None where nothing is served."""
        return None if self._server is None else self._server.url

    def follow(self, cache: Any) -> "CacheFeed":
        """A feed that publishes the growth of one cache's counts."""
        return CacheFeed(self._pipeline, cache)

    def __enter__(self) -> Self:
        """Return the feed; leaving the block stops the server."""
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """Publish nothing more."""
        self._pipeline.close()
        if self._server is not None:
            self._server.close()


class CacheFeed:
    """Samples one cache and publishes the difference to the sample before."""

    def __init__(self, pipeline: TelemetryPipeline, cache: Any) -> None:
        """Take the counts as they are now for the start."""
        self._pipeline = pipeline
        self._cache = cache
        self._published = CacheCounts.from_stats(cache.stats())
        self._sampled_at = time.monotonic()

    def sample_if_due(self) -> None:
        """Publish if the last sample is `SAMPLE_EVERY_SECONDS` old."""
        if time.monotonic() - self._sampled_at >= SAMPLE_EVERY_SECONDS:
            self.sample()

    def sample(self) -> CacheCounts:
        """Publish what was counted since the last sample, and return the totals."""
        counts = CacheCounts.from_stats(self._cache.stats())
        grown = counts.plus(self._published, sign=-1)
        operator, own = HiSparseKVConnectorStats(), OffloadingConnectorStats()
        operator.record_snapshot(grown.selections.hit, grown.selections.miss, grown.host_to_device_bytes)
        for group, selections in grown.groups.items():
            for outcome in OUTCOMES:
                labels = (outcome, str(group))
                own.increase_counter("hisparse_hot_selections_total", getattr(selections, outcome), labels)
        for layer in grown.layers:
            labels = ("host_to_device", str(layer.layer))
            own.increase_counter("hisparse_hot_copied_bytes_total", layer.copied_bytes, labels)
        self._pipeline.publish({"hisparse": operator.take(), "cache": own.take()})
        self._published = counts
        self._sampled_at = time.monotonic()
        return counts
