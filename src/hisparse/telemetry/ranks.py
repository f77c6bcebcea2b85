"""What several workers of one engine mean together.

A share is what one rank said, or, under None, what was said for the whole engine. What was said for the engine
adds to counts; as a level it replaces what ranks said before it, and ranks that speak after it replace it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hisparse.telemetry.histogram import Histogram, Value, plus
from hisparse.telemetry.metadata import AcrossRanks, Kind, MetricMetadata
from hisparse.telemetry.stats import Sample
from hisparse.telemetry.values import LabelValues

Shares = Mapping[int | None, Value]


class SeriesName(NamedTuple):
    """What tells one series from another within an engine."""

    name: str
    kind: Kind
    labels: LabelValues


def rule_of(catalogue: Mapping[str, MetricMetadata], name: str, kind: Kind) -> AcrossRanks:
    """Return how the ranks of a metric combine; of one that is not declared, levels by the highest, counts by sum."""
    metadata = catalogue.get(name)
    if metadata is None:
        return "max" if kind == "gauge" else "sum"
    return metadata.across_ranks


def decide(rule: AcrossRanks, kind: Kind, shares: Shares) -> Value:
    """Return the one value that `shares` stand for, whatever their order. Reads only.

    ``once`` means that all ranks count the same: the one that has counted most is furthest ahead.

    Raises:
        ItemError: Histograms over different bounds.
    """
    ranked = [share for rank, share in shares.items() if rank is not None]
    if kind == "gauge":
        return _extreme(rule, ranked) if ranked else shares[None]
    together = [_extreme(rule, ranked)] if ranked else []
    return added([shares[None], *together]) if None in shares else together[0]


def _extreme(rule: AcrossRanks, shares: list[Value]) -> Value:
    if rule == "sum":
        return added(shares)
    histograms = [share for share in shares if isinstance(share, Histogram)]
    if histograms:
        highest = histograms[0].copy()
        for histogram in histograms[1:]:
            highest.raise_to(histogram)
        return highest
    numbers = [share for share in shares if not isinstance(share, Histogram)]
    return min(numbers) if rule == "min" else max(numbers)


def added(values: Iterable[Value]) -> Value:
    """Return the sum of numbers or of histograms, of which there is at least one. Reads only.

    Raises:
        ItemError: Histograms over different bounds.
    """
    first, *others = values
    total = first.copy() if isinstance(first, Histogram) else first
    for value in others:
        total = plus(total, value)
    return total


def decided(samples: Iterable[Sample], catalogue: Mapping[str, MetricMetadata]) -> dict[SeriesName, Any]:
    """Return one value for each series of `samples`. Reads only."""
    shares: dict[SeriesName, dict[int | None, Value]] = {}
    for sample in samples:
        series = shares.setdefault(SeriesName(sample.name, sample.kind, sample.labels), {})
        known = series.get(sample.rank)
        if known is None or sample.kind == "gauge":
            series[sample.rank] = sample.value
        else:
            series[sample.rank] = added([known, sample.value])
    return {key: decide(rule_of(catalogue, key.name, key.kind), key.kind, value) for key, value in shares.items()}
