"""What a container of somebody else's class says, held to what the sinks can take: the one gate before the totals.

A container of this package reads every item when it arrives; another class may have let anything in.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from hisparse.telemetry.histogram import Histogram
from hisparse.telemetry.metadata import MetricMetadata
from hisparse.telemetry.stats import KVConnectorStats, RankedSample, Sample
from hisparse.telemetry.values import (
    MAX_NAMES,
    MAX_NUMBER,
    MAX_RANK,
    MAX_SERIES,
    ItemError,
    SkipReason,
    label_values,
    rank_or_unread,
    read_increment,
    read_number,
    read_text,
    show,
)

# A generator that never ends must not keep a step from ending.
MAX_SAMPLES = 64 * MAX_SERIES
_KINDS = frozenset(["counter", "gauge", "histogram"])
_OWN = frozenset([Sample, RankedSample])
_NO_LABELS: tuple[str, ...] = ()
_ANY = (-float(MAX_NUMBER), float(MAX_NUMBER))
_FROM_ZERO = (0.0, float(MAX_NUMBER))
# What a level counts or measures is never less than nothing; a share is at most one, and info is always 1.
_LIMITS = {"": _ANY, "ratio": (0.0, 1.0), "info": (1.0, 1.0)}

Info = dict[str, list[dict[str, str]]]


def read_sample(sample: Any) -> Sample:
    """Return `sample` with plain values of the right types; the same one where it has them already.

    Raises:
        ItemError: Its name, kind, label values or value cannot be used.
    """
    if not isinstance(sample, tuple) or len(sample) != len(Sample._fields):
        raise ItemError(SkipReason.WRONG_TYPE, f"a sample must have name, kind, labels and value, got {show(sample)}")
    name, kind, labels, value = sample
    text = read_text(name, "a metric name")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ItemError(SkipReason.WRONG_TYPE, f"{text}: a kind must be one of {sorted(_KINDS)}, got {show(kind)}")
    number = _read_value(text, kind, value)
    rank = getattr(sample, "rank", None)
    has_rank = rank is None or (type(rank) is int and 0 <= rank <= MAX_RANK)
    # As this package's own classes make them: nothing would change.
    if (
        isinstance(sample, Sample)
        and type(sample) in _OWN
        and has_rank
        and labels is _NO_LABELS
        and text is name
        and type(number) is type(value)
    ):
        return sample
    read = Sample(text, kind, label_values(labels), number)  # type: ignore[arg-type]  # as checked
    return read if rank is None else RankedSample.of(read, rank_or_unread(rank))


def _read_value(name: str, kind: str, value: Any) -> int | float | Histogram:
    if isinstance(value, Histogram) != (kind == "histogram"):
        raise ItemError(SkipReason.WRONG_TYPE, f"{name} is a {kind}, got the value {show(value)}")
    if isinstance(value, Histogram):
        value.check()
        return value
    return read_increment(value, name) if kind == "counter" else read_number(value, name)


def usable(samples: Iterable[Any], wrong: list[ItemError]) -> Iterator[Sample]:
    """Yield the samples that the sinks can take, at most `MAX_SAMPLES`; add what was wrong with others to `wrong`.

    Raises:
        Exception: Whatever `samples` raises.
    """
    for count, sample in enumerate(samples):
        if count == MAX_SAMPLES:
            wrong.append(ItemError(SkipReason.TOO_MANY_SERIES, f"more than {MAX_SAMPLES} samples at once"))
            return
        try:
            yield read_sample(sample)
        except ItemError as error:
            wrong.append(error)


def level_limits(metadata: MetricMetadata) -> tuple[float, float]:
    """Return the lowest and the highest value that a level of this unit can have. Reads only."""
    return _LIMITS.get(metadata.unit, _FROM_ZERO) if metadata.kind == "gauge" else _ANY


def check_level(value: Any, limits: tuple[float, float]) -> None:
    """Refuse a level that its unit does not allow.

    Raises:
        ItemError: It is outside `limits`.
    """
    if not limits[0] <= value <= limits[1]:
        raise ItemError(SkipReason.OUT_OF_RANGE, f"must be within {limits[0]:g} and {limits[1]:g}, got {show(value)}")


def read_info(mappings: Any) -> list[dict[str, str]]:
    """Return the label mappings of an info gauge as text, each once; a label whose value is None is left out.

    Raises:
        ItemError: They are none, are too many, or hold a label that is no text.
    """
    found = [mappings] if isinstance(mappings, Mapping) else mappings
    if not isinstance(found, list | tuple) or not all(isinstance(labels, Mapping) for labels in found):
        raise ItemError(SkipReason.WRONG_TYPE, f"info must be mappings of labels, got {show(mappings)}")
    read = united([[_info_labels(labels) for labels in islice(found, MAX_SERIES + 1)]])
    if len(found) > MAX_SERIES:
        raise ItemError(SkipReason.TOO_MANY_SERIES, f"info must be at most {MAX_SERIES} mappings, got {len(found)}")
    return read


def _info_labels(labels: Mapping[Any, Any]) -> dict[str, str]:
    if len(labels) > MAX_NAMES:
        raise ItemError(SkipReason.TOO_MANY_SERIES, f"info must have at most {MAX_NAMES} labels, got {len(labels)}")
    return {read_text(key, "a label"): _info_text(value) for key, value in labels.items() if value is not None}


def _info_text(value: Any) -> str:
    if type(value) is str:
        return read_text(value, "a label value")
    try:
        text = str(value)
    except Exception as error:  # somebody else's class may raise anything
        raise ItemError(SkipReason.WRONG_TYPE, f"a label value has no text: {show(error)}") from error
    return read_text(text, "a label value")


def united(infos: Iterable[Iterable[Mapping[str, str]]]) -> list[dict[str, str]]:
    """Return all label mappings, each once, at most `MAX_SERIES`, in the order in which they first came."""
    found = {tuple(sorted(labels.items())): labels for mappings in infos for labels in mappings}
    return [dict(labels) for labels in islice(found.values(), MAX_SERIES)]


class Taken:
    """Everything that a container says, read before any of it is used: a fault midway leaves nothing behind.

    Attributes:
        samples: What the sinks can take.
        info: Label mappings of info gauges.
        errors: Items skipped, by reason, those of the container and those of this reading.
        examples: A sentence for each reason.
    """

    __slots__ = ("errors", "examples", "info", "samples")

    def __init__(self, stats: KVConnectorStats) -> None:
        """Read `stats`.

        Raises:
            Exception: Whatever a method of its class raises.
        """
        wrong: list[ItemError] = []
        self.errors: dict[str, int] = {}
        self.examples: dict[str, str] = {}
        self.samples = list(usable(stats.samples(), wrong))
        self.info: Info = {}
        for name, mappings in islice(stats.info().items(), MAX_NAMES):
            try:
                self.info[read_text(name, "a metric name")] = read_info(mappings)
            except ItemError as unread:
                wrong.append(unread)
        examples = stats.examples
        for reason, count in list(stats.errors.items()):
            try:
                text = read_text(reason, "a reason")
                whole = int(read_increment(count, text))
                self._skip(text, examples.get(reason, text), whole)
            except ItemError as unread:
                wrong.append(unread)
        for error in wrong:
            self._skip(error.reason, str(error), 1)

    def _skip(self, reason: str, example: str, count: int) -> None:
        self.errors[str(reason)] = self.errors.get(str(reason), 0) + count
        self.examples.setdefault(str(reason), example)
