"""Statistics of hot buffers: hits, misses, bytes and the state of the host pool."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from hisparse.telemetry.catalogue import CATALOGUE, RESIDENCY_BUCKETS
from hisparse.telemetry.histogram import Histogram, as_samples, check_sendable, observe_each
from hisparse.telemetry.ranks import decided
from hisparse.telemetry.stats import KVConnectorStats, RankedSample, Sample
from hisparse.telemetry.values import (
    MAX_NUMBER,
    MAX_RANKS,
    UNREAD_RANK,
    ItemError,
    SkipReason,
    read_increment,
    read_number,
    show,
)

DELTAS = ("cache_hits", "cache_misses", "host_to_device_bytes")
LEVELS = ("host_cache_usage_perc", "pending_page_transfers")
RESIDENCY = (
    "host_block_lifetime_seconds",
    "host_block_idle_before_evict_seconds",
    "host_block_reuse_gap_seconds",
)
# What every rank does for itself, and what is the same number on all of them.
ADDED = ("host_to_device_bytes", *RESIDENCY)
# Undrained deltas are folded from this many on. A drain happens about once a second, and a reader of the
# list wants the recent steps apart, not all of them.
MAX_DELTAS = 256


class HiSparseKVConnectorStats(KVConnectorStats):
    """Deltas since the last reset and the latest levels.

    `data` holds a list for each field. Deltas append; beyond `MAX_DELTAS` entries the oldest half is added
    up into one entry, so the sums stay exact and the memory bounded. A level's list holds only the latest
    value. The residency histograms appear once something is recorded in them, as bucket counts; lists of
    samples are accepted in a payload.

    Bytes and residency times are in `data` whoever counted them. Selections are the same on every rank, and
    levels are each rank's own: what other ranks say of them is kept apart under ``"ranks"``.
    """

    def __init__(self, data: Any = None, *, rank: int | None = None) -> None:
        """Start empty and aggregate `data`."""
        self._ranks: dict[int | None, dict[str, list[Any]]] = {}
        super().__init__(data, rank=rank)

    def _empty(self) -> dict[str, Any]:
        return {field: [] for field in DELTAS + LEVELS}

    def record_snapshot(self, hits: int, misses: int, host_to_device_bytes: int) -> None:
        """Append the selections and bytes counted since the previous snapshot."""
        for field, value in zip(DELTAS, (hits, misses, host_to_device_bytes), strict=True):
            self._extend(self.data[field], field, [value])

    def record_host_usage(self, usage: float, pending_page_transfers: int) -> None:
        """Replace the levels: used part of the host pool, 0 to 1, and page transfers in flight."""
        for field, value in zip(LEVELS, (usage, pending_page_transfers), strict=True):
            self._replace(self.data, field, [value])

    def record_residency(self, field: str, samples_seconds: Iterable[float]) -> None:
        """Count residency times of host pages in `field`, one of `RESIDENCY`."""
        if not isinstance(field, str) or field not in RESIDENCY:
            self.skip(SkipReason.UNKNOWN_KEY, f"residency field must be one of {RESIDENCY}, got {show(field)}")
            return
        try:
            self._add_residency(field, as_samples(samples_seconds))
        except ItemError as error:
            self.skip(error.reason, f"{field}: {error}")

    def _merge(self, data: Mapping[str, Any]) -> None:
        self._merge_rank(self.rank, data)

    def _merge_rank(self, rank: int | None, data: Mapping[str, Any]) -> None:
        for field, value in data.items():
            if field in RESIDENCY:
                self._add_residency(field, value)
            elif field not in DELTAS and field not in LEVELS:
                self.skip(SkipReason.UNKNOWN_KEY, f"unknown field {show(field)}")
            elif not isinstance(value, list | tuple):
                self.skip(SkipReason.WRONG_TYPE, f"{field} must be a list, got {show(value)}")
            elif field in ADDED:
                self._extend(self.data[field], field, value)
            elif value and (kept := self._kept(rank)) is not None:
                if field in LEVELS:
                    self._replace(kept, field, value)
                else:
                    self._extend(kept.setdefault(field, []), field, value)

    def _kept(self, rank: int | None) -> dict[str, Any] | None:
        if rank == self.rank:
            return self.data
        if rank == UNREAD_RANK:
            self.skip(SkipReason.UNKNOWN_RANK, "a worker whose rank cannot be read, taken for all, would count twice")
            return None
        if rank not in self._ranks and len(self._ranks) >= MAX_RANKS:
            self.skip(SkipReason.UNKNOWN_RANK, f"{MAX_RANKS} ranks are kept apart already, got rank {rank}")
            return None
        return self._ranks.setdefault(rank, {})

    def _extend(self, entries: list[int | float], field: str, values: Iterable[Any]) -> None:
        for value in values:
            if type(value) is int and 0 <= value <= MAX_NUMBER:
                entries.append(value)
            else:
                try:
                    entries.append(read_increment(value, field))
                except ItemError as error:
                    self.skip(error.reason, str(error))
                    continue
            if len(entries) > MAX_DELTAS:
                oldest = len(entries) // 2
                if (folded := sum(entries[:oldest])) <= MAX_NUMBER:
                    entries[:oldest] = [folded]
                else:
                    entries.pop()
                    self.skip(SkipReason.OUT_OF_RANGE, f"{field} would add up to more than 2**53 before it is taken")

    def _replace(self, kept: dict[str, Any], field: str, values: Iterable[Any]) -> None:
        for value in values:
            try:
                kept[field] = [read_increment(value, field)]
            except ItemError as error:
                self.skip(error.reason, str(error))
                continue
            # What is said for the whole engine replaces what its ranks said before.
            if self._ranks and kept is (self.data if self.rank is None else self._ranks.get(None)):
                for other in (self.data, *self._ranks.values()):
                    if other is not kept:
                        other[field] = []

    def _add_residency(self, field: str, value: Any) -> None:
        try:
            added = self._read_residency(field, value)
            if added.count:
                held = self.data.get(field) or Histogram.empty(RESIDENCY_BUCKETS)
                check_sendable(held.sum + added.sum, field)
                held.merge(added)
                self.data[field] = held
        except ItemError as error:
            self.skip(error.reason, f"{field}: {error}")

    def _read_residency(self, field: str, value: Any) -> Histogram:
        if isinstance(value, Histogram):
            value.check()
            return value
        if isinstance(value, Mapping):
            return Histogram.from_dict(value)
        if isinstance(value, np.ndarray):
            value = value.ravel().tolist()
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

    def _plain_ranks(self) -> dict[int | None, dict[str, Any]]:
        ranks = sorted(self._ranks, key=lambda rank: -1 if rank is None else rank)
        said = {rank: {f: list(found) for f, found in self._ranks[rank].items() if found} for rank in ranks}
        return {rank: fields for rank, fields in said.items() if fields}

    def reset(self) -> None:
        """Forget everything recorded; the rank stays."""
        super().reset()
        self._ranks = {}

    def samples(self) -> Iterator[Sample]:
        """Yield sums of the deltas, the latest levels and the histograms under their operator names, by rank."""
        ranks = {**self._ranks, self.rank: self.data}
        for rank in sorted(ranks, key=lambda rank: -1 if rank is None else rank):
            for sample in _samples(ranks[rank]):
                yield sample if rank is None else RankedSample.of(sample, rank)

    def reduce(self) -> dict[str, int | float]:
        """Return the sums of the deltas and, if one is known, the host usage as a percentage."""
        if not self._ranks and self.data == self._empty():
            return {}
        # A labelled part may hold an operator's name as another kind than it is declared.
        values = {
            series.name: value
            for series, value in decided(self.samples(), CATALOGUE).items()
            if series.name in CATALOGUE and CATALOGUE[series.name].kind == series.kind
        }
        hits, misses, moved_bytes = (values.get(f"vllm:hisparse_{field}", 0) for field in DELTAS)
        reduced: dict[str, int | float] = {
            "HiSparse hot-buffer hits": hits,
            "HiSparse hot-buffer misses": misses,
            "HiSparse host-to-device bytes": moved_bytes,
        }
        usage = values.get("vllm:hisparse_host_cache_usage_perc")
        if usage is not None:
            reduced["HiSparse host KV cache usage %"] = round(100 * read_number(usage, "usage"), 1)
        return reduced


def _samples(fields: Mapping[str, Any]) -> Iterator[Sample]:
    for field in DELTAS:
        if values := fields.get(field):
            yield Sample(f"vllm:hisparse_{field}", "counter", (), sum(values))
    for field in LEVELS:
        if values := fields.get(field):
            yield Sample(f"vllm:hisparse_{field}", "gauge", (), values[-1])
    for field in RESIDENCY:
        if field in fields:
            yield Sample(f"vllm:hisparse_{field}", "histogram", (), fields[field])
