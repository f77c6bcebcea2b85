"""A producer that has something to say about every metric of a catalogue."""

from collections.abc import Iterator
from itertools import product

from hisparse.telemetry import Catalogue, HistogramMetadata, MetricMetadata, OffloadingConnectorStats, TelemetryPipeline

OPEN_VALUES = ("0", "4")
# The pipeline sets them itself.
OF_THE_PIPELINE = {"hisparse_telemetry_last_sample_timestamp_seconds", "hisparse_telemetry_errors_total"}


class FullProducer:
    """Publishes an increment, a level or an observation of every series, a little more for each series in turn."""

    def __init__(self, pipeline: TelemetryPipeline, catalogue: Catalogue) -> None:
        """Publish all metrics of `catalogue`, which the pipeline exports."""
        self.pipeline = pipeline
        self.catalogue = catalogue.recorded()

    def publish(self, *, engine: int = 0) -> None:
        """Publish once for every series."""
        stats = OffloadingConnectorStats(catalogue=self.catalogue)
        for name, metadata in self.catalogue.items():
            if name in OF_THE_PIPELINE:
                continue
            for number, labels in enumerate(label_values(metadata), start=1):
                if metadata.unit == "info":
                    stats.set_info(name, dict(zip(metadata.labelnames, labels, strict=True)))
                elif isinstance(metadata, HistogramMetadata):
                    stats.observe_histogram(name, metadata.buckets[number % len(metadata.buckets)], labels)
                elif metadata.kind == "counter":
                    stats.increase_counter(name, number, labels)
                else:
                    stats.set_gauge(name, 0.5 if metadata.unit == "ratio" else number, labels)
        self.pipeline.publish({"full": stats.take()}, engine=engine)


def label_values(metadata: MetricMetadata) -> Iterator[tuple[str, ...]]:
    """Yield the label values of a few series of a metric."""
    open_values = OPEN_VALUES[:1] if metadata.unit == "info" else OPEN_VALUES
    yield from product(*(metadata.labelvalues.get(label, open_values) for label in metadata.labelnames))
