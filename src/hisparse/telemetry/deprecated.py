"""One datum under two names: old series are derived from the metric that replaced them.

Whoever records knows the new name only. The exporter derives the old series from the new one's totals; a payload
of an older version, which knows only the old name, is read as the new name.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace

from hisparse.errors import MetricError
from hisparse.telemetry.histogram import Value
from hisparse.telemetry.metadata import MetricMetadata
from hisparse.telemetry.stats import Sample
from hisparse.telemetry.values import ItemError, LabelValues, SkipReason

_Series = Mapping[LabelValues, Value]


def is_derived(metadata: MetricMetadata) -> bool:
    """Tell whether the metric's series are computed from others' at export."""
    return metadata.deprecation is not None and metadata.deprecation.derived


def check_deprecation(name: str, metadata: MetricMetadata, metrics: Mapping[str, MetricMetadata]) -> None:
    """Refuse a deprecated metric whose replacement does not exist or does not hold the same datum.

    Raises:
        MetricError: A replacement is not declared; or the old series are derived from it and it is derived itself,
            or its kind, unit, buckets, labels or merge rules differ.
    """
    if metadata.deprecation is None:
        return
    for source in metadata.deprecation.replacements:
        if source not in metrics:
            raise MetricError(f"{name!r} is deprecated for {source!r}, which is not declared")
        if not metadata.deprecation.derived:
            continue
        if is_derived(metrics[source]):
            raise MetricError(f"{name!r} is derived from {source!r}, which is derived itself: name its replacement")
        wanted = _derived_from(metrics[source], metadata)
        for field in _rules(wanted):
            if (want := getattr(wanted, field)) != (got := getattr(metadata, field, None)):
                raise MetricError(f"{name!r} is derived from {source!r}, so its {field} must be {want!r}, got {got!r}")


def _derived_from(source: MetricMetadata, old: MetricMetadata) -> MetricMetadata:
    if old.deprecation is None or isinstance(old.deprecation.replacement, str):
        return source
    label = old.deprecation.label
    known = {label: tuple(old.deprecation.replacement)}
    return replace(source, labelnames=(label, *source.labelnames), labelvalues=known | dict(source.labelvalues))


def _rules(metadata: MetricMetadata) -> tuple[str, ...]:
    special = {"gauge": ("multiprocess_mode",), "histogram": ("buckets",), "counter": ()}[metadata.kind]
    return ("kind", "unit", "labelnames", "labelvalues", "across_ranks", "gate", *special)


def help_text(metadata: MetricMetadata) -> str:
    """Return the documentation as HELP shows it, with what to use instead of a deprecated metric."""
    if metadata.deprecation is None:
        return metadata.documentation
    instead = " and ".join(metadata.deprecation.replacements)
    return f"DEPRECATED since {metadata.deprecation.since}, use {instead}: {metadata.documentation}"


def series_of(name: str, metadata: MetricMetadata, totals: Mapping[str, _Series]) -> _Series:
    """Return the series that the metric exports, its own or those of its replacements. Reads only."""
    if metadata.deprecation is None or not metadata.deprecation.derived:
        return totals.get(name, {})
    return {
        prefix + labels: value
        for prefix, source in metadata.deprecation.sources.items()
        for labels, value in totals.get(source, {}).items()
    }


def current(samples: Iterable[Sample], deprecated: Mapping[str, MetricMetadata]) -> Iterator[Sample]:
    """Yield `samples` with old names read as their replacements.

    An old name that comes beside its replacement is yielded as it is, for the reader to skip and count: adding it
    would count the datum of a sender that writes both names twice. So is one whose labels name no replacement.
    """
    present: set[str] = set()
    old: list[Sample] = []
    for sample in samples:
        if sample.name in deprecated:
            old.append(sample)
        else:
            present.add(sample.name)
            yield sample
    for sample in old:
        try:
            name, labels = replacing(sample.name, sample.labels, deprecated, present=present)
        except ItemError:
            yield sample
        else:
            yield sample._replace(name=name, labels=labels)


def replacing(
    name: str, labels: LabelValues, deprecated: Mapping[str, MetricMetadata], *, present: Container[str]
) -> tuple[str, LabelValues]:
    """Return the name and label values that an old series has today. Reads only.

    Raises:
        ItemError: Its labels name no replacement, or the replacement is among `present`, what the same sender sent.
    """
    deprecation = deprecated[name].deprecation
    taken = 1 if deprecation is not None and deprecation.label else 0
    source = None if deprecation is None else deprecation.sources.get(labels[:taken])
    if source is None or source in present:
        raise ItemError(SkipReason.DEPRECATED_NAME, "is an old name: send its replacement alone")
    return source, labels[taken:]
