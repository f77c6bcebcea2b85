"""The scheduler side of offloading: workers' transfers and a manager's statistics as one step's statistics."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hisparse.connectors.base import KVConnector
from hisparse.connectors.draining import drained
from hisparse.connectors.offloading.metadata import OffloadingWorkerMetadata
from hisparse.connectors.prometheus import OffloadPromMetrics
from hisparse.connectors.reading import explained
from hisparse.telemetry import CATALOGUE, Catalogue, Histogram, KVConnectorStats, OffloadingConnectorStats, SkipReason

logger = logging.getLogger("hisparse")

InfoLabels = Mapping[str, Any]
OFFLOAD = Catalogue(
    {
        name: metadata
        for name, metadata in CATALOGUE.items()
        if name.startswith(("vllm:kv_offload_", "hisparse_offload_"))
    }
)


class ManagerTelemetry(Protocol):
    """What the connector asks of a manager of blocks. Both calls read what is known and return at once."""

    def get_stats(self) -> KVConnectorStats | Mapping[str, Any] | None:
        """Return what happened since the last call, as a container or its plain form; None for nothing."""
        ...

    def config_info(self) -> Mapping[str, InfoLabels | Sequence[InfoLabels]]:
        """Return the labels of info gauges by name, several mappings where there are several tiers."""
        ...


class OffloadingConnectorScheduler(KVConnector):
    """Collects what workers and manager measured, and hands it out flat, once a step.

    Deferrals and delays of lookups are recorded in `stats` by whoever schedules; they leave with the rest.

    Attributes:
        name: The child's name in a pipeline.
        stats: What the next `get_kv_connector_stats` hands out; one container for good, so handles stay valid.
    """

    catalogue = OFFLOAD

    def __init__(self, manager: ManagerTelemetry | None = None, *, name: str = "Offloading") -> None:
        """Take statistics from `manager` too; it is asked for its configuration at the first drain."""
        self.name = name
        self.stats = OffloadingConnectorStats(catalogue=self.catalogue)
        # Empty between updates; it knows which reasons of failures are told apart, whichever worker gives them.
        self._arrived = OffloadingWorkerMetadata()
        self._manager = manager
        self._announced = manager is None
        self._warned: set[str] = set()

    @classmethod
    def build_kv_connector_stats(cls, data: Any = None) -> KVConnectorStats | None:
        """Return self-describing statistics with the plain form `data`, whatever it is."""
        return OffloadingConnectorStats(data, catalogue=cls.catalogue)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Mapping[type, type],
        labelnames: Sequence[str],
        per_engine_labelvalues: Mapping[int, Sequence[object]],
    ) -> OffloadPromMetrics:
        """Create the metrics of `catalogue`; a manager's own need an `OffloadPromMetrics` with its definitions."""
        del vllm_config
        return OffloadPromMetrics(
            cls.catalogue,
            metric_types=metric_types,
            labelnames=labelnames,
            per_engine_labelvalues=per_engine_labelvalues,
        )

    def update(self, metadata: OffloadingWorkerMetadata | Mapping[str, Any] | None) -> None:
        """Add what workers measured, before the statistics of the step are drained. Never raises on data."""
        try:
            if isinstance(metadata, OffloadingWorkerMetadata):
                self._arrived.transfers.examples.update(metadata.transfers.examples)
            _add_samples(self.stats, self._arrived.aggregate(metadata).transfers)
            self._name_failures()
        except Exception as error:  # noqa: BLE001  what workers measured must not end a scheduling step
            self.stats.skip(SkipReason.INTERNAL, explained(error))
        self._arrived.reset()

    def get_kv_connector_stats(self) -> OffloadingConnectorStats | None:
        """Return everything since the last call, None where nothing happened.

        The configuration goes with the first call and after `announce`, or as soon as the manager tells it after
        that; no other payload clears it.
        """
        if self._manager is not None:
            self._ask("get_stats", self._manager.get_stats, self._add_manager_stats)
            if not self._announced:
                self._ask("config_info", self._manager.config_info, self._add_info)
        return None if self.stats.is_empty() else drained(self.stats)

    def announce(self) -> None:
        """Send the configuration once more with the next statistics, for a front end that has not seen it."""
        self._announced = self._manager is None

    def reset_cache(self) -> None:
        """Keep what was counted, and announce the configuration again."""
        super().reset_cache()
        self.announce()

    def _name_failures(self) -> None:
        """Write the first failure of each reason to the log; reasons are bounded, so the log is."""
        for direction, one in self._arrived.transfers.data.items():
            for reason, count in one.failures.items():
                if (known := f"{direction}: {reason}") not in self._warned:
                    self._warned.add(known)
                    logger.warning(
                        "a %s of blocks failed (%s, %d in this step); later ones are only counted in "
                        "hisparse_offload_failed_transfers_total{direction=%r,reason=%r}",
                        *(direction, reason, count, direction, reason),
                    )

    def _add_manager_stats(self, found: Any) -> None:
        self.stats.aggregate(found)

    def _add_info(self, found: Any) -> None:
        # None: not known yet. It is asked for until it is told whole.
        if found is not None:
            self.stats.aggregate({"info": {name: _known(labels) for name, labels in found.items()}})
            self._announced = True

    def _ask(self, what: str, call: Callable[[], Any], add: Callable[[Any], None]) -> None:
        try:
            add(call())
        except Exception as error:  # noqa: BLE001  a manager's fault in telling must not end a serving step
            detail = f"{what} of {type(self._manager).__name__} raised {explained(error)}"
            self.stats.skip(SkipReason.INTERNAL, detail)
            if what not in self._warned:
                self._warned.add(what)
                logger.warning("offload statistics are incomplete: %s; later ones are only counted", detail)


def _add_samples(stats: OffloadingConnectorStats, recorded: KVConnectorStats) -> None:
    for name, kind, labels, value in recorded.samples():
        if isinstance(value, Histogram):
            stats.merge_histogram(name, value, labels)
        elif kind == "counter":
            stats.increase_counter(name, value, labels)
        else:
            stats.set_gauge(name, value, labels)
    for reason, count in recorded.errors.items():
        stats.skip(reason, recorded.examples.get(reason, "reported by a worker"), count)


def _known(labels: Any) -> Any:
    found = [labels] if isinstance(labels, Mapping) else labels
    if not isinstance(found, list | tuple) or not all(isinstance(one, Mapping) for one in found):
        return labels  # what is no labels is counted where it is read
    # What is not known yet is an empty label, never the text "None".
    return [{key: "" if value is None else value for key, value in one.items()} for one in found]
