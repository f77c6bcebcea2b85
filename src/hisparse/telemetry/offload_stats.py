"""Self-describing statistics: any connector records any metric, and the payload says of which type it is."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hisparse.telemetry.catalogue import CATALOGUE
from hisparse.telemetry.histogram import Histogram, observe_each
from hisparse.telemetry.metadata import HistogramMetadata, Kind, MetricMetadata
from hisparse.telemetry.stats import KVConnectorStats, Sample
from hisparse.telemetry.values import (
    MAX_NAMES,
    MAX_SERIES,
    ItemError,
    SkipReason,
    encode_labels,
    read_increment,
    read_labels,
    read_number,
    read_text,
    show,
)

# For sample lists of a metric that no catalogue declares: one bucket a decade, microseconds to terabytes.
DEFAULT_BUCKETS = tuple(10.0**power for power in range(-6, 13))
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_KINDS: dict[Any, Kind] = {"counter": "counter", "gauge": "gauge", "histogram": "histogram"}


class OffloadingConnectorStats(KVConnectorStats):
    """Counters, gauges and histograms by name and label values, with their types.

    `data` is ``{"types": {name: type}, "data": {name: {label values: value}}, "info": {name: [labels]}}``
    with tuples of text as label values. Counters sum, gauges keep the latest, histograms accumulate as bucket
    counts, and info keeps the latest. In the plain form label values are one text (see `encode_labels`).
    """

    def __init__(self, data: Any = None, *, catalogue: Mapping[str, MetricMetadata] = CATALOGUE) -> None:
        """Start empty and aggregate `data`; `catalogue` gives the buckets of lists of samples."""
        self._catalogue = catalogue
        super().__init__(data)

    def _empty(self) -> dict[str, Any]:
        return {"types": {}, "data": {}, "info": {}}

    def increase_counter(self, name: str, amount: float = 1, labelvalues: Sequence[str | int] = ()) -> None:
        """Add `amount` >= 0 to a counter; 0 makes the series exist."""
        self._record(name, "counter", labels=labelvalues, value=amount)

    def set_gauge(self, name: str, value: float, labelvalues: Sequence[str | int] = ()) -> None:
        """Set a gauge; the latest value stands."""
        self._record(name, "gauge", labels=labelvalues, value=value)

    def observe_histogram(
        self, name: str, samples: float | Iterable[float], labelvalues: Sequence[str | int] = ()
    ) -> None:
        """Count one sample or several in the buckets that the catalogue declares for `name`."""
        values = list(samples) if isinstance(samples, Iterable) else [samples]
        self._record(name, "histogram", labels=labelvalues, value=values)

    def merge_histogram(self, name: str, histogram: Histogram, labelvalues: Sequence[str | int] = ()) -> None:
        """Add samples that were counted elsewhere, over the bounds the catalogue declares for `name`."""
        self._record(name, "histogram", labels=labelvalues, value=histogram.to_dict())

    def set_info(self, name: str, labels: Mapping[str, Any]) -> None:
        """Replace the labels of an info gauge."""
        self._merge_info({name: [labels]})

    def _record(self, name: Any, kind: Kind, *, labels: Any, value: Any) -> None:
        try:
            # A lone text is one label value here; only payload keys carry encoded labels.
            key = (labels,) if isinstance(labels, str) else tuple(labels)
            self._add(name, kind, key=key, value=value)
        except (ItemError, TypeError) as error:
            reason = error.reason if isinstance(error, ItemError) else SkipReason.LABEL_MISMATCH
            self.skip(reason, f"{show(name)}: {error}")

    def _add(self, name: Any, kind: Kind, *, key: Any, value: Any) -> None:
        types, labels = self.data["types"], read_labels(key)
        known = types.get(name) if isinstance(name, str) else None
        if known is None:
            _check_new_name(name, len(types))
        elif known != kind:
            raise ItemError(SkipReason.TYPE_CONFLICT, f"is a {known} here and a {kind} in the statistics merged")
        series = self.data["data"].get(name, {})
        if labels not in series and len(series) >= MAX_SERIES:
            raise ItemError(SkipReason.TOO_MANY_SERIES, f"has {MAX_SERIES} series already")
        series[labels] = self._combined(name, kind, old=series.get(labels), value=value)
        types[name] = kind
        self.data["data"][name] = series

    def _combined(self, name: str, kind: Kind, *, old: Any, value: Any) -> int | float | Histogram:
        if kind == "counter":
            return (old or 0) + read_increment(value, "an increment")
        if kind == "gauge":
            return read_number(value, "a level")
        added = self._read_histogram(name, old, value)
        if old is None:
            return added
        merged: Histogram = old
        merged.merge(added)
        return merged

    def _read_histogram(self, name: str, old: Histogram | None, value: Any) -> Histogram:
        if isinstance(value, Mapping):
            return Histogram.from_dict(value)
        if not isinstance(value, list | tuple):
            raise ItemError(SkipReason.WRONG_TYPE, f"must be a histogram or a list of samples, got {show(value)}")
        declared = self._catalogue.get(name)
        default = declared.buckets if isinstance(declared, HistogramMetadata) else DEFAULT_BUCKETS
        histogram = Histogram.empty(old.bounds if old else default)
        self.skip_each(observe_each(histogram, value, name))
        return histogram

    def _merge(self, data: Mapping[str, Any]) -> None:
        for key in data:
            if key not in {"types", "data", "info"}:
                self.skip(SkipReason.UNKNOWN_KEY, f"unknown section {show(key)}")
        types, metrics, info = (data.get(key) for key in ("types", "data", "info"))
        if info is not None:
            self._merge_info(info)
        if types is None and metrics is None:
            return
        if not isinstance(types, Mapping) or not isinstance(metrics, Mapping):
            self.skip(
                SkipReason.WRONG_TYPE,
                f"types and data must be mappings, got {show(types)} and {show(metrics)}",
            )
            return
        for name, series in metrics.items():
            self._merge_metric(name, types.get(name), series)

    def _merge_metric(self, name: Any, kind: Any, series: Any) -> None:
        kind = _KINDS.get(kind) if isinstance(kind, str) else None
        if kind is None or not isinstance(series, Mapping):
            self.skip(SkipReason.WRONG_TYPE, f"{show(name)} needs a known type and a mapping, got {show(series)}")
            return
        for key, value in series.items():
            try:
                self._add(name, kind, key=key, value=value)
            except ItemError as error:
                self.skip(error.reason, f"{show(name)}: {error}")

    def _merge_info(self, info: Any) -> None:
        if not isinstance(info, Mapping):
            self.skip(SkipReason.WRONG_TYPE, f"info must be a mapping, got {show(info)}")
            return
        for name, mappings in info.items():
            try:
                _check_new_name(name, len(self.data["info"]))
                self.data["info"][name] = _read_info(mappings)
            except ItemError as error:
                self.skip(error.reason, f"{show(name)}: {error}")

    def _plain(self) -> dict[str, Any]:
        metrics = {
            name: {
                encode_labels(labels): value.to_dict() if isinstance(value, Histogram) else value
                for labels, value in series.items()
            }
            for name, series in self.data["data"].items()
        }
        plain: dict[str, Any] = {"types": dict(self.data["types"]), "data": metrics}
        if self.data["info"]:
            plain["info"] = {name: [dict(labels) for labels in found] for name, found in self.data["info"].items()}
        return plain

    def samples(self) -> Iterator[Sample]:
        """Yield every series."""
        for name, series in self.data["data"].items():
            kind = self.data["types"][name]
            for labels, value in series.items():
                yield Sample(name, kind, labels, value)

    def info(self) -> Mapping[str, list[dict[str, str]]]:
        """Return the labels of the info gauges."""
        info: dict[str, list[dict[str, str]]] = self.data["info"]
        return info

    def reduce(self) -> dict[str, int | float]:
        """Return ``name`` or ``name:('a',)`` with its value; a histogram gives ``_count`` and ``_sum``."""
        reduced: dict[str, int | float] = {}
        for name, _, labels, value in self.samples():
            suffix = f":{labels}" if labels else ""
            if isinstance(value, Histogram):
                reduced[f"{name}_count{suffix}"] = value.count
                reduced[f"{name}_sum{suffix}"] = value.sum
            else:
                reduced[f"{name}{suffix}"] = value
        return reduced


def _check_new_name(name: Any, known: int) -> None:
    if not _NAME.fullmatch(read_text(name, "a metric name")):
        raise ItemError(SkipReason.WRONG_TYPE, f"a metric name must match {_NAME.pattern}, got {show(name)}")
    if known >= MAX_NAMES:
        raise ItemError(SkipReason.TOO_MANY_SERIES, f"{MAX_NAMES} metrics are known already")


def _read_info(mappings: Any) -> list[dict[str, str]]:
    found = [mappings] if isinstance(mappings, Mapping) else mappings
    if not isinstance(found, list | tuple) or not all(isinstance(labels, Mapping) for labels in found):
        raise ItemError(SkipReason.WRONG_TYPE, f"info must be mappings of labels, got {show(mappings)}")
    return [
        {read_text(key, "a label"): read_text(str(value), "a label value") for key, value in labels.items()}
        for labels in found
    ]
