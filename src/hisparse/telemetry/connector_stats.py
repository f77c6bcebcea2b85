"""Statistics of a HiSparse connector: those operators know, and any number of labelled metrics."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hisparse.telemetry.catalogue import CATALOGUE
from hisparse.telemetry.hisparse_stats import HiSparseKVConnectorStats
from hisparse.telemetry.histogram import Histogram
from hisparse.telemetry.metadata import MetricMetadata
from hisparse.telemetry.offload_stats import OffloadingConnectorStats
from hisparse.telemetry.stats import Sample

METRICS_KEY = "metrics"
# Where the plain form of an `OffloadingConnectorStats` holds its own data.
_SECTIONS = frozenset(["types", "data", "info"])


class HiSparseConnectorStats(HiSparseKVConnectorStats):
    """`HiSparseKVConnectorStats` with a section ``"metrics"``: the plain form of an `OffloadingConnectorStats`.

    The section is there once something is recorded in it, so that a payload without it reads as it always did.
    What an `OffloadingConnectorStats` says is added to it, so that this container holds what either of both says.
    """

    def __init__(
        self, data: Any = None, *, rank: int | None = None, catalogue: Mapping[str, MetricMetadata] = CATALOGUE
    ) -> None:
        """Start empty and aggregate `data`; `catalogue` gives the buckets of lists of samples."""
        self._metrics = OffloadingConnectorStats(catalogue=catalogue)
        self._metrics.rank = self.rank_of(data, rank)
        super().__init__(data, rank=rank)

    def fresh(self) -> "HiSparseConnectorStats":
        """Return an empty container of this kind without a rank. Reads only."""
        return HiSparseConnectorStats(catalogue=self._metrics.catalogue)

    @property
    def metrics(self) -> OffloadingConnectorStats:
        """The labelled metrics, to be read; recording in this container counts what it skips."""
        return self._metrics

    def increase_counter(self, name: str, amount: float = 1, labelvalues: Sequence[str | int] = ()) -> None:
        """Add `amount` >= 0 to a counter; 0 makes the series exist."""
        self._metrics.increase_counter(name, amount, labelvalues)
        self._take_errors()

    def set_gauge(self, name: str, value: float, labelvalues: Sequence[str | int] = ()) -> None:
        """Set a gauge; the latest value stands."""
        self._metrics.set_gauge(name, value, labelvalues)
        self._take_errors()

    def merge_histogram(self, name: str, histogram: Histogram, labelvalues: Sequence[str | int] = ()) -> None:
        """Add samples that were counted elsewhere, over the bounds the catalogue declares for `name`."""
        self._metrics.merge_histogram(name, histogram, labelvalues)
        self._take_errors()

    def set_info(self, name: str, labels: Mapping[str, Any]) -> None:
        """Replace the labels of an info gauge."""
        self._metrics.set_info(name, labels)
        self._take_errors()

    def _merge_rank(self, rank: int | None, data: Mapping[str, Any]) -> None:
        if METRICS_KEY not in data and _SECTIONS.isdisjoint(data):
            super()._merge_rank(rank, data)
            return
        section = data.get(METRICS_KEY)
        if isinstance(section, Mapping):
            self._metrics.merge_as(section, rank)
        else:
            self._metrics.aggregate(section)
        if direct := {key: value for key, value in data.items() if key in _SECTIONS}:
            self._metrics.merge_as(direct, rank)
        self._take_errors()
        super()._merge_rank(
            rank, {key: value for key, value in data.items() if key != METRICS_KEY and key not in _SECTIONS}
        )

    def _aggregate(self, other: Any) -> None:
        if isinstance(other, HiSparseConnectorStats) and other is not self:
            # The section adds its tables up: its plain form would be made and read again, half the cost of a step.
            self._metrics.aggregate(other.metrics)
            self._take_errors()
            super()._aggregate(super(HiSparseConnectorStats, other).to_dict())
        elif type(other) is OffloadingConnectorStats:
            self._metrics.aggregate(other)
            self._take_errors()
        else:
            super()._aggregate(other)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form; it survives msgpack, JSON and pickle. Reads only."""
        section = {} if self._metrics.is_empty() else {METRICS_KEY: self._metrics.to_dict()}
        return {**super().to_dict(), **section}

    def samples(self) -> Iterator[Sample]:
        """Yield what `HiSparseKVConnectorStats` yields, then every labelled series."""
        yield from super().samples()
        yield from self._metrics.samples()

    def info(self) -> Mapping[str, list[dict[str, str]]]:
        """Return the labels of the info gauges."""
        return self._metrics.info()

    def is_empty(self) -> bool:
        """Tell whether nothing is recorded, skipped items included. Reads only."""
        return self._metrics.is_empty() and super().is_empty()

    def reset(self) -> None:
        """Forget everything recorded."""
        super().reset()
        self._metrics.reset()

    def __eq__(self, other: object) -> bool:
        """Compare type, data and skipped items."""
        return isinstance(other, type(self)) and self._metrics == other.metrics and super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # containers change, so they are no keys

    def _take_errors(self) -> None:
        """Count here what the section skipped: one container reports once."""
        for reason, count in self._metrics.errors.items():
            self.skip(reason, self._metrics.examples.get(reason, reason), count)
        self._metrics.errors, self._metrics.examples = {}, {}
