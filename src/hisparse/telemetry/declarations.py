"""Metrics by name, checked as a whole: a wrong name, unit or deprecation cannot be declared."""

from collections.abc import Iterable, Iterator, Mapping

from hisparse.errors import MetricError
from hisparse.telemetry.deprecated import check_deprecation, is_derived
from hisparse.telemetry.metadata import HistogramMetadata, MetricMetadata
from hisparse.telemetry.naming import check_name, sample_names


class Catalogue(Mapping[str, MetricMetadata]):
    """Metrics by name, checked as a whole; never changes.

    Attributes:
        hidden: Names that are known but not exported, so that meeting them is no error.
        deprecated: Old names that are derived from new ones, exported or not, so that a payload may use them.
        buckets: Bounds of the histograms by name.
    """

    def __init__(
        self,
        metrics: Mapping[str, MetricMetadata],
        *,
        hidden: Iterable[str] = (),
        deprecated: Mapping[str, MetricMetadata] | None = None,
    ) -> None:
        """Check every name and that no two metrics share a sample name.

        Raises:
            MetricError: A name does not fit its metadata, two metrics clash, or a deprecated one is not the same
                datum as its replacement.
        """
        self._metrics = dict(metrics)
        self.deprecated = dict(deprecated or {}) | {n: m for n, m in self._metrics.items() if is_derived(m)}
        self.buckets = {n: m.buckets for n, m in self._metrics.items() if isinstance(m, HistogramMetadata)}
        self.hidden = frozenset(hidden) - self._metrics.keys() - self.deprecated.keys()
        owners: dict[str, str] = {}
        for name, metadata in self._metrics.items():
            check_name(name, metadata)
            for sample in sorted(sample_names(name, metadata)):
                if sample in owners:
                    raise MetricError(f"{name!r} and {owners[sample]!r} would both export {sample!r}: rename one")
                owners[sample] = name
            check_deprecation(name, metadata, self._metrics)

    def __getitem__(self, name: str) -> MetricMetadata:
        """Return the metadata of `name`."""
        return self._metrics[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names in the order of definition."""
        return iter(self._metrics)

    def __len__(self) -> int:
        """Return the number of metrics."""
        return len(self._metrics)

    def exported(
        self,
        version: str,
        *,
        show_hidden_metrics_for_version: str | None = None,
        gates: frozenset[str] = frozenset(),
    ) -> "Catalogue":
        """Return what `version` exports: without closed gates, and without names that have run out.

        Raises:
            MetricError: A version is malformed.
        """
        chosen = {
            name: metadata
            for name, metadata in self._metrics.items()
            if (not metadata.gate or metadata.gate in gates)
            and (
                metadata.deprecation is None
                or metadata.deprecation.is_exported(version, show_hidden_metrics_for_version)
            )
        }
        return Catalogue(chosen, hidden=self.hidden | self._metrics.keys(), deprecated=self.deprecated)

    def recorded(self) -> "Catalogue":
        """Return what producers record: everything but the old names that are derived at export."""
        chosen = {name: metadata for name, metadata in self._metrics.items() if not is_derived(metadata)}
        return Catalogue(chosen, hidden=self.hidden, deprecated=self.deprecated)

    def merged(self, other: Mapping[str, MetricMetadata]) -> "Catalogue":
        """Return both catalogues as one.

        Raises:
            MetricError: A name is defined differently in the two, or the result clashes.
        """
        for name, metadata in other.items():
            if name in self._metrics and self._metrics[name] != metadata:
                raise MetricError(f"{name!r} is defined twice: {self._metrics[name]} and {metadata}")
        hidden, deprecated = (other.hidden, other.deprecated) if isinstance(other, Catalogue) else (frozenset(), {})
        return Catalogue(
            {**self._metrics, **other}, hidden=self.hidden | hidden, deprecated=self.deprecated | deprecated
        )
