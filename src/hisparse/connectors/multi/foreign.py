"""Samples of somebody else's class, held to what the sinks can take."""

from collections.abc import Iterable, Iterator
from itertools import islice

from hisparse.telemetry import Sample, SkipReason
from hisparse.telemetry.samples import MAX_SAMPLES, read_sample
from hisparse.telemetry.store import ERRORS_METRIC
from hisparse.telemetry.values import ItemError


def usable(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield the samples that the sinks can take, `MAX_SAMPLES` at most, and one error for each other one."""
    for sample in islice(samples, MAX_SAMPLES):
        try:
            yield read_sample(sample)
        except ItemError as error:
            yield error_sample(error.reason)


def error_sample(reason: SkipReason) -> Sample:
    """Return what counts one skipped item."""
    return Sample(ERRORS_METRIC, "counter", (str(reason),), 1)
