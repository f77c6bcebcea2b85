"""A histogram as bucket counts, sum and count: what travels instead of samples."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hisparse.telemetry.values import ItemError, SkipReason, read_increment, read_number, show


@dataclass(slots=True)
class Histogram:
    """Counts of samples per bucket and their sum.

    Attributes:
        bounds: Upper bounds of the buckets, inclusive, strictly increasing, without the infinite one.
        counts: Samples in each bucket, not cumulative; one more than `bounds`, the last one unbounded.
        sum: Sum of the samples.
    """

    bounds: tuple[float, ...]
    counts: list[int]
    sum: float = 0.0

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> "Histogram":
        """Return a histogram over `bounds` without samples."""
        return cls(bounds, [0] * (len(bounds) + 1))

    @property
    def count(self) -> int:
        """Samples in all buckets."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count one sample that has been read by `read_increment`."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def merge(self, other: "Histogram") -> None:
        """Add the samples of `other`.

        Raises:
            ItemError: The bounds differ; nothing was added.
        """
        if other.bounds != self.bounds:
            raise ItemError(
                SkipReason.BUCKET_MISMATCH,
                f"bucket bounds differ: {show(self.bounds)} and {show(other.bounds)}",
            )
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def copy(self) -> "Histogram":
        """Return an independent histogram with the same samples."""
        return Histogram(self.bounds, list(self.counts), self.sum)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form: ``{"bounds", "counts", "sum", "count"}``."""
        return {
            "bounds": list(self.bounds),
            "counts": list(self.counts),
            "sum": self.sum,
            "count": self.count,
        }

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> "Histogram":
        """Read the plain form.

        Raises:
            ItemError: A part is missing or malformed, or the count is not the sum of the bucket counts.
        """
        try:
            bounds, counts = payload["bounds"], payload["counts"]
            total, samples = payload["sum"], payload["count"]
        except KeyError as error:
            raise ItemError(SkipReason.WRONG_TYPE, f"a histogram needs {error}, got {show(payload)}") from error
        if not isinstance(bounds, list | tuple) or not isinstance(counts, list | tuple):
            raise ItemError(SkipReason.WRONG_TYPE, f"histogram bounds and counts must be lists, got {show(payload)}")
        edges = tuple(float(read_number(bound, "a bucket bound")) for bound in bounds)
        filled = [_whole(count) for count in counts]
        if len(filled) != len(edges) + 1 or sum(filled) != samples or not _increasing(edges):
            raise ItemError(SkipReason.BUCKET_MISMATCH, f"histogram does not add up: {show(payload)}")
        return cls(edges, filled, float(read_increment(total, "a histogram's sum")))


def _whole(count: Any) -> int:
    number = read_increment(count, "a bucket count")
    if not isinstance(number, int):
        raise ItemError(SkipReason.WRONG_TYPE, f"a bucket count must be whole, got {number}")
    return number


def _increasing(bounds: tuple[float, ...]) -> bool:
    return bool(bounds) and all(low < high for low, high in pairwise(bounds))


def plus(total: "Value", value: "Value") -> "Value":
    """Return the sum of two numbers, or `total` with the samples of `value` added to it.

    Raises:
        ItemError: One is a histogram and the other is not, or their bounds differ; nothing was added.
    """
    if isinstance(total, Histogram) and isinstance(value, Histogram):
        total.merge(value)
        return total
    if isinstance(total, Histogram) or isinstance(value, Histogram):
        raise ItemError(SkipReason.TYPE_CONFLICT, f"cannot add {show(value)} to {show(total)}")
    return total + value


def observe_each(histogram: Histogram, samples: Iterable[Any], what: str) -> list[ItemError]:
    """Count every usable sample; return what was wrong with the others."""
    wrong = []
    for sample in samples:
        try:
            histogram.observe(read_increment(sample, what))
        except ItemError as error:
            wrong.append(error)
    return wrong


Value = int | float | Histogram
