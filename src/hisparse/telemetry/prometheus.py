"""Running totals as a Prometheus collector: nothing is copied per sample, everything per scrape."""

import logging
from collections.abc import Collection, Iterator, Mapping
from threading import Lock
from typing import Self

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry
from prometheus_client.samples import Sample

from hisparse.errors import MetricError
from hisparse.telemetry.catalogue import TELEMETRY, Catalogue
from hisparse.telemetry.deprecated import help_text, series_of
from hisparse.telemetry.exposition import COMMON_LABELS, Common, FamilyText, bucket_texts
from hisparse.telemetry.histogram import Histogram, Value
from hisparse.telemetry.metadata import MetricMetadata
from hisparse.telemetry.multiprocess import ProcessValues
from hisparse.telemetry.naming import family_name
from hisparse.telemetry.store import ERRORS_METRIC, MetricStore, Series
from hisparse.telemetry.values import LabelValues

logger = logging.getLogger("hisparse")

_Engines = Mapping[Common, Mapping[LabelValues, Value]]


class KVConnectorPrometheus:
    """All engines of all pipelines of one registry; series carry the labels `model_name` and `engine`.

    Series are named by model and engine: whoever attaches with the same pair adds to the same totals, so a
    pipeline that is made again in one process continues its counters.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        """Start without engines; `attach` registers."""
        self._lock = Lock()
        self._catalogue = Catalogue({})
        self._stores: dict[Common, MetricStore] = {}
        self._users: dict[Common, int] = {}
        self._texts: dict[str, FamilyText] = {}
        self._shared = ProcessValues.of_environment()
        self.declare(catalogue)

    @classmethod
    def attach(cls, registry: CollectorRegistry, catalogue: Catalogue) -> Self:
        """Return the registry's collector, registering one at first.

        Raises:
            MetricError: The registry has other metrics of these names, or the catalogues disagree.
        """
        catalogue = catalogue.merged(TELEMETRY)
        owner = cls._of(registry)
        try:
            if owner is None:
                owner = cls(catalogue)
                registry.register(owner)
            elif added := catalogue.keys() - owner.names():
                # The registry learns names only when something is registered; these may be somebody else's.
                probe = cls(Catalogue({name: catalogue[name] for name in added}))
                registry.register(probe)
                registry.unregister(probe)
                owner.declare(catalogue)
                registry.unregister(owner)
                registry.register(owner)
            else:
                owner.declare(catalogue)
        except ValueError as error:
            if isinstance(error, MetricError):
                raise
            raise MetricError(
                f"the registry has these metrics from elsewhere, give another registry: {error}"
            ) from error
        return owner

    @classmethod
    def _of(cls, registry: CollectorRegistry) -> Self | None:
        # Only the collector that has this name is asked, so no other one can fail here.
        for family in registry.restricted_registry([family_name(ERRORS_METRIC)]).collect():
            if isinstance(family, OwnFamily) and isinstance(family.owner, cls):
                return family.owner
        return None

    def keep_registered(self, registry: CollectorRegistry) -> None:
        """Register again where somebody dropped the collector, and say so.

        An engine that is made again in one process may clear the registry of everything it takes for its own.
        """
        found = self._of(registry)
        if found is self:
            return
        problem = "a later pipeline has taken their place, close this one"
        if found is None:
            try:
                registry.register(self)
                problem = "they are registered again"
            except ValueError as error:
                problem = f"others have taken their names: {error}"
        logger.warning("the metrics had been dropped from their registry; %s", problem)

    def names(self) -> frozenset[str]:
        """Return the names of all metrics. Reads only."""
        return frozenset(self._catalogue)

    def declare(self, catalogue: Catalogue) -> None:
        """Add metrics to those of all engines.

        Raises:
            MetricError: A metric is declared differently already.
        """
        with self._lock:
            self._catalogue = self._catalogue.merged(catalogue)
            for name, metadata in catalogue.items():
                self._texts.setdefault(name, FamilyText(name, metadata))
            if self._shared is not None:
                self._shared.declare(self._catalogue)
            for key, store in self._stores.items():
                store.declare(catalogue)
                self._share(key, store, everything=True)

    def acquire(self, model_name: str, engine: int) -> MetricStore:
        """Return the totals of an engine of a model, made at first; `release` them when done."""
        key = (model_name, str(engine))
        with self._lock:
            self._users[key] = self._users.get(key, 0) + 1
            if key not in self._stores:
                self._stores[key] = MetricStore(self._catalogue)
                self._share(key, self._stores[key], everything=True)
            return self._stores[key]

    def release(self, model_name: str, engine: int) -> None:
        """Drop the series of an engine once nobody who acquired them is left."""
        key = (model_name, str(engine))
        with self._lock:
            self._users[key] -= 1
            if not self._users[key]:
                self._share(key, self._stores[key])
                if self._shared is not None:
                    self._shared.end(key)
                for text in self._texts.values():
                    text.forget(key)
                del self._users[key], self._stores[key]

    def share(self, model_name: str, engine: int) -> None:
        """Write what an engine published to the files that other processes read, where there are such."""
        if self._shared is None:
            return
        key = (model_name, str(engine))
        with self._lock:
            if key in self._stores:
                self._share(key, self._stores[key])

    def _share(self, key: Common, store: MetricStore, *, everything: bool = False) -> None:
        if self._shared is not None:
            touched = store.take_touched()
            totals = store.snapshot(None if everything else touched)
            self._shared.write(key, totals, touched=touched)

    def describe(self) -> Iterator[Metric]:
        """Yield the families without samples, by which the registry notices duplicate names."""
        for name, metadata in self._catalogue.items():
            yield OwnFamily(name, metadata, owner=self, text=self._texts[name], engines={})

    def collect(self) -> Iterator[Metric]:
        """Yield the families; all series of an engine are of one moment."""
        with self._lock:
            catalogue, texts = self._catalogue, dict(self._texts)
            snapshots: dict[Common, dict[str, Series]] = {k: store.snapshot() for k, store in self._stores.items()}
        for name, metadata in catalogue.items():
            engines = {key: series_of(name, metadata, totals) for key, totals in snapshots.items()}
            yield OwnFamily(name, metadata, owner=self, text=texts[name], engines=engines)


class OwnFamily(Metric):
    """A family that makes its samples when somebody reads them, and knows its collector.

    The endpoint takes its text instead. By the collector a second pipeline finds the first one's.

    Attributes:
        owner: The collector.
    """

    def __init__(
        self, name: str, metadata: MetricMetadata, *, owner: KVConnectorPrometheus, text: FamilyText, engines: _Engines
    ) -> None:
        """Keep the values of all engines as they were at the scrape."""
        self.owner = owner
        self._metadata, self._text, self._engines = metadata, text, engines
        self._made: list[Sample] | None = None
        super().__init__(family_name(name), help_text(metadata), metadata.kind)
        self._made = None

    @property
    def samples(self) -> list[Sample]:
        """The samples, in the order in which the text has them."""
        if self._made is None:
            self._made = list(_samples(self.name, self._metadata, self._engines))
        return self._made

    @samples.setter
    def samples(self, samples: list[Sample]) -> None:
        self._made = samples

    def _restricted_metric(self, names: Collection[str]) -> Metric | None:
        # A registry restricted to the family by its own name finds the family itself, and so its collector.
        if self.name in names:
            return self
        restricted: Metric | None = super()._restricted_metric(names)  # type: ignore[no-untyped-call]  # the client's own
        return restricted

    def text(self) -> str:
        """Return the family in text format 0.0.4."""
        return self._text.write(self._engines)


def _samples(family: str, metadata: MetricMetadata, engines: _Engines) -> Iterator[Sample]:
    name = f"{family}_total" if metadata.kind == "counter" else family
    for common, series in engines.items():
        shared = dict(zip(COMMON_LABELS, common, strict=True))
        for values, value in series.items():
            labels = shared | dict(zip(metadata.labelnames, values, strict=True))
            if isinstance(value, Histogram):
                yield from _histogram_samples(name, labels, value)
            else:
                yield Sample(name, labels, value)


def _histogram_samples(name: str, labels: dict[str, str], histogram: Histogram) -> Iterator[Sample]:
    running = 0
    for le, count in zip(bucket_texts(histogram), histogram.counts, strict=True):
        running += count
        yield Sample(f"{name}_bucket", labels | {"le": le}, running)
    yield Sample(f"{name}_count", labels, running)
    yield Sample(f"{name}_sum", labels, histogram.sum)


class _Foreign:
    """Families of other collectors, as something that the client can write."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def registry_text(registry: CollectorRegistry) -> bytes:
    """Return all families of `registry` in text format 0.0.4, exactly as the client would write them.

    Raises:
        Exception: Whatever a foreign collector raises.
    """
    parts: list[bytes] = []
    foreign: list[Metric] = []
    for family in registry.collect():
        if isinstance(family, OwnFamily):
            if foreign:
                parts.append(generate_latest(_Foreign(foreign)))
                foreign = []
            parts.append(family.text().encode())
        else:
            foreign.append(family)
    return b"".join([*parts, generate_latest(_Foreign(foreign))])
