"""Running totals as a Prometheus collector: nothing is copied per sample, everything per scrape."""

import logging
from collections.abc import Collection, Iterator, Mapping
from operator import index
from threading import Lock
from typing import Any, Self

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry
from prometheus_client.samples import Sample

from hisparse.errors import MetricError, SettingError
from hisparse.telemetry.catalogue import TELEMETRY, Catalogue
from hisparse.telemetry.deprecated import help_text, series_of
from hisparse.telemetry.exposition import COMMON_LABELS, Common, FamilyText, bucket_texts
from hisparse.telemetry.histogram import Histogram, Value
from hisparse.telemetry.metadata import MetricMetadata
from hisparse.telemetry.multiprocess import ProcessValues
from hisparse.telemetry.naming import family_name, sample_names
from hisparse.telemetry.store import ERRORS_METRIC, MetricStore, Series
from hisparse.telemetry.values import LabelValues, SkipReason, show

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
        self._reported: set[str] = set()
        self._shared = ProcessValues.of_environment()
        self.declare(catalogue)

    @classmethod
    def attach(cls, registry: CollectorRegistry, catalogue: Catalogue) -> Self:
        """Return the registry's collector, registering one at first.

        Raises:
            MetricError: The registry has other metrics of these names, or the catalogues disagree.
        """
        catalogue = catalogue.merged(TELEMETRY)
        found = cls._of(registry)
        owner = found or cls(catalogue)
        try:
            if found is None:
                registry.register(owner)
            else:
                owner.join(registry, catalogue)
        except ValueError as error:
            if isinstance(error, MetricError):
                raise
            if found is None and cls._of(registry) is not None:
                return cls.attach(registry, catalogue)  # somebody else attached the first one meanwhile
            raise MetricError(
                f"the registry has these metrics from elsewhere, give another registry: {error}"
            ) from error
        return owner

    def join(self, registry: CollectorRegistry, catalogue: Catalogue) -> None:
        """Add metrics and take their names in the registry at once.

        The client's own way is to drop a collector and register it again: a scrape in between would miss every
        series. So the registry's books are written here, under its lock.

        Raises:
            ValueError: The registry has a name from elsewhere; nothing was added.
            MetricError: A metric is declared differently already.
        """
        books = vars(registry)
        with books["_lock"]:
            collectors: dict[str, Any] = books["_names_to_collectors"]
            names = {sample for name in catalogue for sample in sample_names(name, catalogue[name])}
            if taken := sorted(name for name in names if collectors.get(name, self) is not self):
                raise ValueError(f"Duplicated timeseries in CollectorRegistry: {taken}")
            self.declare(catalogue)
            owned: list[str] = books["_collector_to_names"][self]
            owned += sorted(names - set(owned))
            collectors.update(dict.fromkeys(owned, self))

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
        """Return the totals of an engine of a model, made at first; `release` them when done.

        Raises:
            SettingError: The name is no text that can be written, or the engine no whole number.
        """
        key = _common(model_name, engine)
        with self._lock:
            self._users[key] = self._users.get(key, 0) + 1
            if key not in self._stores:
                self._stores[key] = MetricStore(self._catalogue)
                self._share(key, self._stores[key], everything=True)
            return self._stores[key]

    def release(self, model_name: str, engine: int) -> None:
        """Drop the series of an engine once nobody who acquired them is left."""
        key = _common(model_name, engine)
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
        key = _common(model_name, engine)
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

    def report(self, family: str, error: Exception) -> None:
        """Count that series of a family could not be written; warn at the first time."""
        with self._lock:
            is_new = family not in self._reported
            self._reported.add(family)
            stores = list(self._stores.values())
        for store in stores[:1]:
            store.skip(SkipReason.INTERNAL)
        if is_new:
            logger.warning(
                "series of %s cannot be written and are left out: %s: %s", family, type(error).__name__, error
            )


def _common(model_name: Any, engine: Any) -> Common:
    try:
        if not isinstance(model_name, str):
            raise SettingError(f"model_name must be text, got {show(model_name)}")
        model_name.encode()
        return str(model_name), str(index(engine))
    except UnicodeEncodeError as error:
        raise SettingError(f"model_name must be valid UTF-8, got {show(model_name)}") from error
    except TypeError as error:
        raise SettingError(f"an engine must be a whole number, got {show(engine)}") from error


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

    def text(self) -> bytes:
        """Return the family in text format 0.0.4; series that cannot be written are left out and reported."""
        text = self._encoded(self._engines)
        if not isinstance(text, Exception):
            return text
        self.owner.report(self.name, text)
        good: dict[Common, dict[LabelValues, Value]] = {}
        for common, series in self._engines.items():
            for labels, value in series.items():
                if isinstance(self._encoded({common: {labels: value}}), bytes):
                    good.setdefault(common, {})[labels] = value
        text = self._encoded(good)
        return b"" if isinstance(text, Exception) else text

    def _encoded(self, engines: _Engines) -> bytes | Exception:
        try:
            return self._text.write(engines).encode()
        except Exception as error:  # noqa: BLE001  one bad series must not take the others from the endpoint
            return error


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
            parts.append(family.text())
        else:
            foreign.append(family)
    return b"".join([*parts, generate_latest(_Foreign(foreign))])
