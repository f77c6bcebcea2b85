"""Self-describing statistics: any connector records any metric, and the payload says of which type it is."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from hisparse.telemetry.catalogue import CATALOGUE
from hisparse.telemetry.deprecated import replacing
from hisparse.telemetry.handles import CounterHandle, HistogramHandle, RefusedCounter, RefusedHistogram
from hisparse.telemetry.histogram import Histogram, as_samples, check_sendable, observe_each
from hisparse.telemetry.metadata import HistogramMetadata, Kind, MetricMetadata
from hisparse.telemetry.ranks import decided
from hisparse.telemetry.samples import read_info, united
from hisparse.telemetry.series import SeriesTable, check_declared, check_new_name, section_of
from hisparse.telemetry.stats import KVConnectorStats, RankedSample, Sample
from hisparse.telemetry.values import (
    MAX_NUMBER,
    MAX_RANKS,
    UNREAD_RANK,
    ItemError,
    SkipReason,
    read_increment,
    read_labels,
    read_number,
    show,
)

# For sample lists of a metric that no catalogue declares: one bucket a decade, microseconds to terabytes.
DEFAULT_BUCKETS = tuple(10.0**power for power in range(-6, 13))
_NONE: Mapping[str, MetricMetadata] = MappingProxyType({})
_KINDS: dict[Any, Kind] = {"counter": "counter", "gauge": "gauge", "histogram": "histogram"}


class OffloadingConnectorStats(KVConnectorStats):
    """Counters, gauges and histograms by name and label values, with their types.

    `data` is ``{"types": {name: type}, "data": {name: {label values: value}}, "info": {name: [labels]}}``
    with tuples of text as label values, made when it is read; setting it replaces everything. Counters sum,
    gauges keep the latest, histograms accumulate as bucket counts, and info keeps the latest. In the plain form
    label values are one text (see `encode_labels`).

    What the catalogue declares to add up over ranks is in `data` whoever said it. Everything else another rank
    said is kept apart under ``"ranks"``, for up to `MAX_RANKS` of them. What comes under an old name that the
    catalogue derives from another is kept under the new one, unless the same sender sent both.

    Attributes:
        catalogue: Merge rules and buckets.
        own: Series of its own rank, and those that add up whoever says them.
    """

    def __init__(
        self, data: Any = None, *, rank: int | None = None, catalogue: Mapping[str, MetricMetadata] = CATALOGUE
    ) -> None:
        """Start empty and aggregate `data`; `catalogue` gives merge rules, and the buckets of lists of samples."""
        self.catalogue = catalogue
        self.own = SeriesTable()
        self._ranks: dict[int | None, SeriesTable] = {}
        super().__init__(data, rank=rank)

    @property
    def data(self) -> dict[str, Any]:
        """What this rank said, and what adds up whoever said it."""
        return self.own.view()

    @data.setter
    def data(self, data: dict[str, Any]) -> None:
        self.own.clear()
        self._ranks = {}
        if data:
            self._merge(data)

    def _empty(self) -> dict[str, Any]:
        return {}

    def is_empty(self) -> bool:
        """Tell whether nothing is recorded, skipped items included. Reads only."""
        return not self.errors and not self.has_ranks and self.own.is_empty()

    @property
    def has_ranks(self) -> bool:
        """Tell whether something of another rank is kept. Reads only."""
        return bool(self._ranks) and any(not table.is_empty() for table in self._ranks.values())

    @property
    def tables(self) -> dict[int | None, SeriesTable]:
        """Series by rank, its own rank's among them; those of no rank first, since levels of ranks replace theirs."""
        if not self._ranks:
            return {self.rank: self.own}
        tables = {rank: table for rank, table in self._ranks.items() if not table.is_empty()} | {self.rank: self.own}
        return {rank: tables[rank] for rank in sorted(tables, key=_none_first)}

    @tables.setter
    def tables(self, tables: Mapping[int | None, SeriesTable]) -> None:
        self.own = tables[self.rank]
        self._ranks = {rank: table for rank, table in tables.items() if rank != self.rank}

    def fresh(self) -> "OffloadingConnectorStats":
        """Return an empty container of this kind without a rank. Reads only."""
        return OffloadingConnectorStats(catalogue=self.catalogue)

    def counter(self, name: str, labelvalues: Sequence[str | int] = ()) -> CounterHandle:
        """Return a counter of this container to add to many times; it outlives `reset` and `take`."""
        try:
            key = self.own.bind(name, "counter", read_labels(_alone(labelvalues)))
        except ItemError as error:
            self._refuse(name, error)
            return RefusedCounter(name, error, refuse=self._refuse)
        return CounterHandle(self.own.section(section_of(self.catalogue, name, "counter")), key, refuse=self._refuse)

    def histogram(self, name: str, labelvalues: Sequence[str | int] = ()) -> HistogramHandle:
        """Return a histogram of this container to count samples in many times; it outlives `reset` and `take`."""
        try:
            key = self.own.bind(name, "histogram", read_labels(_alone(labelvalues)))
        except ItemError as error:
            self._refuse(name, error)
            return RefusedHistogram(name, error, refuse=self._refuse)
        values = self.own.section(section_of(self.catalogue, name, "histogram"))
        return HistogramHandle(values, key, bounds=self._bounds(name), refuse=self._refuse)

    def increase_counter(self, name: str, amount: float = 1, labelvalues: Sequence[str | int] = ()) -> None:
        """Add `amount` >= 0 to a counter; 0 makes the series exist."""
        # Exact types: what is none of these may raise when it is compared.
        is_plain = type(name) is str and type(labelvalues) is tuple and type(amount) in {int, float}
        if is_plain and not labelvalues and 0 <= amount <= MAX_NUMBER:
            for values in (self.own.counters, self.own.rank_counters):
                if name in values and values[name] + amount <= MAX_NUMBER:
                    values[name] += amount
                    return
        self._record(name, "counter", labels=labelvalues, value=amount)

    def set_gauge(self, name: str, value: float, labelvalues: Sequence[str | int] = ()) -> None:
        """Set a gauge; the latest value stands."""
        self._record(name, "gauge", labels=labelvalues, value=value)

    def observe_histogram(
        self, name: str, samples: float | Iterable[float], labelvalues: Sequence[str | int] = ()
    ) -> None:
        """Count one sample or several, an array for example, in the buckets that the catalogue declares for `name`."""
        try:
            self._record(name, "histogram", labels=labelvalues, value=as_samples(samples))
        except ItemError as error:
            self._refuse(name, error)

    def merge_histogram(self, name: str, histogram: Histogram, labelvalues: Sequence[str | int] = ()) -> None:
        """Add samples that were counted elsewhere, over the bounds the catalogue declares for `name`."""
        self._record(name, "histogram", labels=labelvalues, value=histogram)

    def set_info(self, name: str, labels: Mapping[str, Any]) -> None:
        """Replace the labels of an info gauge."""
        self._set_info(self.own, name, [labels])

    def _record(self, name: Any, kind: Kind, *, labels: Any, value: Any) -> None:
        try:
            self._add(self.own, name, kind, key=_alone(labels), value=value)
        except Exception as error:  # noqa: BLE001  recording must not end a step, whatever it is given
            self._refuse(name, error)

    def _refuse(self, name: Any, error: Exception) -> None:
        if isinstance(error, ItemError):
            self.skip(error.reason, f"{show(name)}: {error}")
        else:
            self.skip(SkipReason.WRONG_TYPE, f"{show(name)}: {show(error)}")

    def _add(self, kept: SeriesTable, name: Any, kind: Kind, *, key: Any, value: Any) -> None:
        """Add one item to the table of what is kept apart, or to what adds up."""
        section = section_of(self.catalogue, name, kind) if isinstance(name, str) else "gauges"
        table = self.own if section in {"counters", "histograms"} else kept
        labels = read_labels(key)
        if kind == "histogram":
            value = self._read_histogram(name, table, value)
        else:
            value = read_increment(value, "an increment") if kind == "counter" else read_number(value, "a level")
        series = table.admit(name, kind, labels)
        values = table.section(section)
        if kind == "gauge":
            self._replace_levels(kept, (series,))
            values[series] = value
        elif series not in values:
            values[series] = value
        elif kind == "counter":
            check_sendable(values[series] + value, name)
            values[series] += value
        else:
            check_sendable(values[series].sum + value.sum, name)
            values[series].merge(value)

    def _replace_levels(self, kept: SeriesTable, keys: Iterable[str]) -> None:
        """Drop what ranks said before, where `kept` is said for the whole engine."""
        speaks_for_all = kept is self.own if self.rank is None else kept is self._ranks.get(None)
        if speaks_for_all and self._ranks:
            for table in (self.own, *self._ranks.values()):
                if table is not kept:
                    for key in keys:
                        table.gauges.pop(key, None)

    def _read_histogram(self, name: Any, table: SeriesTable, value: Any) -> Histogram:
        if isinstance(value, Histogram | Mapping):
            return self._read_counted(name, value)
        histogram = Histogram.empty(self._bounds(name))
        if isinstance(value, np.ndarray):
            if histogram.observe_array(value):
                return histogram
            value = value.ravel().tolist()
        if not isinstance(value, list | tuple):
            raise ItemError(SkipReason.WRONG_TYPE, f"must be a histogram or a list of samples, got {show(value)}")
        known = [table.histograms.get(name), table.rank_histograms.get(name)] if isinstance(name, str) else []
        for held in known:
            if held is not None:
                histogram = Histogram.empty(held.bounds)
        self.skip_each(observe_each(histogram, value, name))
        return histogram

    def _read_counted(self, name: Any, value: "Histogram | Mapping[str, Any]") -> Histogram:
        if isinstance(value, Histogram):
            value.check()
            histogram = value.copy()
        else:
            histogram = Histogram.from_dict(value)
        check_declared(self.catalogue, name, histogram.bounds)
        return histogram

    def _bounds(self, name: Any) -> tuple[float, ...]:
        declared = self.catalogue.get(name) if isinstance(name, str) else None
        return declared.buckets if isinstance(declared, HistogramMetadata) else DEFAULT_BUCKETS

    def _kept(self, rank: int | None) -> SeriesTable:
        if rank == self.rank:
            return self.own
        if rank == UNREAD_RANK:
            raise ItemError(SkipReason.UNKNOWN_RANK, "taken for the whole engine, an unread rank would count twice")
        if rank not in self._ranks:
            if len(self._ranks) >= MAX_RANKS:
                raise ItemError(SkipReason.UNKNOWN_RANK, f"{MAX_RANKS} ranks are kept apart already, got rank {rank}")
            self._ranks[rank] = SeriesTable()
        return self._ranks[rank]

    def _aggregate(self, other: Any) -> None:
        if self._is_alike(other):
            self._merge_container(other, other.rank)
        else:
            super()._aggregate(other)

    def aggregate_as(self, other: Any, rank: int | None) -> Self:
        """Add `other` as `aggregate` does, as said by `rank` where it carries none itself."""
        if not self._is_alike(other):
            return super().aggregate_as(other, rank)
        self._merge_container(other, rank if other.rank is None else other.rank)
        return self

    def _is_alike(self, other: Any) -> bool:
        if type(other) is not type(self) or other is self or other.catalogue is not self.catalogue:
            return False
        return not other.old_names()

    def old_names(self) -> frozenset[str]:
        """Return the old names under which something is recorded here, as yet untranslated. Reads only."""
        deprecated: Mapping[str, MetricMetadata] = getattr(self.catalogue, "deprecated", _NONE)
        if deprecated.keys().isdisjoint(self.own.kinds.keys()):
            return frozenset()
        return self.own.names() & deprecated.keys()

    def _settle(self) -> None:
        """Translate what was recorded under old names, before another sender's new names come beside them."""
        if self.old_names():
            recorded = self.own.plain()
            self.own.clear()
            self._merge_rank(self.rank, recorded)

    def _merge_container(self, other: "OffloadingConnectorStats", rank: int | None) -> None:
        if other.errors:
            self._merge_errors(other.errors)
        self._settle()
        own = other.own
        if not other.has_ranks:
            self._merge_table(rank, own)
            return
        for spoken, table in other.tables.items():
            self._merge_table(rank if table is own else spoken, table)

    def _merge_table(self, rank: int | None, table: SeriesTable) -> None:
        """Add a table of another container, all of whose items have been read."""
        wrong = self.own.merge_added(table)
        if wrong:
            self.skip_each(wrong)
        if table.keeps():
            self.keep(rank, table)

    def keep(self, rank: int | None, table: SeriesTable) -> None:
        """Add what `rank` said in `table` and is kept by rank."""
        try:
            kept = self._kept(rank)
        except ItemError as error:
            self.skip(error.reason, str(error), table.count_kept())
            return
        if table.gauges:
            self._replace_levels(kept, table.gauges)
        self.skip_each(kept.merge_kept(table))

    def _merge(self, data: Mapping[str, Any]) -> None:
        self._merge_rank(self.rank, data)

    def _merge_rank(self, rank: int | None, data: Mapping[str, Any]) -> None:
        for key in data:
            if key not in {"types", "data", "info"}:
                self.skip(SkipReason.UNKNOWN_KEY, f"unknown section {show(key)}")
        types, metrics, info = (data.get(key) for key in ("types", "data", "info"))
        has_items = any(isinstance(part, Mapping) and len(part) for part in (metrics, info))
        lost: ItemError | None = None
        self._settle()
        try:
            kept = self._kept(rank) if has_items else self.own
        except ItemError as error:
            # What adds up counts whoever says it.
            lost, kept = error, SeriesTable()
        if info is not None:
            self._merge_info(kept, info)
        if isinstance(types, Mapping) and isinstance(metrics, Mapping):
            for name, series in metrics.items():
                self._merge_metric(kept, name, types.get(name), series=series, present=metrics.keys())
        elif types is not None or metrics is not None:
            self.skip(SkipReason.WRONG_TYPE, f"types and data must be mappings, got {show(types)} and {show(metrics)}")
        if lost is not None and (count := kept.count_kept()):
            self.skip(lost.reason, str(lost), count)

    def _merge_metric(self, kept: SeriesTable, name: Any, kind: Any, *, series: Any, present: Container[Any]) -> None:
        kind = _KINDS.get(kind) if isinstance(kind, str) else None
        if kind is None or not isinstance(series, Mapping):
            self.skip(SkipReason.WRONG_TYPE, f"{show(name)} needs a known type and a mapping, got {show(series)}")
            return
        deprecated: Mapping[str, MetricMetadata] = getattr(self.catalogue, "deprecated", _NONE)
        for key, value in series.items():
            target, labels = name, key
            try:
                if name in deprecated:
                    target, labels = replacing(name, read_labels(key), deprecated, present=present)
                self._add(kept, target, kind, key=labels, value=value)
            except ItemError as error:
                self.skip(error.reason, f"{show(name)}: {error}")

    def _merge_info(self, kept: SeriesTable, info: Any) -> None:
        if not isinstance(info, Mapping):
            self.skip(SkipReason.WRONG_TYPE, f"info must be a mapping, got {show(info)}")
            return
        for name, mappings in info.items():
            self._set_info(kept, name, mappings)

    def _set_info(self, kept: SeriesTable, name: Any, mappings: Any) -> None:
        try:
            check_new_name(name, 0)
            if name not in kept.info:
                check_new_name(name, len(kept.info))
            kept.info[name] = read_info(mappings)
        except Exception as error:  # noqa: BLE001  labels may be of somebody else's class
            self._refuse(name, error)

    def _plain(self) -> dict[str, Any]:
        return self.own.plain()

    def _plain_ranks(self) -> dict[int | None, dict[str, Any]]:
        return {rank: table.plain() for rank, table in self.tables.items() if table is not self.own}

    def samples(self) -> Iterator[Sample]:
        """Yield every series, by rank where several spoke."""
        for rank, table in self.tables.items():
            for sample in table.samples():
                yield sample if rank is None else RankedSample.of(sample, rank)

    def info(self) -> Mapping[str, list[dict[str, str]]]:
        """Return the labels of the info gauges, each mapping once."""
        if not self._ranks:
            return self.own.info
        names = dict.fromkeys(name for table in self.tables.values() for name in table.info)
        return {name: united(table.info.get(name, ()) for table in self.tables.values()) for name in names}

    def reduce(self) -> dict[str, int | float]:
        """Return ``name`` or ``name:('a',)`` with its value; a histogram gives ``_count`` and ``_sum``."""
        reduced: dict[str, int | float] = {}
        for (name, _, labels), value in decided(self.samples(), self.catalogue).items():
            suffix = f":{labels}" if labels else ""
            if isinstance(value, Histogram):
                reduced[f"{name}_count{suffix}"] = value.count
                reduced[f"{name}_sum{suffix}"] = value.sum
            else:
                reduced[f"{name}{suffix}"] = value
        return reduced


def _none_first(rank: int | None) -> int:
    return -1 if rank is None else rank


def _alone(labels: Any) -> Any:
    # A lone text is one label value here; only payload keys carry encoded labels.
    return (labels,) if isinstance(labels, str) else labels
