"""Declared metrics in the Prometheus classes of the engine that hosts the connector."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prometheus_client.registry import CollectorRegistry

from hisparse import __version__
from hisparse.connectors.families import Labels, MetricFamilies
from hisparse.connectors.growth import grown
from hisparse.connectors.reading import explained
from hisparse.telemetry import (
    CATALOGUE,
    Catalogue,
    Histogram,
    KVConnectorStats,
    MetricMetadata,
    MetricStore,
    OffloadingConnectorStats,
    SkipReason,
    decode_stats,
)
from hisparse.telemetry.deprecated import series_of
from hisparse.telemetry.histogram import Value
from hisparse.telemetry.store import ERRORS_METRIC
from hisparse.telemetry.values import show

logger = logging.getLogger("hisparse")

Build = Callable[[Any, Catalogue], KVConnectorStats | None]


def _build(data: Any, catalogue: Catalogue) -> KVConnectorStats | None:
    return OffloadingConnectorStats(data, catalogue=catalogue)


class OffloadPromMetrics:
    """Creates the metrics that a connector or a manager declared, and adds statistics to them.

    For a host that registers metrics itself; a `TelemetryPipeline` exports on its own. Totals are kept in the
    same `MetricStore` as there, which decides what is usable, what several ranks mean together, and what a
    deprecated name shows; what they grew by goes into the host's classes. A child is bound when its series
    is first spoken of, so an engine that says nothing has none.
    """

    def __init__(
        self,
        definitions: Mapping[str, MetricMetadata],
        *,
        metric_types: Mapping[Any, Callable[..., Any]],
        labelnames: Sequence[str],
        per_engine_labelvalues: Mapping[int, Sequence[object]],
        registry: CollectorRegistry | None = None,
        build: Build = _build,
    ) -> None:
        """Create the metrics, or take those that an earlier object created.

        Args:
            definitions: Metadata by name; `hisparse_telemetry_errors_total` is added.
            metric_types: The class to make for each of prometheus_client's ``Counter``, ``Gauge``, ``Histogram``.
            labelnames: Labels the host puts on every series.
            per_engine_labelvalues: Their values for each engine.
            registry: Passed to the classes; where None they choose, as prometheus_client's do.
            build: Makes statistics from plain data; None for data it does not know.

        Raises:
            MetricError: A definition is wrong, or the registry has another metric of its name.
        """
        catalogue = Catalogue({**definitions, ERRORS_METRIC: CATALOGUE[ERRORS_METRIC]})
        gates = frozenset(metadata.gate for metadata in catalogue.values())
        self._catalogue = catalogue.exported(__version__, gates=gates)
        self._shown: dict[str, list[str]] = {}
        for name, metadata in self._catalogue.items():
            for source in _sources_of(name, metadata):
                self._shown.setdefault(source, []).append(name)
        self._families = MetricFamilies(self._catalogue, metric_types, labelnames=labelnames, registry=registry)
        self._labels: dict[int, Labels] = {
            engine: tuple(map(str, values)) for engine, values in per_engine_labelvalues.items()
        }
        self._stores = {engine: MetricStore(self._catalogue) for engine in self._labels}
        self._exported: dict[int, dict[str, dict[Labels, Value]]] = {engine: {} for engine in self._labels}
        self._build = build
        self._warned: set[str] = set()

    def observe(self, data: Any, engine_idx: int = 0) -> None:
        """Add the plain form of one step's statistics, a container, or its bytes. Never raises.

        What is not declared, has the wrong number of labels or is no usable number is left out, counted in
        `hisparse_telemetry_errors_total`, and named in one warning per reason.
        """
        try:
            self._observe(data, engine_idx)
        except Exception as error:  # noqa: BLE001  a fault in telemetry must not end the process that serves
            self._skip(SkipReason.INTERNAL, explained(error))

    def _observe(self, data: Any, engine: int) -> None:
        if data is None:
            return
        store = self._stores.get(engine) if isinstance(engine, int) else None
        if store is None:
            self._skip(SkipReason.UNKNOWN_ENGINE, f"engine {show(engine)} is none of {sorted(self._stores)}")
            return
        stats = self._read(data)
        if stats is None:
            store.skip(SkipReason.UNKNOWN_CONNECTOR)
            self._warn({str(SkipReason.UNKNOWN_CONNECTOR): f"nobody builds statistics from {show(data)}"})
        else:
            self._warn(store.apply(stats))
        self._export(engine, store)

    def _read(self, data: Any) -> KVConnectorStats | None:
        if isinstance(data, KVConnectorStats):
            return data
        if isinstance(data, bytes | bytearray | memoryview):
            return decode_stats(data, self._catalogue, self._build)
        return self._build(data, self._catalogue)

    def _export(self, engine: int, store: MetricStore) -> None:
        totals = store.snapshot(store.take_touched())
        exported = self._exported[engine]
        for name, metadata in self._catalogue.items():
            if series := series_of(name, metadata, totals):
                before = exported.setdefault(name, {})
                gone: dict[Labels, Value] = dict.fromkeys(before.keys() - series.keys(), 0)
                for labels, value in {**gone, **series}.items():
                    growth = _growth(metadata, before.get(labels), value)
                    if growth is not None and self._add(name, self._labels[engine] + labels, growth):
                        before[labels] = value

    def _add(self, name: str, labels: Labels, growth: Value) -> bool:
        try:
            self._families.add(name, labels, growth)
        except Exception as error:  # noqa: BLE001  a fault of a host's class concerns one series, and not the others
            self._skip(SkipReason.INTERNAL, f"{name} raised {explained(error)}")
            return False
        return True

    def _skip(self, reason: SkipReason, detail: str) -> None:
        # Seen at the next export: the series that fails may be the one that counts failures.
        for store in list(self._stores.values())[:1]:
            store.skip(reason)
        self._warn({str(reason): detail})

    def _warn(self, skipped: Mapping[str, str]) -> None:
        for reason, detail in skipped.items():
            if reason not in self._warned:
                self._warned.add(reason)
                logger.warning("telemetry skipped an item (%s): %s; later ones are only counted", reason, detail)


def _sources_of(name: str, metadata: MetricMetadata) -> tuple[str, ...]:
    """Return the metrics whose totals the series of `name` show: its own, or those of its replacements."""
    derived = metadata.deprecation is not None and metadata.deprecation.derived
    return metadata.deprecation.replacements if metadata.deprecation and derived else (name,)


def _growth(metadata: MetricMetadata, before: Value | None, value: Value) -> Value | None:
    """Return what to add to a series, or to set it to; None where nothing changed."""
    if isinstance(value, Histogram):
        if not isinstance(before, Histogram):
            return value
        growth = grown(value, before)
        return growth if growth is not None and growth.lanes else None
    if isinstance(before, Histogram) or value == before:
        return None
    if metadata.kind == "gauge":
        return value
    return value - (before or 0)
