"""What a metric is: documentation, unit, labels, how it merges, and how long its name lives."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Literal

from hisparse.errors import MetricError

Kind = Literal["counter", "gauge", "histogram"]
AcrossRanks = Literal["sum", "once", "max", "min"]

UNITS = frozenset(
    {
        *("bytes", "bytes_per_second", "rows", "pages", "seconds", "ratio", "tokens", "blocks"),
        *("selections", "requests", "transfers", "samples", "errors", "files", "info"),
    }
)
MULTIPROCESS_MODES = frozenset(
    ["all", "liveall", "min", "livemin", "max", "livemax", "sum", "livesum", "mostrecent", "livemostrecent"]
)
# The exporter adds model_name and engine to every series; `le` is the bucket bound of a histogram.
_RESERVED_LABELS = frozenset(["model_name", "engine", "le"])
_LABEL = re.compile(r"[a-z][a-z0-9_]*")
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.\S*)?")


def parse_version(text: str) -> tuple[int, int]:
    """Return major and minor of ``"0.4"`` or ``"0.4.1"`` as numbers, so that 0.10 comes after 0.9.

    Raises:
        MetricError: The text is no version.
    """
    match = _VERSION.fullmatch(text)
    if match is None:
        raise MetricError(f"version must read like '0.4' or '0.4.1', got {text!r}")
    return int(match[1]), int(match[2])


@dataclass(frozen=True, slots=True)
class Deprecation:
    """A name on its way out, and the metric that took its place.

    The version that deprecates it still exports it beside its replacement; the next minor version only on
    request; later ones, and every later major version, not at all. The old series are derived from the
    replacement when they are exported, so that the two cannot differ and nobody records twice.

    Attributes:
        since: Version that deprecated the name, for example ``"0.4"``.
        replacement: Metric to use instead, or one metric for each value of `label`.
        label: Label, the first of the old metric, whose value says from which replacement a series comes; empty
            where one name simply took another's place.
        derived: False where the replacement is another kind of metric, so that the old name is still recorded.
    """

    since: str
    replacement: str | Mapping[str, str]
    label: str = ""
    derived: bool = True

    def __post_init__(self) -> None:
        """Refuse what is no version, no replacement, or a label without a replacement for each value."""
        parse_version(self.since)
        if not self.replacement or not all(self.replacements):
            raise MetricError(f"a metric deprecated since {self.since} must name its replacement")
        if isinstance(self.replacement, str) == bool(self.label):
            raise MetricError(
                "a deprecation needs a label exactly when its replacement is a mapping from the label's values, "
                f"got label {self.label!r} and replacement {self.replacement!r}"
            )

    @property
    def replacements(self) -> tuple[str, ...]:
        """The metrics to use instead."""
        return (self.replacement,) if isinstance(self.replacement, str) else tuple(self.replacement.values())

    @property
    def sources(self) -> dict[tuple[str, ...], str]:
        """Where the old series come from: their first label values, none or one, and a replacement."""
        if isinstance(self.replacement, str):
            return {(): self.replacement}
        return {(value,): name for value, name in self.replacement.items()}

    def is_exported(self, version: str, show_hidden_metrics_for_version: str | None = None) -> bool:
        """Tell whether `version` of the package exports the name.

        Raises:
            MetricError: A version is malformed.
        """
        (major, minor), (since_major, since_minor) = parse_version(version), parse_version(self.since)
        age = minor - since_minor if major == since_major else (major - since_major) * 2
        if age <= 0:
            return True
        shown = show_hidden_metrics_for_version
        return age == 1 and shown is not None and parse_version(shown) == (since_major, since_minor)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricMetadata:
    """Common part of the three kinds.

    Attributes:
        documentation: One sentence, shown as HELP and in the docs.
        labelnames: Names of the labels, in the order in which values are given; kept as a tuple.
        unit: One of `UNITS`; a name of this package's own must end in it.
        labelvalues: All values of a label, where they are known beforehand. Such series exist from the start
            and keep apart in the log line; other labels are summed there.
        across_ranks: What several workers of one engine mean together: ``sum`` what each did for itself,
            ``once`` what all did alike, or the extreme.
        log: Text of the interval log line; the name where empty, no mention where None.
        gate: Option that turns the metric on; always on where empty.
        deprecation: Set for a name on its way out.
    """

    documentation: str = field(kw_only=False)
    labelnames: Sequence[str] = ()
    unit: str = ""
    labelvalues: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    across_ranks: AcrossRanks = "sum"
    log: str | None = ""
    gate: str = ""
    deprecation: Deprecation | None = None

    kind: ClassVar[Kind]
    over_time: ClassVar[str]

    def __post_init__(self) -> None:
        """Refuse a missing documentation, an unknown unit, a bad label or an unknown merge rule."""
        if not self.documentation.strip():
            raise MetricError("documentation must be a sentence, got nothing")
        if self.unit and self.unit not in UNITS:
            raise MetricError(f"unit must be one of {sorted(UNITS)}, got {self.unit!r}")
        if self.across_ranks not in {"sum", "once", "max", "min"}:
            raise MetricError(f"across_ranks must be sum, once, max or min, got {self.across_ranks!r}")
        if isinstance(self.labelnames, str):
            raise MetricError(f"labelnames must be a tuple of names, got the text {self.labelnames!r}")
        object.__setattr__(self, "labelnames", tuple(self.labelnames))
        for label in self.labelnames:
            if not _LABEL.fullmatch(label) or label in _RESERVED_LABELS:
                raise MetricError(
                    f"label must match {_LABEL.pattern} and not be {sorted(_RESERVED_LABELS)}, got {label!r}"
                )
        if len(set(self.labelnames)) != len(self.labelnames):
            raise MetricError(f"labelnames must differ, got {self.labelnames}")
        object.__setattr__(self, "labelvalues", {k: tuple(map(str, v)) for k, v in self.labelvalues.items()})
        if unknown := set(self.labelvalues) - set(self.labelnames):
            raise MetricError(f"labelvalues names {sorted(unknown)}, the labels are {self.labelnames}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterMetadata(MetricMetadata):
    """A count that only grows; increments add up over time."""

    kind: ClassVar[Kind] = "counter"
    over_time: ClassVar[str] = "sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeMetadata(MetricMetadata):
    """A level; the latest value stands.

    Attributes:
        multiprocess_mode: How several processes of one server combine, one of `MULTIPROCESS_MODES`.
    """

    across_ranks: AcrossRanks = "max"
    multiprocess_mode: str = "mostrecent"

    kind: ClassVar[Kind] = "gauge"
    over_time: ClassVar[str] = "latest"

    def __post_init__(self) -> None:
        """Refuse an unknown multiprocess mode too."""
        MetricMetadata.__post_init__(self)
        if self.multiprocess_mode not in MULTIPROCESS_MODES:
            raise MetricError(
                f"multiprocess_mode must be in {sorted(MULTIPROCESS_MODES)}, got {self.multiprocess_mode!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramMetadata(MetricMetadata):
    """A distribution; bucket counts and the sum add up over time.

    Attributes:
        buckets: Upper bounds, inclusive, strictly increasing and finite; the infinite bucket is implied.
    """

    buckets: tuple[float, ...]

    kind: ClassVar[Kind] = "histogram"
    over_time: ClassVar[str] = "buckets add up"

    def __post_init__(self) -> None:
        """Refuse bounds that are empty, unsorted, repeated or not finite."""
        MetricMetadata.__post_init__(self)
        object.__setattr__(self, "buckets", check_buckets(self.buckets))


@lru_cache(maxsize=512)
def same_bounds(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """Return one tuple for all that are equal: those that are the same object need no comparing."""
    return bounds


def check_buckets(buckets: tuple[float, ...]) -> tuple[float, ...]:
    """Return `buckets` as floats.

    Raises:
        MetricError: They are empty, not numbers, not finite or not strictly increasing.
    """
    try:
        bounds = tuple(float(bound) for bound in buckets)
    except (TypeError, ValueError) as error:
        raise MetricError(f"buckets must be numbers, got {buckets!r}") from error
    increasing = all(low < high for low, high in pairwise(bounds))
    if not bounds or not increasing or not all(map(math.isfinite, bounds)):
        raise MetricError(f"buckets must be strictly increasing finite numbers, at least one, got {buckets!r}")
    return same_bounds(bounds)
