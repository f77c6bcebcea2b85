"""Several connectors as one, each with its own statistics."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hisparse.connectors.base import KVConnector
from hisparse.connectors.multi.builder import StatsBuilder
from hisparse.connectors.multi.levels import ChildLevels
from hisparse.connectors.multi.stats import MultiKVConnectorStats
from hisparse.connectors.prometheus import OffloadPromMetrics
from hisparse.connectors.reading import explained
from hisparse.telemetry import CATALOGUE, Catalogue, KVConnectorStats, SkipReason

logger = logging.getLogger("hisparse")

# Faults between two drains that are kept to be counted; one more is a child that fails at every call.
MAX_FAULTS = 1024


class MultiConnector(KVConnector):
    """Asks, resets and shuts down its children, which may be of one class, or such connectors themselves.

    Children are kept apart by object: where names repeat they get ``#0``, ``#1`` and so on. A child that raises
    is left out of that step's statistics, counted as ``internal`` and named in one warning; the others are not
    concerned.

    Attributes:
        name: Its own name as a child.
        children: The children by the names under which their statistics travel.
        metrics: The metrics of all children, for the catalogue of a pipeline.
        build: Builds the children's statistics at a front end in this process.
    """

    catalogue = CATALOGUE

    def __init__(self, children: Iterable[KVConnector | None], *, name: str = "Multi") -> None:
        """Take the children that are not None.

        Raises:
            MetricError: Two children declare one metric differently.
        """
        self.name = name
        self.children = _named([child for child in children if child is not None])
        self.metrics = Catalogue({})
        for child in self.children.values():
            self.metrics = self.metrics.merged(child.metrics if isinstance(child, MultiConnector) else child.catalogue)
        self.build = StatsBuilder(_all(self.children.values()))
        # Rules for levels are also known of metrics that a child fills without declaring them.
        self._rules = CATALOGUE.merged(self.metrics)
        self._levels = ChildLevels(self._rules)
        self._faults: Counter[str] = Counter()
        self._warned: set[str] = set()

    def get_kv_connector_stats(self) -> MultiKVConnectorStats | None:
        """Return what the children recorded since the last call, None where none recorded anything."""
        merged = MultiKVConnectorStats(build=self.build.child, catalogue=self._rules)
        for name, child in self.children.items():
            stats = self._guarded(name, child.get_kv_connector_stats)
            if not (isinstance(stats, KVConnectorStats) and self._guarded(name, stats.is_empty)):
                merged.add(name, stats)
        for shared in self._guarded(self.name, lambda: self._levels.combine(merged.children)) or ():
            merged.share(shared)
        for detail, count in self._faults.items():
            merged.skip(SkipReason.INTERNAL, detail, count)
        self._faults = Counter()
        return None if merged.is_empty() else merged

    @classmethod
    def build_kv_connector_stats(cls, data: Any = None) -> KVConnectorStats | None:
        """Return statistics with the plain form `data`, of children of this package; others need `StatsBuilder`."""
        if data is None:
            return MultiKVConnectorStats(build=StatsBuilder().child)
        return StatsBuilder()(data, cls.catalogue)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Mapping[type, type],
        labelnames: Sequence[str],
        per_engine_labelvalues: Mapping[int, Sequence[object]],
    ) -> OffloadPromMetrics:
        """Create the metrics of children of this package; see `prom_metrics` for those of any children."""
        del vllm_config
        return OffloadPromMetrics(
            cls.catalogue,
            metric_types=metric_types,
            labelnames=labelnames,
            per_engine_labelvalues=per_engine_labelvalues,
            build=StatsBuilder(),
        )

    def prom_metrics(self, **host: Any) -> OffloadPromMetrics:
        """Create the metrics of these children, each name once, in a host's classes.

        Args:
            host: Arguments of `OffloadPromMetrics` other than the definitions.
        """
        return OffloadPromMetrics(self.metrics, **{"build": self.build, **host})

    def flush(self) -> None:
        """Flush every child."""
        for name, child in self.children.items():
            self._guarded(name, child.flush)

    def reset_cache(self) -> None:
        """Reset every child, whichever of them fail."""
        for name, child in self.children.items():
            self._guarded(name, child.reset_cache)

    def shutdown(self) -> None:
        """Shut every child down, whichever of them fail."""
        for name, child in self.children.items():
            self._guarded(name, child.shutdown)

    def _guarded(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # noqa: BLE001  one child's fault is not the others'
            detail = f"child {name!r} raised {type(error).__name__}"
            if detail in self._faults or len(self._faults) < MAX_FAULTS:
                self._faults[detail] += 1
            if detail not in self._warned:
                self._warned.add(detail)
                logger.warning("child %r raised %s; later ones are only counted", name, explained(error))
            return None


def _named(children: list[KVConnector]) -> dict[str, KVConnector]:
    repeated = Counter(child.name for child in children)
    named: dict[str, KVConnector] = {}
    for child in children:
        name, number = child.name, 0
        if repeated[name] > 1:
            while (name := f"{child.name}#{number}") in named or name in repeated:
                number += 1
        named[name] = child
    return named


def _all(children: Iterable[KVConnector]) -> Iterator[KVConnector]:
    for child in children:
        if isinstance(child, MultiConnector):
            yield from _all(child.children.values())
        else:
            yield child
