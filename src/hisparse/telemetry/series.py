"""Series of one rank by key: the name, and the encoded label values behind it."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from re import compile as pattern
from typing import Any, Literal

from hisparse.telemetry.histogram import Histogram
from hisparse.telemetry.metadata import Kind, MetricMetadata
from hisparse.telemetry.stats import Sample
from hisparse.telemetry.values import (
    MAX_NAMES,
    MAX_SERIES,
    ItemError,
    LabelValues,
    SkipReason,
    encode_labels,
    read_labels,
    read_text,
    show,
)

_NAME = pattern(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
Section = Literal["counters", "gauges", "histograms", "rank_counters", "rank_histograms"]
SECTIONS: tuple[Section, ...] = ("counters", "histograms", "gauges", "rank_counters", "rank_histograms")
KIND_OF: dict[str, Kind] = {
    "counters": "counter",
    "rank_counters": "counter",
    "gauges": "gauge",
    "histograms": "histogram",
    "rank_histograms": "histogram",
}


def check_new_name(name: Any, known: int) -> None:
    """Refuse what is no metric name, or one more than `MAX_NAMES`.

    Raises:
        ItemError: Either is the case.
    """
    if not _NAME.fullmatch(read_text(name, "a metric name")):
        raise ItemError(SkipReason.WRONG_TYPE, f"a metric name must match {_NAME.pattern}, got {show(name)}")
    if known >= MAX_NAMES:
        raise ItemError(SkipReason.TOO_MANY_SERIES, f"{MAX_NAMES} metrics are known already")


@lru_cache(maxsize=MAX_SERIES)
def split_key(key: str) -> tuple[str, LabelValues]:
    """Return the name and the label values of a series key.

    Raises:
        ItemError: It is no such key.
    """
    name, bracket, rest = key.partition("[")
    return name, read_labels(bracket + rest)


@lru_cache(maxsize=MAX_SERIES)
def known_name(key: str) -> str:
    """Return the metric name in a series key that is as `SeriesTable.admit` makes it.

    Raises:
        ItemError: It is not.
    """
    name, labels = split_key(key)
    check_new_name(name, 0)
    if key != name + encode_labels(labels):
        raise ItemError(SkipReason.LABEL_MISMATCH, f"series key must end in label values, got {show(key)}")
    return name


class SeriesTable:
    """Values by series key, in a dict for each way they merge.

    Counts in `counters` and `histograms` add up whoever says them; those in `rank_counters` and
    `rank_histograms`, and levels, are kept by rank, one table a rank.

    Attributes:
        kinds: Type of each metric by name.
        info: Label mappings of info gauges by name.
    """

    __slots__ = ("counters", "gauges", "histograms", "info", "kinds", "rank_counters", "rank_histograms", "sizes")

    def __init__(self) -> None:
        """Start without series."""
        self.counters: dict[str, int | float] = {}
        self.histograms: dict[str, Histogram] = {}
        self.gauges: dict[str, int | float] = {}
        self.rank_counters: dict[str, int | float] = {}
        self.rank_histograms: dict[str, Histogram] = {}
        self.info: dict[str, list[dict[str, str]]] = {}
        self.kinds: dict[str, Kind] = {}
        self.sizes: dict[str, int] = {}

    def section(self, section: Section) -> dict[str, Any]:
        """Return the values of a section."""
        values: dict[str, Any] = getattr(self, section)
        return values

    def admit(self, name: Any, kind: Kind, labels: LabelValues) -> str:
        """Return the key of a series, which may exist already; makes room for a new one.

        Raises:
            ItemError: The name is none, is of another type here, or there are too many series.
        """
        known = self.kinds.get(name) if isinstance(name, str) else None
        if known is None:
            check_new_name(name, len(self.kinds))
        elif known != kind:
            raise ItemError(SkipReason.TYPE_CONFLICT, f"is a {known} here and a {kind} in the statistics merged")
        key: str = name + encode_labels(labels)
        if not any(key in self.section(section) for section in SECTIONS):
            size = self.sizes.get(name, 0)
            if size >= MAX_SERIES:
                raise ItemError(SkipReason.TOO_MANY_SERIES, f"has {MAX_SERIES} series already")
            self.sizes[name] = size + 1
        self.kinds[name] = kind
        return key

    def is_empty(self) -> bool:
        """Tell whether there is neither a series nor info. Reads only."""
        return not (
            self.counters or self.gauges or self.histograms or self.rank_counters or self.rank_histograms or self.info
        )

    def keeps(self) -> bool:
        """Tell whether there is anything that must be kept by rank. Reads only."""
        return bool(self.gauges or self.rank_counters or self.rank_histograms or self.info)

    def clear(self, bound: Mapping[str, Kind]) -> None:
        """Forget all series, and all metrics but those of `bound`."""
        for section in SECTIONS:
            self.section(section).clear()
        self.info = {}
        self.kinds, self.sizes = dict(bound), dict.fromkeys(bound, 1)

    def adopt(self, other: "SeriesTable", sections: tuple[Section, ...]) -> None:
        """Take copies of the series in some sections of `other`; this table has no metrics yet."""
        for section in sections:
            values = other.section(section)
            if values:
                copies = {key: value.copy() for key, value in values.items()} if "hist" in section else values
                self.section(section).update(copies)
        self.kinds.update(other.kinds)
        self.sizes.update(other.sizes)

    def merge(self, other: "SeriesTable", sections: tuple[Section, ...]) -> Iterator[ItemError]:
        """Add some sections of `other`, levels replaced, and yield what there is no room for."""
        if not self.kinds:
            self.adopt(other, sections)
            return
        for section in sections:
            theirs = other.section(section)
            if theirs:
                yield from self._merge_section(self.section(section), theirs, KIND_OF[section])

    def _merge_section(self, mine: dict[str, Any], theirs: dict[str, Any], kind: Kind) -> Iterator[ItemError]:
        for key, value in theirs.items():
            try:
                old = mine.get(key)
                if old is None:
                    self.admit(*_named(key, kind))
                    mine[key] = value.copy() if kind == "histogram" else value
                elif kind == "counter":
                    mine[key] = old + value
                elif kind == "gauge":
                    mine[key] = value
                else:
                    old.merge(value)
            except ItemError as error:
                yield error

    def series(self) -> Iterator[tuple[str, Kind, Any]]:
        """Yield key, type and value of every series. Reads only."""
        for section in SECTIONS:
            kind = KIND_OF[section]
            for key, value in self.section(section).items():
                yield key, kind, value

    def samples(self) -> Iterator[Sample]:
        """Yield every series as a sample. Reads only."""
        for key, kind, value in self.series():
            name, labels = split_key(key)
            yield Sample(name, kind, labels, value)

    def count_names(self) -> None:
        """Learn the metrics from the series, whose keys came from elsewhere.

        Raises:
            ItemError: A key is none, a metric has two types, or there are too many series.
        """
        for section in SECTIONS:
            kind = KIND_OF[section]
            for key in self.section(section):
                name = known_name(key)
                if self.kinds.setdefault(name, kind) != kind:
                    raise ItemError(SkipReason.TYPE_CONFLICT, f"{name} is of two types")
                self.sizes[name] = self.sizes.get(name, 0) + 1
        for name in self.info:
            known_name(name)
        if (
            len(self.kinds) > MAX_NAMES
            or len(self.info) > MAX_NAMES
            or max(self.sizes.values(), default=0) > MAX_SERIES
        ):
            raise ItemError(SkipReason.TOO_MANY_SERIES, "more series than are kept")

    def view(self) -> dict[str, Any]:
        """Return ``{"types", "data", "info"}`` with tuples of label values as keys and the values themselves."""
        types: dict[str, Kind] = {}
        data: dict[str, dict[LabelValues, Any]] = {}
        for name, kind, labels, value in self.samples():
            types[name] = kind
            data.setdefault(name, {})[labels] = value
        return {"types": types, "data": data, "info": self.info}

    def plain(self) -> dict[str, Any]:
        """Return the view made of plain data only, label values as one text. Reads only."""
        view = self.view()
        metrics = {
            name: {
                encode_labels(labels): value.to_dict() if isinstance(value, Histogram) else value
                for labels, value in series.items()
            }
            for name, series in view["data"].items()
        }
        plain: dict[str, Any] = {"types": view["types"], "data": metrics}
        if self.info:
            plain["info"] = {name: [dict(labels) for labels in found] for name, found in self.info.items()}
        return plain


def section_of(catalogue: Mapping[str, MetricMetadata], name: str, kind: Kind) -> Section:
    """Return where a series belongs: what is declared to add up over ranks needs no keeping apart."""
    if kind == "gauge":
        return "gauges"
    metadata = catalogue.get(name)
    adds_up = metadata is not None and metadata.across_ranks == "sum"
    if kind == "counter":
        return "counters" if adds_up else "rank_counters"
    return "histograms" if adds_up else "rank_histograms"


def _named(key: str, kind: Kind) -> tuple[str, Kind, LabelValues]:
    name, labels = split_key(key)
    return name, kind, labels
