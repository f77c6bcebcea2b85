"""What a worker's counters grew by, under the names of the catalogue."""

from itertools import chain, product

from hisparse.connectors.hisparse.totals import CounterTotals
from hisparse.hot import FETCH_METRIC, MISSES_METRIC
from hisparse.kernels import COUNT_FIELDS
from hisparse.telemetry import Catalogue, HiSparseConnectorStats, Histogram, HistogramMetadata

_HIT, _MISS = COUNT_FIELDS.index("hit"), COUNT_FIELDS.index("miss")


def record_growth(stats: HiSparseConnectorStats, growth: CounterTotals, *, with_zeros: bool) -> None:
    """Record `growth` in `stats`; `with_zeros` makes every series exist, whether it grew or not."""
    for group, outcomes in enumerate(growth.selections.tolist()):
        for outcome, count in zip(COUNT_FIELDS, outcomes, strict=True):
            if count or with_zeros:
                stats.increase_counter("hisparse_hot_selections_total", count, (outcome, group))
    for direction, copied in (("host_to_device", growth.loaded_bytes), ("device_to_host", growth.stored_bytes)):
        for layer, copied_bytes in zip(chain(*growth.groups), copied.tolist(), strict=True):
            if copied_bytes or with_zeros:
                stats.increase_counter("hisparse_hot_copied_bytes_total", copied_bytes, (direction, layer))
    _record_measures(stats, growth)


def _record_measures(stats: HiSparseConnectorStats, growth: CounterTotals) -> None:
    """Record durations and misses of requests, and the sums under the operators' names."""
    for name, histogram in ((FETCH_METRIC, growth.fetches), (MISSES_METRIC, growth.request_misses)):
        if histogram.count:
            stats.merge_histogram(name, histogram)
    if not growth.is_zero:
        hits, misses = (int(growth.selections[:, outcome].sum()) for outcome in (_HIT, _MISS))
        stats.record_snapshot(hits, misses, int(growth.loaded_bytes.sum()))


def zero_stats(catalogue: Catalogue) -> HiSparseConnectorStats:
    """Return statistics that make every series exist that is known before anything happened."""
    stats = HiSparseConnectorStats(catalogue=catalogue)
    for name, metadata in catalogue.items():
        for labels in product(*(metadata.labelvalues.get(label, ()) for label in metadata.labelnames)):
            if isinstance(metadata, HistogramMetadata):
                stats.merge_histogram(name, Histogram.empty(metadata.buckets), labels)
            elif metadata.kind == "counter":
                stats.increase_counter(name, 0, labels)
            else:
                stats.set_gauge(name, 0, labels)
    return stats
