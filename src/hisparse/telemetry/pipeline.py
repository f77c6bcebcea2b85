"""The one path from a connector's statistics to the log line and to Prometheus."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from prometheus_client.registry import REGISTRY, CollectorRegistry

from hisparse import __version__
from hisparse.errors import SettingError
from hisparse.telemetry.building import UNKNOWN_HELP, build_kv_connector_stats
from hisparse.telemetry.catalogue import CATALOGUE, TELEMETRY, Catalogue
from hisparse.telemetry.interval import KVConnectorLogging, Stopwatch
from hisparse.telemetry.prometheus import KVConnectorPrometheus
from hisparse.telemetry.stats import KVConnectorStats
from hisparse.telemetry.store import MetricStore
from hisparse.telemetry.values import MAX_REASONS, SkipReason, read_index, show
from hisparse.telemetry.wire import decode_stats

logger = logging.getLogger("hisparse")

MAX_ENGINES = 1024
# A fault that lasts is named again, but no log is filled by it.
WARN_AGAIN_SECONDS = 600.0
MAX_DETAIL = 400
KV_CACHE_METRICS = "kv_cache_metrics"
TIMESTAMP_METRIC = "hisparse_telemetry_last_sample_timestamp_seconds"


class TelemetryPipeline:
    """Takes statistics from engines, keeps running totals, logs every interval, feeds a Prometheus registry.

    The labels of all series are `model_name` and `engine`. A pipeline made with the model and engine of
    another one on the same registry continues its totals.

    Attributes:
        registry: Where the metrics are registered, for `start_metrics_server`.
    """

    def __init__(  # noqa: PLR0913  each argument is a setting, given by name
        self,
        *,
        model_name: str = "",
        engines: Iterable[int] = (0,),
        registry: CollectorRegistry | None = None,
        catalogue: Catalogue | None = None,
        show_hidden_metrics_for_version: str | None = None,
        kv_cache_metrics: bool = False,
        build: Callable[[Any, Catalogue], KVConnectorStats | None] = build_kv_connector_stats,
        log_interval_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Register the metrics, with every series that is known beforehand at 0.

        Args:
            model_name: Value of the label `model_name`.
            engines: Engines known beforehand; others are added when they publish.
            registry: prometheus_client's default registry where None.
            catalogue: What this version exports where None; add a connector's metrics by `Catalogue.merged`.
            show_hidden_metrics_for_version: Version that deprecated metrics which the next one, if it runs here,
                shall still export; not read where a catalogue is given, see `Catalogue.exported`.
            kv_cache_metrics: Whether times of host pages are exported too, whatever the catalogue; they are recorded
                by `HiSparseKVConnectorStats.record_residency` and dropped without a count where this is off.
            build: Makes statistics from a child's plain data and the catalogue; None for an unknown kind.
            log_interval_seconds: Shortest time between two log lines; `flush` does not wait.
            clock: Seconds that never run backwards, for intervals.
            wall_clock: Unix time, for the timestamp of the last sample.

        Raises:
            SettingError: The interval is not positive, no engine is given or one is no small whole number, or the
                model name is no text that Prometheus can take.
            MetricError: The registry holds metrics of these names that are not this package's.
        """
        if not log_interval_seconds > 0:
            raise SettingError(f"log_interval_seconds must be > 0, got {log_interval_seconds}")
        known = [_known_engine(engine) for engine in engines]
        if not known:
            raise SettingError("engines must name at least one engine, got none")
        self.registry = REGISTRY if registry is None else registry
        chosen = _chosen(catalogue, show_hidden_metrics_for_version, kv_cache_metrics=kv_cache_metrics)
        self._model_name, self._wall_clock = model_name, wall_clock
        self._build = build
        self._catalogue = chosen
        self._exporter = KVConnectorPrometheus.attach(self.registry, chosen)
        self._stores = {engine: self._exporter.acquire(self._model_name, engine) for engine in known}
        self._is_closed = False
        self._logging = KVConnectorLogging(chosen, self._stores.values())
        self._log_interval_seconds, self._stopwatch = log_interval_seconds, Stopwatch(clock)
        self._warned: dict[str, float] = {}

    def publish(self, children: Mapping[str, Any], *, engine: int = 0) -> None:
        """Add the statistics of one step or interval.

        Each is counted once: hand over deltas since the last call (`KVConnectorStats.take`). An empty mapping
        is an idle tick. Never raises on data: what cannot be used is skipped, counted in
        `hisparse_telemetry_errors_total` by reason and named in a warning: the first for each reason, and again
        where it still happens after `WARN_AGAIN_SECONDS`.

        Args:
            children: Plain form of each connector's statistics by the connector's name, or the containers
                themselves, or what `encode_stats` made of them; None for a child means that it has nothing to say.
            engine: Index of the engine that speaks.
        """
        try:
            self._publish(children, engine)
            if not self._is_closed and self._stopwatch.passed() >= self._log_interval_seconds:
                self.flush()
        except Exception as error:  # noqa: BLE001  a fault in telemetry must not end a serving step
            self._skip(SkipReason.INTERNAL, show(error))

    def flush(self) -> None:
        """Log what happened since the last line now, for shutdown; the totals are always up to date. Never raises."""
        if self._is_closed:
            return
        try:
            self._flush()
        except Exception as error:  # noqa: BLE001  a fault in telemetry must not end a serving step or a shutdown
            self._skip(SkipReason.INTERNAL, f"{show(error)} while flushing")

    def _flush(self) -> None:
        self._exporter.keep_registered(self.registry)
        for engine in self._stores:
            self._exporter.share(self._model_name, engine)
        line = self._logging.line(list(self._stores.values()), self._stopwatch.restart())
        if line is not None:
            logger.info("%s", line)

    def close(self) -> None:
        """Flush, and drop the series that no other pipeline has in common. Harmless twice. Never raises.

        What is published later is skipped, and counted where another pipeline has the engine too.
        """
        if self._is_closed:
            return
        self.flush()
        self._is_closed = True
        for engine in self._stores:
            try:
                self._exporter.release(self._model_name, engine)
            except Exception as error:  # noqa: BLE001  the other engines are released all the same
                self._skip(SkipReason.INTERNAL, f"{show(error)} while closing engine {engine}")

    def __enter__(self) -> Self:
        """Return the pipeline; leaving the block closes it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()

    def _publish(self, children: Mapping[str, Any], engine: Any) -> None:
        index = _engine_index(engine)
        store = None if index is None else self._store(index)
        if self._is_closed:
            if children:
                self._skip(SkipReason.UNKNOWN_ENGINE, f"the pipeline is closed, got {show(children)}", store)
            return
        if store is None or not isinstance(children, Mapping):
            reason = SkipReason.UNKNOWN_ENGINE if store is None else SkipReason.WRONG_TYPE
            self._skip(reason, f"cannot take {show(children)} for engine {show(engine)}")
            return
        for name, data in children.items():
            if data is not None:
                self._publish_child(name, data, store)
        self._exporter.share(self._model_name, index or 0)

    def _publish_child(self, name: Any, data: Any, store: MetricStore) -> None:
        """Add what one child says, all or nothing: its fault must not take the other children's statistics."""
        try:
            stats = self._read(data)
            if stats is None:
                self._skip(SkipReason.UNKNOWN_CONNECTOR, f"{show(name)} sent {show(data)}: {UNKNOWN_HELP}", store)
                return
            self._warn(store.apply(stats))
            store.set_level(TIMESTAMP_METRIC, self._wall_clock())
        except Exception as error:  # noqa: BLE001  it may be somebody else's class
            self._skip(SkipReason.INTERNAL, f"{show(name)}: {show(error)}", store)

    def _read(self, data: Any) -> KVConnectorStats | None:
        if isinstance(data, KVConnectorStats):
            return data
        if isinstance(data, bytes | bytearray | memoryview):
            return decode_stats(data, self._catalogue, self._build)
        return self._build(data, self._catalogue)

    def _store(self, engine: int) -> MetricStore | None:
        known = self._stores.get(engine)
        if known is None and engine < MAX_ENGINES and not self._is_closed:
            known = self._exporter.acquire(self._model_name, engine)
            self._stores[engine] = known
            self._logging.meet(known)
        return known

    def _skip(self, reason: SkipReason, detail: str, store: MetricStore | None = None) -> None:
        for counting in [store] if store else list(self._stores.values())[:1]:
            counting.skip(reason)
        self._warn({reason: detail})

    def _warn(self, skipped: Mapping[str, str]) -> None:
        if not skipped:
            return
        now = self._stopwatch.now()
        for reason, detail in skipped.items():
            # Senders make reasons up; those beyond the bound are only counted.
            is_known = reason in self._warned
            if not is_known and len(self._warned) >= len(SkipReason) + MAX_REASONS:
                continue
            if not is_known or now - self._warned[reason] >= WARN_AGAIN_SECONDS:
                self._warned[reason] = now
                logger.warning(
                    "telemetry skipped an item (%s): %s; later ones are only counted in "
                    "hisparse_telemetry_errors_total{reason=%r} for the next %d minutes",
                    *(reason, str(detail)[:MAX_DETAIL], str(reason), WARN_AGAIN_SECONDS // 60),
                )


def _engine_index(engine: Any) -> int | None:
    # A rank may come as the text of a payload's key; an engine comes from a program.
    return None if isinstance(engine, str) else read_index(engine)


def _chosen(catalogue: Catalogue | None, shown: str | None, *, kv_cache_metrics: bool) -> Catalogue:
    if catalogue is None:
        chosen = CATALOGUE.exported(__version__, show_hidden_metrics_for_version=shown)
    else:
        chosen = catalogue.merged(TELEMETRY)
    return chosen.merged({n: m for n, m in CATALOGUE.items() if kv_cache_metrics and m.gate == KV_CACHE_METRICS})


def _known_engine(engine: Any) -> int:
    index = _engine_index(engine)
    if index is None:
        raise SettingError(f"an engine must be a whole number, got {show(engine)}")
    return index
