"""Statistics of hot buffers: hits, misses, bytes and the state of the host pool."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hisparse.telemetry.catalogue import RESIDENCY_BUCKETS
from hisparse.telemetry.histogram import Histogram, observe_each
from hisparse.telemetry.stats import KVConnectorStats, Sample
from hisparse.telemetry.values import ItemError, SkipReason, read_increment, read_number, show

DELTAS = ("cache_hits", "cache_misses", "host_to_device_bytes")
LEVELS = ("host_cache_usage_perc", "pending_page_transfers")
RESIDENCY = (
    "host_block_lifetime_seconds",
    "host_block_idle_before_evict_seconds",
    "host_block_reuse_gap_seconds",
)
# Undrained deltas are folded from this many on. A drain happens about once a second, and a reader of the
# list wants the recent steps apart, not all of them.
MAX_DELTAS = 256


class HiSparseKVConnectorStats(KVConnectorStats):
    """Deltas since the last reset and the latest levels.

    `data` holds a list for each field. Deltas append; beyond `MAX_DELTAS` entries the oldest half is added
    up into one entry, so the sums stay exact and the memory bounded. A level's list holds only the latest
    value. The residency histograms appear once something is recorded in them, as bucket counts; lists of
    samples are accepted in a payload.
    """

    def _empty(self) -> dict[str, Any]:
        return {field: [] for field in DELTAS + LEVELS}

    def record_snapshot(self, hits: int, misses: int, host_to_device_bytes: int) -> None:
        """Append the selections and bytes counted since the previous snapshot."""
        for field, value in zip(DELTAS, (hits, misses, host_to_device_bytes), strict=True):
            self._extend(field, [value])

    def record_host_usage(self, usage: float, pending_page_transfers: int) -> None:
        """Replace the levels: used part of the host pool, 0 to 1, and page transfers in flight."""
        for field, value in zip(LEVELS, (usage, pending_page_transfers), strict=True):
            self._replace(field, [value])

    def record_residency(self, field: str, samples_seconds: Iterable[float]) -> None:
        """Count residency times of host pages in `field`, one of `RESIDENCY`."""
        if field in RESIDENCY:
            self._add_residency(field, list(samples_seconds))
        else:
            self.skip(SkipReason.UNKNOWN_KEY, f"residency field must be one of {RESIDENCY}, got {field!r}")

    def _merge(self, data: Mapping[str, Any]) -> None:
        for field, value in data.items():
            if field in RESIDENCY:
                self._add_residency(field, value)
            elif field not in DELTAS and field not in LEVELS:
                self.skip(SkipReason.UNKNOWN_KEY, f"unknown field {show(field)}")
            elif not isinstance(value, list | tuple):
                self.skip(SkipReason.WRONG_TYPE, f"{field} must be a list, got {show(value)}")
            elif field in DELTAS:
                self._extend(field, value)
            else:
                self._replace(field, value)

    def _extend(self, field: str, values: Iterable[Any]) -> None:
        entries = self.data[field]
        for value in values:
            try:
                entries.append(read_increment(value, field))
            except ItemError as error:
                self.skip(error.reason, str(error))
                continue
            if len(entries) > MAX_DELTAS:
                oldest = len(entries) // 2
                entries[:oldest] = [sum(entries[:oldest])]

    def _replace(self, field: str, values: Iterable[Any]) -> None:
        for value in values:
            try:
                self.data[field] = [read_increment(value, field)]
            except ItemError as error:
                self.skip(error.reason, str(error))

    def _add_residency(self, field: str, value: Any) -> None:
        try:
            added = self._read_residency(field, value)
            if added.count:
                self.data.setdefault(field, Histogram.empty(RESIDENCY_BUCKETS)).merge(added)
        except ItemError as error:
            self.skip(error.reason, f"{field}: {error}")

    def _read_residency(self, field: str, value: Any) -> Histogram:
        if isinstance(value, Mapping):
            return Histogram.from_dict(value)
        if not isinstance(value, list | tuple):
            raise ItemError(SkipReason.WRONG_TYPE, f"must be a histogram or a list of samples, got {show(value)}")
        histogram = Histogram.empty(tuple(map(float, RESIDENCY_BUCKETS)))
        self.skip_each(observe_each(histogram, value, field))
        return histogram

    def _plain(self) -> dict[str, Any]:
        return {
            field: value.to_dict() if isinstance(value, Histogram) else list(value)
            for field, value in self.data.items()
        }

    def samples(self) -> Iterator[Sample]:
        """Yield sums of the deltas, the latest levels and the histograms under their operator names."""
        for field in DELTAS:
            if self.data[field]:
                yield Sample(f"vllm:hisparse_{field}", "counter", (), sum(self.data[field]))
        for field in LEVELS:
            if self.data[field]:
                yield Sample(f"vllm:hisparse_{field}", "gauge", (), self.data[field][-1])
        for field in RESIDENCY:
            if field in self.data:
                yield Sample(f"vllm:hisparse_{field}", "histogram", (), self.data[field])

    def reduce(self) -> dict[str, int | float]:
        """Return the sums of the deltas and, if one is known, the host usage as a percentage."""
        if self.data == self._empty():
            return {}
        hits, misses, moved_bytes = (sum(self.data[field]) for field in DELTAS)
        reduced: dict[str, int | float] = {
            "HiSparse hot-buffer hits": hits,
            "HiSparse hot-buffer misses": misses,
            "HiSparse host-to-device bytes": moved_bytes,
        }
        if usage := self.data["host_cache_usage_perc"]:
            reduced["HiSparse host KV cache usage %"] = round(100 * read_number(usage[-1], "usage"), 1)
        return reduced
