"""Series of one rank by key: the name, and the encoded label values behind it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from re import compile as pattern
from typing import Any, Literal

from hisparse.telemetry.histogram import Histogram, check_sendable, sum_alike
from hisparse.telemetry.metadata import HistogramMetadata, Kind, MetricMetadata
from hisparse.telemetry.stats import Sample
from hisparse.telemetry.values import (
    MAX_NAMES,
    MAX_NUMBER,
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


# A sender's keys are the same step after step.
@lru_cache(maxsize=64)
def _names_of(keys: tuple[tuple[str, ...], ...]) -> tuple[dict[str, Kind], dict[str, int]]:
    kinds: dict[str, Kind] = {}
    sizes: dict[str, int] = {}
    for section, found in zip(SECTIONS, keys, strict=True):
        for key in found:
            name = known_name(key)
            if kinds.setdefault(name, KIND_OF[section]) != KIND_OF[section]:
                raise ItemError(SkipReason.TYPE_CONFLICT, f"{name} is of two types")
            sizes[name] = sizes.get(name, 0) + 1
    if len(kinds) > MAX_NAMES or max(sizes.values(), default=0) > MAX_SERIES:
        raise ItemError(SkipReason.TOO_MANY_SERIES, "more series than are kept")
    return kinds, sizes


class SeriesTable:
    """Values by series key, in a dict for each way they merge.

    Counts in `counters` and `histograms` add up whoever says them; those in `rank_counters` and
    `rank_histograms`, and levels, are kept by rank, one table a rank.

    Attributes:
        kinds: Type of each metric by name.
        info: Label mappings of info gauges by name.
        bound: Keys of the series that handles write to, by name; they and their types outlive `clear`.
    """

    __slots__ = (
        "bound",
        "counters",
        "gauges",
        "histograms",
        "info",
        "kinds",
        "rank_counters",
        "rank_histograms",
        "sizes",
    )

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
        self.bound: dict[str, set[str]] = {}

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
        if known is None or not self.has(key):
            bound = self.bound.get(name, ())
            size = self.sizes.get(name, 0)
            if key not in bound:
                if size + len(bound) >= MAX_SERIES:
                    raise ItemError(SkipReason.TOO_MANY_SERIES, f"has {MAX_SERIES} series already")
                self.sizes[name] = size + 1
        self.kinds[name] = kind
        return key

    def bind(self, name: Any, kind: Kind, labels: LabelValues) -> str:
        """Return the key of a series that a handle writes to from now on, whatever is cleared.

        Raises:
            ItemError: As `admit`.
        """
        key = self.admit(name, kind, labels)
        bound = self.bound.setdefault(name, set())
        if key not in bound and not self.has(key):
            # Counted among the bound ones from here on.
            self.sizes[name] -= 1
            if not self.sizes[name]:
                del self.sizes[name]
        bound.add(key)
        return key

    def has(self, key: str) -> bool:
        """Tell whether there is a series of this key. Reads only."""
        return (
            key in self.counters
            or key in self.gauges
            or key in self.histograms
            or key in self.rank_counters
            or key in self.rank_histograms
        )

    def is_empty(self) -> bool:
        """Tell whether there is neither a series nor info. Reads only."""
        return not (
            self.counters or self.gauges or self.histograms or self.rank_counters or self.rank_histograms or self.info
        )

    def names(self) -> frozenset[str]:
        """Return the metrics that have a series. Reads only."""
        return frozenset(split_key(key)[0] for key, _, _ in self.series())

    def count_kept(self) -> int:
        """Return the number of series, and of info gauges, that must be kept by rank. Reads only."""
        return len(self.gauges) + len(self.rank_counters) + len(self.rank_histograms) + len(self.info)

    def keeps(self) -> bool:
        """Tell whether there is anything that must be kept by rank. Reads only."""
        return bool(self.gauges or self.rank_counters or self.rank_histograms or self.info)

    def clear(self) -> None:
        """Forget all series, and all metrics but those of handles."""
        self.counters.clear()
        self.gauges.clear()
        self.histograms.clear()
        self.rank_counters.clear()
        self.rank_histograms.clear()
        self.info = {}
        if len(self.kinds) != len(self.bound):
            self.kinds = {name: self.kinds[name] for name in self.bound}
        self.sizes.clear()

    def merge_added(self, other: "SeriesTable") -> list[ItemError]:
        """Add what adds up whoever says it; return what there is no room for."""
        wrong: list[ItemError] = []
        is_alike = self._knows_as(other)
        if other.counters:
            if is_alike and not self.counters:
                self.counters.update(other.counters)
            else:
                self._add_numbers(self.counters, other.counters, wrong)
        if other.histograms:
            if is_alike and not self.histograms:
                self.histograms.update({key: value.copy() for key, value in other.histograms.items()})
            else:
                self._add_histograms(self.histograms, other.histograms, wrong)
        return wrong

    def merge_kept(self, other: "SeriesTable") -> list[ItemError]:
        """Add what is kept by rank, levels and info replaced; return what there is no room for."""
        wrong: list[ItemError] = []
        is_alike = self._knows_as(other)
        if other.rank_counters:
            if is_alike and not self.rank_counters:
                self.rank_counters.update(other.rank_counters)
            else:
                self._add_numbers(self.rank_counters, other.rank_counters, wrong)
        if other.rank_histograms:
            if is_alike and not self.rank_histograms:
                self.rank_histograms.update({key: value.copy() for key, value in other.rank_histograms.items()})
            else:
                self._add_histograms(self.rank_histograms, other.rank_histograms, wrong)
        for key, value in other.gauges.items():
            if key in self.gauges or self._has_room(key, "gauge", wrong):
                self.gauges[key] = value
        for name, found in other.info.items():
            self.info[name] = [dict(labels) for labels in found]
        return wrong

    def _knows_as(self, other: "SeriesTable") -> bool:
        """Tell whether this table knows the metrics that `other` knows; an empty one learns them."""
        if not self.kinds:
            self.kinds.update(other.kinds)
            self.sizes.update(other.sizes)
            return True
        return self.kinds == other.kinds and self.sizes == other.sizes

    def _add_numbers(
        self, mine: dict[str, int | float], theirs: dict[str, int | float], wrong: list[ItemError]
    ) -> None:
        for key, value in theirs.items():
            old = mine.get(key)
            if old is None:
                if self._has_room(key, "counter", wrong):
                    mine[key] = value
                continue
            total = old + value
            if total <= MAX_NUMBER:
                mine[key] = total
            else:
                wrong.append(ItemError(SkipReason.OUT_OF_RANGE, f"{key} would add up to more than 2**53"))

    def _add_histograms(self, mine: dict[str, Histogram], theirs: dict[str, Histogram], wrong: list[ItemError]) -> None:
        for key, value in theirs.items():
            old = mine.get(key)
            if old is None:
                if self._has_room(key, "histogram", wrong):
                    mine[key] = value.copy()
                continue
            try:
                check_sendable(old.sum + value.sum, key)
                old.merge(value)
            except ItemError as error:
                wrong.append(error)

    def _has_room(self, key: str, kind: Kind, wrong: list[ItemError]) -> bool:
        try:
            name, labels = split_key(key)
            self.admit(name, kind, labels)
        except ItemError as error:
            wrong.append(error)
            return False
        return True

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
        keys = tuple(tuple(self.section(section)) for section in SECTIONS)
        kinds, sizes = _names_of(keys)
        self.kinds, self.sizes = kinds.copy(), sizes.copy()
        for name in self.info:
            known_name(name)
        if len(self.info) > MAX_NAMES or any(len(found) > MAX_SERIES for found in self.info.values()):
            raise ItemError(SkipReason.TOO_MANY_SERIES, "more info than is kept")

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


def check_declared(catalogue: Mapping[str, MetricMetadata], name: Any, bounds: tuple[float, ...]) -> None:
    """Refuse a histogram over other bounds than the catalogue declares: the next one over them would not fit.

    Raises:
        ItemError: It is one.
    """
    declared = catalogue.get(name) if isinstance(name, str) else None
    buckets = declared.buckets if isinstance(declared, HistogramMetadata) else bounds
    if bounds is not buckets and bounds != buckets:
        raise ItemError(
            SkipReason.BUCKET_MISMATCH, f"bucket bounds differ: declared {show(buckets)}, got {show(bounds)}"
        )


def section_of(catalogue: Mapping[str, MetricMetadata], name: str, kind: Kind) -> Section:
    """Return where a series belongs: what is declared to add up over ranks needs no keeping apart."""
    if kind == "gauge":
        return "gauges"
    metadata = catalogue.get(name)
    adds_up = metadata is not None and metadata.across_ranks == "sum"
    if kind == "counter":
        return "counters" if adds_up else "rank_counters"
    return "histograms" if adds_up else "rank_histograms"


def sum_tables(tables: Sequence[SeriesTable]) -> SeriesTable | None:
    """Return a table of what adds up in `tables`, if all have the same series in it, in the same order. Reads only."""
    first = tables[0]
    names, histogram_names = list(first.counters), list(first.histograms)
    for table in tables:
        if list(table.counters) != names or list(table.histograms) != histogram_names:
            return None
    total = SeriesTable()
    sums = list(map(sum, zip(*(table.counters.values() for table in tables), strict=True)))
    if sums and max(sums) > MAX_NUMBER:
        return None
    total.counters = dict(zip(names, sums, strict=True))
    for key, histograms in zip(
        histogram_names, zip(*(table.histograms.values() for table in tables), strict=True), strict=True
    ):
        histogram = sum_alike(histograms)
        if histogram is None:
            return None
        total.histograms[key] = histogram
    total.kinds, total.sizes = first.kinds.copy(), first.sizes.copy()
    return total
