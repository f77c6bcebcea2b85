"""Running totals of a worker's counters, and what they grew by."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse.connectors.growth import grown
from hisparse.connectors.reading import read_whole
from hisparse.hot.counters import FETCH_METRIC, MISSES_METRIC, empty_histogram
from hisparse.kernels import COUNT_FIELDS
from hisparse.telemetry import Histogram, SkipReason
from hisparse.telemetry.values import ItemError, read_increment, show


@dataclass(frozen=True, slots=True)
class CounterTotals:
    """Everything a worker has counted since its counters were last set to zero.

    Attributes:
        groups: Layers of each index group.
        selections: int64 ``[groups, 4]``, in the order of `hisparse.kernels.COUNT_FIELDS`.
        loaded_bytes: int64 ``[layers]``, bytes copied to the hot buffers, in the order of `groups`.
        fetches: Gathers by duration, in the buckets `hisparse.hot.FETCH_METRIC` declares.
        request_misses: Misses of one request in one step, in the buckets `hisparse.hot.MISSES_METRIC` declares.
        epoch: How often the counters were set to zero; totals of two epochs have nothing in common.
        link_bytes_per_second: A level: speed of copies from host to device, 0 where not measured.
        stored_bytes: int64 ``[layers]``, bytes of rows copied to the host; zeros where not given.
    """

    groups: tuple[tuple[int, ...], ...]
    selections: NDArray[np.int64]
    loaded_bytes: NDArray[np.int64]
    fetches: Histogram
    request_misses: Histogram
    epoch: int = 0
    link_bytes_per_second: float = 0.0
    stored_bytes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        """Take zeros for what nobody counts."""
        if not self.stored_bytes.size:
            object.__setattr__(self, "stored_bytes", np.zeros_like(self.loaded_bytes))

    @classmethod
    def zero(cls, groups: tuple[tuple[int, ...], ...], *, epoch: int = 0) -> "CounterTotals":
        """Return the totals of counters that have counted nothing."""
        return cls(
            groups,
            np.zeros((len(groups), len(COUNT_FIELDS)), np.int64),
            np.zeros(sum(map(len, groups)), np.int64),
            empty_histogram(FETCH_METRIC),
            empty_histogram(MISSES_METRIC),
            epoch,
        )

    @classmethod
    def read(cls, totals: Any) -> "CounterTotals":
        """Return independent copies of what a source gave, without the link's speed, which is no count.

        Raises:
            ItemError: It is no such object, or an array or a histogram in it has another shape than `groups` say.
        """
        if not isinstance(totals, CounterTotals):
            raise ItemError(SkipReason.WRONG_TYPE, f"a sample must be CounterTotals, got {show(totals)}")
        groups = _read_groups(totals.groups)
        layers = sum(map(len, groups))
        return cls(
            groups,
            _read_counts(totals.selections, "selections", (len(groups), len(COUNT_FIELDS))),
            _read_counts(totals.loaded_bytes, "loaded_bytes", (layers,)),
            _read_histogram(totals.fetches, FETCH_METRIC),
            _read_histogram(totals.request_misses, MISSES_METRIC),
            read_whole(totals.epoch, "epoch"),
            stored_bytes=_read_counts(totals.stored_bytes, "stored_bytes", (layers,)),
        )

    @property
    def is_zero(self) -> bool:
        """Whether nothing was counted."""
        counted = self.selections.any() or self.loaded_bytes.any() or self.stored_bytes.any()
        return not (counted or self.fetches.count or self.request_misses.count)

    def since(self, before: "CounterTotals") -> "CounterTotals":
        """Return what was counted after `before`.

        Counters that were set to zero in between, which a new epoch or any count that fell tells, have counted
        all their totals after it. Counts are compared modulo 2**64, so one that wraps has not fallen.
        """
        if before.epoch != self.epoch or before.groups != self.groups:
            return self
        selections, loaded_bytes = self.selections - before.selections, self.loaded_bytes - before.loaded_bytes
        stored_bytes = self.stored_bytes - before.stored_bytes
        fetches = grown(self.fetches, before.fetches)
        request_misses = grown(self.request_misses, before.request_misses)
        numbers = (counted.min(initial=0) for counted in (selections, loaded_bytes, stored_bytes))
        if fetches is None or request_misses is None or min(numbers) < 0:
            return self
        return CounterTotals(
            self.groups,
            selections,
            loaded_bytes,
            fetches,
            request_misses,
            self.epoch,
            self.link_bytes_per_second,
            stored_bytes,
        )


def _read_groups(groups: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(groups, list | tuple) or not all(isinstance(members, list | tuple) for members in groups):
        raise ItemError(SkipReason.WRONG_TYPE, f"groups must be lists of layers, got {show(groups)}")
    return tuple(tuple(read_whole(layer, "a layer") for layer in members) for members in groups)


def _read_counts(counts: Any, what: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    if not isinstance(counts, np.ndarray) or counts.dtype.kind not in "iu" or counts.shape != shape:
        got = f"{counts.dtype}{list(counts.shape)}" if isinstance(counts, np.ndarray) else show(counts)
        raise ItemError(SkipReason.WRONG_TYPE, f"{what} must be int64{list(shape)}, got {got}")
    return counts.astype(np.int64)


def _read_histogram(histogram: Any, name: str) -> Histogram:
    expected = empty_histogram(name)
    if not isinstance(histogram, Histogram) or histogram.bounds != expected.bounds:
        raise ItemError(
            SkipReason.BUCKET_MISMATCH, f"{name} must be over {show(expected.bounds)}, got {show(histogram)}"
        )
    read_increment(histogram.sum, f"the sum of {name}")
    if min(histogram.counts) < 0:
        raise ItemError(SkipReason.NEGATIVE, f"{name} has fewer than no samples")
    return histogram.copy()
