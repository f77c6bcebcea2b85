"""Running totals of one engine: the one place from which log line and Prometheus read."""

from collections.abc import Collection, Iterator, Mapping
from itertools import product
from threading import Lock

from hisparse.telemetry.catalogue import Catalogue
from hisparse.telemetry.deprecated import current
from hisparse.telemetry.histogram import Histogram, Value, plus
from hisparse.telemetry.metadata import HistogramMetadata, Kind, MetricMetadata
from hisparse.telemetry.offload_stats import OffloadingConnectorStats
from hisparse.telemetry.samples import Taken, check_level, level_limits
from hisparse.telemetry.series import split_key
from hisparse.telemetry.shares import Place, RankShares, adds_up
from hisparse.telemetry.stats import KVConnectorStats, Sample
from hisparse.telemetry.values import MAX_REASONS, MAX_SERIES, UNREAD_RANK, ItemError, LabelValues, SkipReason

ERRORS_METRIC = "hisparse_telemetry_errors_total"

Series = dict[LabelValues, Value]


class MetricStore:
    """Values of every metric of a catalogue since the store was made; counters never fall.

    What all ranks count alike is totalled by rank, and the rank that is furthest ahead is shown, so one that lags
    or starts again neither doubles a counter nor makes it fall. Levels are the latest of each rank.
    Series whose label values are all known exist from the start with value 0. When a series with an open
    label appears, its siblings over the known labels appear with it, so a ratio never divides by nothing.
    Safe to use from several threads.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        """Create the series known beforehand."""
        self._lock = Lock()
        self._catalogue = Catalogue({})
        self._values: dict[str, Series] = {}
        self._shares: dict[str, dict[LabelValues, RankShares]] = {}
        self._places: dict[Kind, dict[str, Place]] = {"counter": {}, "gauge": {}, "histogram": {}}
        self._recorded: set[str] = set()
        self._touched: set[str] = set()
        self.declare(catalogue)

    def declare(self, catalogue: Catalogue) -> None:
        """Add the metrics of `catalogue` that are not known yet.

        Raises:
            MetricError: A metric is declared differently already; nothing was added.
        """
        with self._lock:
            self._catalogue = self._catalogue.merged(catalogue.recorded())
            for name, metadata in self._catalogue.items():
                if name not in self._values:
                    self._values[name] = {}
                    if set(metadata.labelnames) == set(metadata.labelvalues):
                        self._create(name, metadata, ("",) * len(metadata.labelnames))

    def apply(self, stats: KVConnectorStats) -> dict[str, str]:
        """Add what `stats` recorded, all of it or nothing; return an example of each reason an item was skipped for.

        Raises:
            Exception: Whatever the methods of somebody else's class raise; nothing was added.
        """
        if type(stats) is OffloadingConnectorStats:
            skipped = dict(stats.examples)
            with self._lock:
                if self._apply_tables(stats, skipped):
                    self._count_errors(stats.errors)
                    self._set_infos(stats.info(), skipped)
                    return skipped
        # Somebody else's code runs here: without the lock, and before anything is changed.
        taken = Taken(stats)
        with self._lock:
            for sample in current(taken.samples, self._catalogue.deprecated):
                if sample.name not in self._catalogue.hidden:
                    self._apply(sample, taken.examples)
            if type(stats) is OffloadingConnectorStats:
                self._remember(stats)
            self._count_errors(taken.errors)
            self._set_infos(taken.info, taken.examples)
        return taken.examples

    def set_level(self, name: str, value: float) -> None:
        """Set a gauge without labels."""
        with self._lock:
            self._apply(Sample(name, "gauge", (), value), {})

    def skip(self, reason: SkipReason, count: int = 1) -> None:
        """Count items that never became statistics."""
        with self._lock:
            self._count_skipped(reason, count)

    def snapshot(self, names: Collection[str] | None = None) -> dict[str, Series]:
        """Return a copy of all series, or of those of some metrics, as of one moment. Reads only."""
        with self._lock:
            return {
                name: {
                    labels: value.copy() if isinstance(value, Histogram) else value for labels, value in series.items()
                }
                for name, series in self._values.items()
                if names is None or name in names
            }

    def take_touched(self) -> frozenset[str]:
        """Return the metrics that got a value, of whatever size, since the last call, and forget them."""
        with self._lock:
            touched = frozenset(self._touched)
            self._touched.clear()
            return touched

    def recorded(self) -> frozenset[str]:
        """Return the metrics that got a value, as opposed to their initial 0. Reads only."""
        with self._lock:
            return frozenset(self._recorded)

    def _apply(self, sample: Sample, skipped: dict[str, str]) -> None:
        try:
            self._add(sample)
        except ItemError as error:
            self._count_skipped(error.reason, 1)
            skipped.setdefault(str(error.reason), f"{sample.name}: {error}")

    def _add(self, sample: Sample) -> None:
        name, kind, labels, value = sample
        metadata = self._declared(name)
        if metadata.kind != kind:
            raise ItemError(SkipReason.TYPE_CONFLICT, f"is declared as a {metadata.kind}, got a {kind}")
        if len(labels) != len(metadata.labelnames):
            expected = len(metadata.labelnames)
            raise ItemError(SkipReason.LABEL_MISMATCH, f"expects {expected} labels {metadata.labelnames}, got {labels}")
        series = self._values[name]
        if labels not in series:
            if len(series) >= MAX_SERIES:
                raise ItemError(SkipReason.TOO_MANY_SERIES, f"has {MAX_SERIES} series already")
            self._create(name, metadata, labels)
            series.setdefault(labels, _zero(metadata))  # a known label may have a value of a newer version
        if kind == "gauge" and not isinstance(value, Histogram):
            check_level(value, level_limits(metadata))
        if adds_up(metadata):
            series[labels] = plus(series[labels], value)
        elif sample.rank == UNREAD_RANK:
            raise ItemError(SkipReason.UNKNOWN_RANK, "taken for the whole engine, an unread rank would count twice")
        else:
            self._share(name, labels).add(sample.rank, value)
            series[labels] = self._shares[name][labels].shown
        self._recorded.add(name)
        self._touched.add(name)

    def _share(self, name: str, labels: LabelValues) -> RankShares:
        shares = self._shares.setdefault(name, {})
        if labels not in shares:
            metadata = self._catalogue[name]
            shares[labels] = RankShares(metadata.across_ranks, metadata.kind, self._values[name][labels])
        return shares[labels]

    def _apply_tables(self, stats: OffloadingConnectorStats, skipped: dict[str, str]) -> bool:
        """Add series whose places are known from an earlier time; change nothing and return False if not all are."""
        counters, gauges, histograms = (self._places[kind] for kind in ("counter", "gauge", "histogram"))
        tables = stats.tables
        if UNREAD_RANK in tables:
            return False
        found: list[tuple[int | None, Place, int | float]] = []
        others: list[tuple[int | None, Place, Value]] = []
        try:
            for rank, table in tables.items():
                found += [(rank, counters[key], value) for key, value in table.counters.items()]
                found += [(rank, counters[key], value) for key, value in table.rank_counters.items()]
                others += [(rank, gauges[key], value) for key, value in table.gauges.items()]
                others += [(rank, histograms[key], value) for key, value in table.histograms.items()]
                others += [(rank, histograms[key], value) for key, value in table.rank_histograms.items()]
        except KeyError:
            return False
        for rank, place, number in found:
            if place.shares is None:
                # A number; a call of `add` would cost as much again.
                place.series[place.labels] += number  # type: ignore[operator]  # as its kind says
            else:
                self._add_to(place, rank, number, skipped=skipped)
        for rank, place, value in others:
            self._add_to(place, rank, value, skipped=skipped)
        self._touched.update([place.name for _, place, _ in found])
        return True

    def _add_to(self, place: Place, rank: int | None, value: Value, *, skipped: dict[str, str]) -> None:
        try:
            if place.limits is not None:
                check_level(value, place.limits)
            place.add(rank, value)
            self._touched.add(place.name)
        except ItemError as error:
            self._count_skipped(error.reason, 1)
            skipped.setdefault(str(error.reason), f"{place.name}: {error}")

    def _remember(self, stats: OffloadingConnectorStats) -> None:
        """Keep the places of all series of `stats` that were added."""
        for table in stats.tables.values():
            for key, kind, _ in table.series():
                name, labels = split_key(key)
                metadata = self._catalogue.get(name)
                if metadata is None or metadata.kind != kind or name in self._catalogue.deprecated:
                    continue
                series = self._values[name]
                if labels in series:
                    shares = None if adds_up(metadata) else self._share(name, labels)
                    limits = level_limits(metadata) if kind == "gauge" else None
                    self._places[kind][key] = Place(name, labels, series, shares=shares, limits=limits)

    def _declared(self, name: str, unit: str | None = None) -> MetricMetadata:
        metadata = self._catalogue.get(name)
        if name in self._catalogue.deprecated:
            raise ItemError(SkipReason.DEPRECATED_NAME, "is an old name: send its replacement alone")
        if metadata is None:
            known = next(filter(self._catalogue.__contains__, _other_spellings(name)), None)
            hint = "add it to the pipeline's catalogue" if known is None else f"did you mean {known!r}?"
            raise ItemError(SkipReason.UNDECLARED_METRIC, f"is not declared: {hint}")
        if unit is not None and metadata.unit != unit:
            raise ItemError(SkipReason.TYPE_CONFLICT, f"is declared in unit {metadata.unit!r}, got {unit}")
        return metadata

    def _create(self, name: str, metadata: MetricMetadata, labels: LabelValues) -> None:
        series = self._values[name]
        pairs = zip(metadata.labelnames, labels, strict=True)
        for sibling in product(*(metadata.labelvalues.get(label, (value,)) for label, value in pairs)):
            series.setdefault(sibling, _zero(metadata))

    def _count_errors(self, errors: Mapping[str, int]) -> None:
        for reason, count in errors.items():
            self._count_skipped(reason, count)

    def _count_skipped(self, reason: str, count: int) -> None:
        if ERRORS_METRIC in self._values:
            series = self._values[ERRORS_METRIC]
            key = (str(reason),)
            if key not in series and len(series) >= len(SkipReason) + MAX_REASONS:
                key = (str(SkipReason.TOO_MANY_SERIES),)
            series[key] = plus(series.get(key, 0), count)
            self._recorded.add(ERRORS_METRIC)
            self._touched.add(ERRORS_METRIC)

    def _set_infos(self, infos: Mapping[str, list[dict[str, str]]], skipped: dict[str, str]) -> None:
        for name, mappings in infos.items():
            if name not in self._catalogue.hidden:
                self._set_info(name, mappings, skipped)

    def _set_info(self, name: str, mappings: list[dict[str, str]], skipped: dict[str, str]) -> None:
        try:
            metadata = self._declared(name, unit="info")
        except ItemError as error:
            self._count_skipped(error.reason, 1)
            skipped.setdefault(str(error.reason), f"{name}: {error}")
            return
        series = self._values[name]
        series.clear()
        series.update({tuple(labels.get(label, "") for label in metadata.labelnames): 1 for labels in mappings})
        self._touched.add(name)
        for label in _undeclared(mappings, metadata):
            self._count_skipped(SkipReason.LABEL_MISMATCH, 1)
            skipped.setdefault(SkipReason.LABEL_MISMATCH, f"{name}: label {label!r} is not declared")


def _other_spellings(name: str) -> Iterator[str]:
    """Yield what a name may have been meant to be: counters are queried with ``_total``, and some recorded without."""
    for spelled in (name, name.replace("vllm_", "vllm:", 1)):
        yield from (spelled, spelled.removesuffix("_total"), f"{spelled}_total")


def _undeclared(mappings: list[dict[str, str]], metadata: MetricMetadata) -> Iterator[str]:
    for labels in mappings:
        yield from (label for label in labels if label not in metadata.labelnames)


def _zero(metadata: MetricMetadata) -> Value:
    return Histogram.empty(metadata.buckets) if isinstance(metadata, HistogramMetadata) else 0
