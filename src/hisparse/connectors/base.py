"""The contract of a connector: what it counts reaches the log line and Prometheus by three hooks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from hisparse.connectors.prometheus import OffloadPromMetrics
from hisparse.telemetry import Catalogue, KVConnectorStats, OffloadingConnectorStats, build_kv_connector_stats


class PromMetrics(Protocol):
    """What `KVConnector.build_prom_metrics` returns: the Prometheus side of one class of connectors."""

    def observe(self, data: Any, engine_idx: int = 0) -> None:
        """Add the plain form of one step's statistics of engine `engine_idx`. Never raises."""
        ...


class KVConnector(ABC):
    """A part of an engine that moves KV rows or blocks, and says what it did.

    An engine makes one object for the scheduler and one for each worker, asks each once a step for
    `get_kv_connector_stats`, merges the answers, sends them as plain data to its front end, and there calls
    the two class methods. A subclass names its metrics in `catalogue` and records them in an
    `OffloadingConnectorStats`; nothing else is needed. One with statistics of its own names their class too.

    Attributes:
        name: The child's name in a pipeline; two children of one class may have the same.
        catalogue: The metrics that statistics of this class may carry.
        stats_class: The class of what `get_kv_connector_stats` returns, where it is one of the connector's own: a
            class that is made of a plain form alone. None for the classes of this package.
    """

    name: str
    catalogue: ClassVar[Catalogue] = Catalogue({})
    stats_class: ClassVar[type[KVConnectorStats] | None] = None

    @abstractmethod
    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """Return what happened since the last call, None where nothing did. Never blocks."""

    @classmethod
    def build_kv_connector_stats(cls, data: Any = None) -> KVConnectorStats | None:
        """Return statistics with the plain form `data`; empty ones for None, None for another connector's.

        Those of `stats_class` where there is one: what it does not know is skipped and counted in them.
        """
        if cls.stats_class is not None:
            return cls.stats_class(data)
        if data is None:
            return OffloadingConnectorStats(catalogue=cls.catalogue)
        return build_kv_connector_stats(data, cls.catalogue)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Mapping[type, type],
        labelnames: Sequence[str],
        per_engine_labelvalues: Mapping[int, Sequence[object]],
    ) -> PromMetrics | None:
        """Create the metrics of `catalogue` in an engine's own classes; None where a class has no metrics.

        Args:
            vllm_config: The engine's configuration.
            metric_types: The classes to make for prometheus_client's ``Counter``, ``Gauge`` and ``Histogram``.
            labelnames: Labels the engine puts on every series, for example ``["model_name", "engine"]``.
            per_engine_labelvalues: Their values for each engine.
        """
        del vllm_config
        if not cls.catalogue:
            return None
        return OffloadPromMetrics(
            cls.catalogue,
            metric_types=metric_types,
            labelnames=labelnames,
            per_engine_labelvalues=per_engine_labelvalues,
            build=lambda data, _catalogue: cls.build_kv_connector_stats(data),
        )

    def flush(self) -> None:  # noqa: B027  a connector that counts in this process has nothing to wait for
        """Take in what is counted elsewhere, so that the next `get_kv_connector_stats` hands out everything."""

    def reset_cache(self) -> None:
        """Forget cached rows or blocks. Flushes first: what was counted stays counted."""
        self.flush()

    def shutdown(self) -> None:
        """Stop. Flushes first; a last `get_kv_connector_stats` hands out the rest. Harmless twice."""
        self.flush()
