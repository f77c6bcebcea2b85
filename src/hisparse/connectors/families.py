"""Metric objects of a host's own classes: made once, bound late, fed in bulk."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.registry import REGISTRY, CollectorRegistry

from hisparse.errors import MetricError
from hisparse.telemetry import Catalogue, GaugeMetadata, Histogram, HistogramMetadata, MetricMetadata
from hisparse.telemetry.deprecated import help_text
from hisparse.telemetry.naming import family_name

# Calls to a foreign `observe` for one histogram of one step. Steps have tens of samples; what is above the
# bound is thinned out evenly, so that a payload with a huge count cannot hold the process.
MAX_OBSERVATIONS = 10_000

Labels = tuple[str, ...]


class MetricFamilies:
    """The metric of each declared name, and its children."""

    def __init__(
        self,
        catalogue: Catalogue,
        metric_types: Mapping[Any, Callable[..., Any]],
        *,
        labelnames: Sequence[str],
        registry: CollectorRegistry | None = None,
    ) -> None:
        """Create the metrics; one that the registry has already is shared.

        Raises:
            MetricError: A class is missing, or the registry has something else of the name.
        """
        self._classes = {_kind_of(key): made for key, made in metric_types.items()}
        self._labelnames = tuple(labelnames)
        self._registry = registry
        self._metadata = dict(catalogue)
        self._metrics = {name: self._metric(name, metadata) for name, metadata in catalogue.items()}
        self._children: dict[tuple[str, Labels], Any] = {}

    def add(self, name: str, labels: Labels, value: float | Histogram) -> None:
        """Increase a counter, set a gauge or add samples to a histogram, by the labels of host and metric."""
        key = (name, labels)
        if key not in self._children:
            self._children[key] = self._metrics[name].labels(*labels)
        child = self._children[key]
        if isinstance(value, Histogram):
            add_samples(child, value)
        elif self._metadata[name].kind == "gauge":
            child.set(value)
        else:
            child.inc(value)

    def _metric(self, name: str, metadata: MetricMetadata) -> Any:
        labelnames = (*self._labelnames, *metadata.labelnames)
        extra: dict[str, Any] = {} if self._registry is None else {"registry": self._registry}
        if isinstance(metadata, HistogramMetadata):
            extra["buckets"] = metadata.buckets
        if isinstance(metadata, GaugeMetadata):
            extra["multiprocess_mode"] = metadata.multiprocess_mode
        try:
            made = self._classes[metadata.kind]
        except KeyError as error:
            raise MetricError(
                f"metric_types has no class for a {metadata.kind}, got {sorted(self._classes)}"
            ) from error
        try:
            return made(name=name, documentation=help_text(metadata), labelnames=labelnames, **extra)
        except ValueError as error:
            found = self._registered(name)
            is_same = isinstance(found, made) if inspect.isclass(made) else found is not None
            if not is_same or tuple(getattr(found, "_labelnames", ())) != labelnames:
                raise MetricError(
                    f"the registry has another metric {name!r}, give another registry: {error}"
                ) from error
            return found

    def _registered(self, name: str) -> Any:
        # The registry has no public way to ask for a collector by name.
        return getattr(self._registry or REGISTRY, "_names_to_collectors", {}).get(family_name(name))


def _kind_of(key: Any) -> str:
    return str(getattr(key, "__name__", key)).lower()


def add_samples(child: Any, histogram: Histogram) -> None:
    """Add counted samples to a child of a Prometheus histogram.

    prometheus_client's own child takes whole bucket counts. Any other one is given samples by `observe` as
    `made_up_samples` makes them: in the same buckets and with the same sum, unless there are very many.
    """
    bounds: Any = getattr(child, "_upper_bounds", ())
    buckets: Any = getattr(child, "_buckets", None)
    total: Any = getattr(child, "_sum", None)
    if buckets and hasattr(total, "inc") and tuple(bounds) == (*histogram.bounds, float("inf")):
        for bucket, count in zip(buckets, histogram.counts, strict=True):
            if count:
                bucket.inc(count)
        total.inc(histogram.sum)
        return
    for sample in made_up_samples(histogram):
        child.observe(sample)


def made_up_samples(histogram: Histogram) -> Iterator[float]:
    """Yield samples with the bucket counts of `histogram`, and its sum where samples in these buckets can have it.

    All samples of one bucket are equal. In the bounded buckets they lie at one fraction of the width, chosen to
    meet the sum; the open bucket, where it holds any, takes what is missing from the others' middles. Of more than
    `MAX_OBSERVATIONS` samples about as many are yielded, each bucket's in proportion but at least one of it: then
    counts and sum are smaller than those of `histogram`.
    """
    spans = list(zip((0.0, *histogram.bounds), histogram.bounds, histogram.counts, strict=False))
    low, width = sum(a * n for a, _, n in spans), sum((b - a) * n for a, b, n in spans)
    open_count, open_low = histogram.counts[-1], histogram.bounds[-1] * (1 + 1e-9)
    fraction = (histogram.sum - low - open_count * open_low) / width if width else 0.5
    fraction = min(max(fraction, 1e-9), 0.5 if open_count else 1.0)
    thinning = max(1, -(-histogram.count // MAX_OBSERVATIONS))
    for start, end, count in spans:
        # The end itself, where the sum says so: rounding must not carry a sample into another bucket.
        value = end if fraction == 1.0 else min(start + (end - start) * fraction, end)
        value = max(value, math.nextafter(start, math.inf)) if start else value
        yield from [value] * -(-count // thinning)
    if open_count:
        rest = (histogram.sum - low - width * fraction) / open_count
        yield from [max(rest, open_low)] * -(-open_count // thinning)
