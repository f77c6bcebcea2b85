"""PromQL over the catalogue: a metric, a label or a label value that does not exist cannot be written."""

from dataclasses import dataclass

from hisparse.errors import MetricError
from hisparse.telemetry import CATALOGUE, MetricMetadata
from hisparse.telemetry.naming import family_name

# What every series has, from the scrape configuration and from the exporter.
IDENTITY = ("job", "instance", "model_name", "engine")
_PARTS = {"counter": "_total", "gauge": "", "histogram": "_bucket"}


@dataclass(frozen=True)
class Scope:
    """Which series an expression reads, and over which time it takes rates.

    Attributes:
        matchers: Label matchers of every selector, without braces; empty for all series.
        window: Range of rates, for example ``5m``.
    """

    matchers: str
    window: str

    def level(self, name: str, *, part: str = "", **labels: str) -> str:
        """Return the selector of a metric.

        Args:
            name: Name in the catalogue.
            part: ``_sum``, ``_count`` or ``_bucket`` of a histogram; what the kind exports where empty.
            labels: Values of labels, several joined by ``|``.

        Raises:
            MetricError: The catalogue has no such metric, label or value.
        """
        metadata = declared(name)
        exported = family_name(name) + (part or _PARTS[metadata.kind])
        matchers = [_matcher(name, metadata, label=label, values=values) for label, values in labels.items()]
        if exported.startswith("vllm:"):
            # Some endpoints lose the colon on the way into Prometheus: the dot reads both spellings.
            matchers.insert(0, f'__name__=~"{exported.replace(":", ".")}"')
            exported = ""
        inside = ", ".join(filter(None, [*matchers, self.matchers]))
        return f"{exported}{{{inside}}}" if inside else exported

    def rate(self, name: str, *, part: str = "", **labels: str) -> str:
        """Return the growth a second of a counter or of a part of a histogram; arguments as `level`."""
        return f"rate({self.level(name, part=part, **labels)}[{self.window}])"

    def increase(self, name: str, *, part: str = "", **labels: str) -> str:
        """Return the growth over the window of a counter or of a part of a histogram; arguments as `level`."""
        return f"increase({self.level(name, part=part, **labels)}[{self.window}])"

    def last(self, name: str) -> str:
        """Return the latest value within the window, of series that are gone too."""
        return f"last_over_time({self.level(name)}[{self.window}])"


def declared(name: str) -> MetricMetadata:
    """Return the metadata of a metric of the catalogue.

    Raises:
        MetricError: The catalogue has no such metric.
    """
    if name not in CATALOGUE:
        raise MetricError(f"{name!r} is not in the catalogue: an expression that reads it would always be empty")
    return CATALOGUE[name]


def _matcher(name: str, metadata: MetricMetadata, *, label: str, values: str) -> str:
    if label not in metadata.labelnames:
        raise MetricError(f"{name!r} has no label {label!r}, it has {metadata.labelnames}")
    known = metadata.labelvalues.get(label)
    if known and (unknown := set(values.split("|")) - set(known)):
        raise MetricError(f"{label!r} of {name!r} is never {sorted(unknown)}, it is one of {known}")
    return f'{label}{"=~" if "|" in values else "="}"{values}"'


def total(expression: str, *by: str) -> str:
    """Return the sum of series, one for each value of the labels `by`."""
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"


def share(part: str, whole: str) -> str:
    """Return the ratio of two expressions; no value, instead of not-a-number, where the whole is zero."""
    return f"{part} / ({whole} > 0)"


def quantile(level: float, buckets: str) -> str:
    """Return a quantile of the buckets of a histogram."""
    return f"histogram_quantile({level:g}, {buckets})"
