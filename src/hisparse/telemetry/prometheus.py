"""Running totals as a Prometheus collector: nothing is copied per sample, everything per scrape."""

from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Self

from prometheus_client.core import Metric
from prometheus_client.registry import CollectorRegistry

from hisparse.errors import MetricError
from hisparse.telemetry.catalogue import Catalogue
from hisparse.telemetry.deprecated import help_text, series_of
from hisparse.telemetry.histogram import Histogram, Value
from hisparse.telemetry.metadata import MetricMetadata
from hisparse.telemetry.naming import family_name
from hisparse.telemetry.store import MetricStore
from hisparse.telemetry.values import LabelValues

_Key = tuple[str, str]


class _Family(Metric):
    """A metric family that knows its collector, which is how a second pipeline finds the first one's."""

    def __init__(self, name: str, metadata: MetricMetadata, owner: "KVConnectorPrometheus") -> None:
        super().__init__(family_name(name), help_text(metadata), metadata.kind)
        self.owner = owner


class KVConnectorPrometheus:
    """All engines of all pipelines of one registry; series carry the labels `model_name` and `engine`.

    Series are named by model and engine: whoever attaches with the same pair adds to the same totals, so a
    pipeline that is made again in one process continues its counters.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        """Start without engines; `attach` registers."""
        self._lock = Lock()
        self._catalogue = catalogue
        self._stores: dict[_Key, MetricStore] = {}
        self._users: dict[_Key, int] = {}

    @classmethod
    def attach(cls, registry: CollectorRegistry, catalogue: Catalogue) -> Self:
        """Return the registry's collector, registering one at first.

        Raises:
            MetricError: The registry has other metrics of these names, or the catalogues disagree.
        """
        collector = cls(catalogue)
        try:
            registry.register(collector)
        except ValueError as error:
            for family in registry.collect():
                if isinstance(family, _Family) and isinstance(family.owner, cls):
                    family.owner.declare(catalogue)
                    return family.owner
            raise MetricError(
                f"the registry has these metrics from elsewhere, give another registry: {error}"
            ) from error
        return collector

    def declare(self, catalogue: Catalogue) -> None:
        """Add metrics to those of all engines.

        Raises:
            MetricError: A metric is declared differently already.
        """
        with self._lock:
            self._catalogue = self._catalogue.merged(catalogue)
            for store in self._stores.values():
                store.declare(catalogue)

    def acquire(self, model_name: str, engine: int) -> MetricStore:
        """Return the totals of an engine of a model, made at first; `release` them when done."""
        key = (model_name, str(engine))
        with self._lock:
            self._users[key] = self._users.get(key, 0) + 1
            if key not in self._stores:
                self._stores[key] = MetricStore(self._catalogue)
            return self._stores[key]

    def release(self, model_name: str, engine: int) -> None:
        """Drop the series of an engine once nobody who acquired them is left."""
        key = (model_name, str(engine))
        with self._lock:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._stores[key]

    def describe(self) -> Iterator[Metric]:
        """Yield the families without samples, by which the registry notices duplicate names."""
        for name, metadata in self._catalogue.items():
            yield _Family(name, metadata, self)

    def collect(self) -> Iterator[Metric]:
        """Yield the families; all series of an engine are of one moment."""
        with self._lock:
            catalogue = self._catalogue
            snapshots = {key: store.snapshot() for key, store in self._stores.items()}
        for name, metadata in catalogue.items():
            family = _Family(name, metadata, self)
            for (model_name, engine), snapshot in snapshots.items():
                common = {"model_name": model_name, "engine": engine}
                _add_samples(family, metadata, series_of(name, metadata, snapshot), common=common)
            yield family


def _add_samples(
    family: Metric, metadata: MetricMetadata, series: Mapping[LabelValues, Value], *, common: dict[str, str]
) -> None:
    name = f"{family.name}_total" if metadata.kind == "counter" else family.name
    for values, value in series.items():
        labels = common | dict(zip(metadata.labelnames, values, strict=True))
        if isinstance(value, Histogram):
            _add_histogram(family, labels, value)
        else:
            family.add_sample(name, labels, value)


def _add_histogram(family: Metric, labels: dict[str, str], histogram: Histogram) -> None:
    running = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        running += count
        family.add_sample(
            f"{family.name}_bucket",
            labels | {"le": "+Inf" if bound == float("inf") else repr(bound)},
            running,
        )
    family.add_sample(f"{family.name}_count", labels, running)
    family.add_sample(f"{family.name}_sum", labels, histogram.sum)
