"""The HiSparse connector: levels from the scheduler side, counts from the worker side, one kind of statistics."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from hisparse.connectors.base import KVConnector, PromMetrics
from hisparse.connectors.hisparse.levels import LevelRecorder, LevelSource
from hisparse.connectors.hisparse.recording import zero_stats
from hisparse.connectors.hisparse.schedule import Schedule
from hisparse.connectors.hisparse.source import CounterSource
from hisparse.connectors.hisparse.worker import HiSparseConnectorWorker
from hisparse.connectors.prometheus import OffloadPromMetrics
from hisparse.errors import SettingError
from hisparse.telemetry import CATALOGUE, Catalogue, HiSparseConnectorStats, HiSparseKVConnectorStats
from hisparse.telemetry.connector_stats import METRICS_KEY
from hisparse.telemetry.hisparse_stats import DELTAS, LEVELS, RESIDENCY

_OWN = ("vllm:hisparse_", "hisparse_hot_", "hisparse_host_", "hisparse_telemetry_sample")


class HiSparseConnector(KVConnector):
    """One side of the rows on the host: ``"scheduler"`` tells levels every step, ``"worker"`` samples counters."""

    catalogue: ClassVar[Catalogue] = Catalogue(
        {name: metadata for name, metadata in CATALOGUE.items() if name.startswith(_OWN)}
    )

    def __init__(  # noqa: PLR0913  each argument is a setting, given by name
        self,
        role: Literal["scheduler", "worker"],
        *,
        levels: LevelSource | None = None,
        source: CounterSource | None = None,
        rank: int | None = None,
        every_seconds: float = 1.0,
        every_calls: int = 2000,
        flush_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        name: str = "HiSparse",
    ) -> None:
        """Make one side.

        Args:
            role: Which one.
            levels: Of the scheduler side: where the levels of the host pool are read.
            source: Of the worker side: where its counters are read.
            rank: Of the worker side: its place among the workers of its engine, None where there is only one.
            every_seconds: Longest time between two samples; the scheduler side repeats all levels as often.
            every_calls: Most calls between two samples.
            flush_seconds: Longest time a flush of the worker side waits for the device.
            clock: Seconds that never run backwards.
            name: The child's name in a pipeline; both sides of one connector have the same.

        Raises:
            SettingError: The role is unknown, or has not been given what it reads; a period is not positive.
        """
        self.name = name
        given = {"scheduler": levels, "worker": source}.get(role)
        if given is None:
            raise SettingError(f"role must be 'scheduler' with levels or 'worker' with source, got {role!r}")
        self._recorder: LevelRecorder | None = None
        if levels is not None and role == "scheduler":
            self._recorder = LevelRecorder(levels, Schedule(every_seconds, every_calls, clock))
        self._worker: HiSparseConnectorWorker | None = None
        if source is not None and role == "worker":
            self._worker = HiSparseConnectorWorker(
                source,
                rank=rank,
                every_seconds=every_seconds,
                every_calls=every_calls,
                flush_seconds=flush_seconds,
                clock=clock,
            )

    def get_kv_connector_stats(self) -> HiSparseConnectorStats | None:
        """Return the levels (scheduler) or what was sampled since the last call (worker). Never blocks."""
        if self._worker is not None:
            return self._worker.get_kv_connector_stats()
        stats = HiSparseConnectorStats()
        if self._recorder is not None:
            self._recorder.record(stats)
        return stats

    @classmethod
    def build_kv_connector_stats(cls, data: Any = None) -> HiSparseConnectorStats | None:
        """Return statistics with the plain form `data`; empty ones for None, None for another connector's."""
        if isinstance(data, HiSparseKVConnectorStats) or not data:
            return HiSparseConnectorStats(data)
        fields = (*DELTAS, *LEVELS, *RESIDENCY, METRICS_KEY)
        is_own = isinstance(data, Mapping) and any(field in data for field in fields)
        return HiSparseConnectorStats(data) if is_own else None

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Mapping[type, type],
        labelnames: Sequence[str],
        per_engine_labelvalues: Mapping[int, Sequence[object]],
    ) -> PromMetrics:
        """Create the metrics of `catalogue`, those without labels of their own at 0 for every engine."""
        del vllm_config
        metrics = OffloadPromMetrics(
            cls.catalogue,
            metric_types=metric_types,
            labelnames=labelnames,
            per_engine_labelvalues=per_engine_labelvalues,
            build=lambda data, _catalogue: cls.build_kv_connector_stats(data),
        )
        for engine in per_engine_labelvalues:
            metrics.observe(zero_stats(cls.catalogue), engine)
        return metrics

    def flush(self) -> None:
        """Sample what the worker's counters hold now; blocks for at most `flush_seconds`."""
        if self._worker is not None:
            self._worker.flush()

    def shutdown(self) -> None:
        """Stop: the worker side flushes and lets go of its source, the scheduler side has nothing to stop."""
        if self._worker is not None:
            self._worker.shutdown()
