"""Statistics from a kernel's counter to a log line and to Prometheus, by one path.

A producer records into a container and hands its plain form over, about once a second or every few steps::

    pipeline = TelemetryPipeline(model_name="tiny-dsa")
    with start_metrics_server(pipeline.registry) as server:      # server.port, server.url
        stats, rows = HiSparseKVConnectorStats(), OffloadingConnectorStats()
        ...
        stats.record_snapshot(hits, misses, host_to_device_bytes)            # since the previous snapshot
        stats.record_host_usage(pool_usage, pending_page_transfers)          # 0 to 1, levels
        rows.increase_counter("hisparse_hot_selections_total", hits, ("hit", group))
        rows.increase_counter("hisparse_hot_copied_bytes_total", nbytes, ("host_to_device", layer))
        rows.observe_histogram("hisparse_hot_gather_seconds", seconds)
        pipeline.publish({"HiSparse": stats.take(), "rows": rows.take()}, engine=0)
        ...
    pipeline.close()

`take()` is `to_dict()` and `reset()` in one. What is published is in the totals at once; `flush()` writes the
log line of the interval that has begun. No call on this path raises on data: what cannot be used is skipped
and counted in ``hisparse_telemetry_errors_total{reason}``. Only definitions raise: a metric is declared in a
`Catalogue`.
"""

from hisparse.telemetry.building import build_kv_connector_stats
from hisparse.telemetry.catalogue import CATALOGUE, Catalogue
from hisparse.telemetry.connector_stats import HiSparseConnectorStats
from hisparse.telemetry.hisparse_stats import HiSparseKVConnectorStats
from hisparse.telemetry.histogram import Histogram
from hisparse.telemetry.interval import KVConnectorLogging
from hisparse.telemetry.merging import merge_ranks, merge_step
from hisparse.telemetry.metadata import (
    CounterMetadata,
    Deprecation,
    GaugeMetadata,
    HistogramMetadata,
    MetricMetadata,
)
from hisparse.telemetry.offload_stats import OffloadingConnectorStats
from hisparse.telemetry.pipeline import TelemetryPipeline
from hisparse.telemetry.prometheus import KVConnectorPrometheus
from hisparse.telemetry.server import MetricsServer, start_metrics_server
from hisparse.telemetry.stats import KVConnectorStats, Sample
from hisparse.telemetry.store import MetricStore
from hisparse.telemetry.values import SkipReason
from hisparse.telemetry.wire import decode_stats, encode_stats

__all__ = [
    "CATALOGUE",
    "Catalogue",
    "CounterMetadata",
    "Deprecation",
    "GaugeMetadata",
    "HiSparseConnectorStats",
    "HiSparseKVConnectorStats",
    "Histogram",
    "HistogramMetadata",
    "KVConnectorLogging",
    "KVConnectorPrometheus",
    "KVConnectorStats",
    "MetricMetadata",
    "MetricStore",
    "MetricsServer",
    "OffloadingConnectorStats",
    "Sample",
    "SkipReason",
    "TelemetryPipeline",
    "build_kv_connector_stats",
    "decode_stats",
    "encode_stats",
    "merge_ranks",
    "merge_step",
    "start_metrics_server",
]
