"""Samples of somebody else's class, held to what the sinks can take."""

import math
from collections.abc import Iterable, Iterator

from hisparse.telemetry import Histogram, Sample, SkipReason
from hisparse.telemetry.stats import RankedSample
from hisparse.telemetry.store import ERRORS_METRIC
from hisparse.telemetry.values import ItemError, read_increment, read_labels, read_number


def usable(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield the samples whose values a counter, gauge or histogram can take, and one error for each other one.

    A class of this package reads every item when it arrives; another one may have let anything in.
    """
    for sample in samples:
        try:
            yield _read(sample)
        except ItemError as error:
            yield error_sample(error.reason)


def error_sample(reason: SkipReason) -> Sample:
    """Return what counts one skipped item."""
    return Sample(ERRORS_METRIC, "counter", (str(reason),), 1)


def _read(sample: Sample) -> Sample:
    name, kind, labels, value = sample
    if isinstance(value, Histogram):
        if not math.isfinite(value.sum):
            raise ItemError(SkipReason.NOT_FINITE, f"{name} has the sum {value.sum}")
        if value.sum < 0 or min(value.counts) < 0:
            raise ItemError(SkipReason.NEGATIVE, f"{name} has fewer than no samples")
        return sample
    number = read_number(value, name) if kind == "gauge" else read_increment(value, name)
    if type(number) is type(value) and type(labels) is tuple:
        return sample
    read = Sample(name, kind, read_labels(labels), number)
    return read if sample.rank is None else RankedSample.of(read, sample.rank)
