"""Running totals of one engine: the one place from which log line and Prometheus read."""

from collections.abc import Collection, Iterator
from itertools import product
from threading import Lock

from hisparse.telemetry.catalogue import Catalogue
from hisparse.telemetry.deprecated import current
from hisparse.telemetry.histogram import Histogram, Value, plus
from hisparse.telemetry.metadata import HistogramMetadata, MetricMetadata
from hisparse.telemetry.ranks import added, decide, highest
from hisparse.telemetry.stats import KVConnectorStats, Sample
from hisparse.telemetry.values import MAX_RANKS, MAX_SERIES, ItemError, LabelValues, SkipReason

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
        self._shares: dict[str, dict[LabelValues, dict[int | None, Value]]] = {}
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
        """Add what `stats` recorded; return an example of each reason for which an item was skipped."""
        with self._lock:
            skipped = dict(stats.examples)
            for reason, count in stats.errors.items():
                self._count_skipped(reason, count)
            for sample in current(stats.samples(), self._catalogue.deprecated):
                if sample.name not in self._catalogue.hidden:
                    self._apply(sample, skipped)
            for name, mappings in stats.info().items():
                if name not in self._catalogue.hidden:
                    self._set_info(name, mappings, skipped)
            return skipped

    def set_level(self, name: str, value: float) -> None:
        """Set a gauge without labels."""
        with self._lock:
            self._apply(Sample(name, "gauge", (), value), {})

    def skip(self, reason: SkipReason) -> None:
        """Count an item that never became statistics."""
        with self._lock:
            self._count_skipped(reason, 1)

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
        if metadata.across_ranks == "sum" and kind != "gauge":
            series[labels] = plus(series[labels], value)
        else:
            self._add_share(sample, metadata, series)
        self._recorded.add(name)
        self._touched.add(name)

    def _add_share(self, sample: Sample, metadata: MetricMetadata, series: Series) -> None:
        """Add what a rank, or somebody for the whole engine, said of a metric that ranks do not add up."""
        name, kind, labels, value = sample
        rank = sample.rank
        by_labels = self._shares.setdefault(name, {})
        if rank is None and (kind == "gauge" or labels not in by_labels):
            # A level said for the whole engine stands for all ranks until they speak again.
            by_labels.pop(labels, None)
            series[labels] = value if kind == "gauge" else plus(series[labels], value)
            return
        shares = by_labels.setdefault(labels, {} if kind == "gauge" else {None: added([series[labels]])})
        if rank not in shares and len(shares) > MAX_RANKS:
            raise ItemError(SkipReason.UNKNOWN_RANK, f"{MAX_RANKS} ranks are known already, got rank {rank}")
        shares[rank] = plus(shares[rank], value) if kind != "gauge" and rank in shares else added([value])
        shown = decide(metadata.across_ranks, kind, shares)
        series[labels] = shown if kind == "gauge" else highest(series[labels], shown)

    def _declared(self, name: str, unit: str | None = None) -> MetricMetadata:
        metadata = self._catalogue.get(name)
        if name in self._catalogue.deprecated:
            raise ItemError(SkipReason.DEPRECATED_NAME, "is an old name: send its replacement alone")
        if metadata is None:
            raise ItemError(SkipReason.UNDECLARED_METRIC, "is not declared: add it to the pipeline's catalogue")
        if unit is not None and metadata.unit != unit:
            raise ItemError(SkipReason.TYPE_CONFLICT, f"is declared in unit {metadata.unit!r}, got {unit}")
        return metadata

    def _create(self, name: str, metadata: MetricMetadata, labels: LabelValues) -> None:
        series = self._values[name]
        pairs = zip(metadata.labelnames, labels, strict=True)
        for sibling in product(*(metadata.labelvalues.get(label, (value,)) for label, value in pairs)):
            series.setdefault(sibling, _zero(metadata))

    def _count_skipped(self, reason: str, count: int) -> None:
        if ERRORS_METRIC in self._values:
            series = self._values[ERRORS_METRIC]
            key = (str(reason),)
            if key not in series and len(series) >= MAX_SERIES:
                key = (str(SkipReason.INTERNAL),)
            series[key] = plus(series.get(key, 0), count)
            self._recorded.add(ERRORS_METRIC)
            self._touched.add(ERRORS_METRIC)

    def _set_info(self, name: str, mappings: list[dict[str, str]], skipped: dict[str, str]) -> None:
        try:
            metadata = self._declared(name, unit="info")
        except ItemError as error:
            self._count_skipped(error.reason, 1)
            skipped.setdefault(str(error.reason), f"{name}: {error}")
            return
        self._values[name] = {tuple(labels.get(label, "") for label in metadata.labelnames): 1 for labels in mappings}
        self._touched.add(name)
        for label in _undeclared(mappings, metadata):
            self._count_skipped(SkipReason.LABEL_MISMATCH, 1)
            skipped.setdefault(SkipReason.LABEL_MISMATCH, f"{name}: label {label!r} is not declared")


def _undeclared(mappings: list[dict[str, str]], metadata: MetricMetadata) -> Iterator[str]:
    for labels in mappings:
        yield from (label for label in labels if label not in metadata.labelnames)


def _zero(metadata: MetricMetadata) -> Value:
    return Histogram.empty(metadata.buckets) if isinstance(metadata, HistogramMetadata) else 0
