"""What one worker measured of its transfers in one direction."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hisparse.connectors.reading import read_whole
from hisparse.telemetry import Histogram, Sample, SkipReason
from hisparse.telemetry.catalogue import SIZE_BUCKETS, TRANSFER_BUCKETS, TRANSFER_SIZE_BUCKETS
from hisparse.telemetry.histogram import LANE_BITS
from hisparse.telemetry.values import ItemError, read_increment, read_text, show

# Reasons beyond this many are counted together, so that texts made up by a failing disk cannot fill memory.
MAX_FAILURE_REASONS = 32
OTHER_REASON = "other"

# A histogram travels without its bounds, under a key that stands for them: other bounds need another key.
_BOUNDS = {
    "sizes": tuple(map(float, TRANSFER_SIZE_BUCKETS)),
    "known_sizes": tuple(map(float, SIZE_BUCKETS)),
    "durations": tuple(map(float, TRANSFER_BUCKETS)),
    "waits": tuple(map(float, TRANSFER_BUCKETS)),
}
_NOTHING: tuple[Any, ...] = (0, 0.0, {}, [0])


@dataclass(slots=True, kw_only=True)
class DirectionalTransferStats:
    """Sums over the transfers that ended, so that any number of these add up.

    A transfer that failed counts in `failures` and, since it kept its worker busy, in `busy_seconds`; all
    else is about transfers that succeeded.

    Attributes:
        transfers: Transfers that succeeded.
        moved_bytes: Their bytes.
        moving_seconds: Their times from start to completion; transfers that overlap add up.
        busy_seconds: Time in which at least one transfer was under way, each moment once.
        failures: Transfers that failed, by reason.
        sizes: Bytes of a transfer, over the bounds of ``hisparse_offload_transfer_bytes``.
        known_sizes: The same over the bounds of ``vllm:kv_offload_{load,store}_size``.
        durations: Seconds from start to completion.
        waits: Seconds from submission to start, where the submission is known.
    """

    transfers: int = 0
    moved_bytes: int = 0
    moving_seconds: float = 0.0
    busy_seconds: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    sizes: Histogram = field(default_factory=lambda: Histogram.empty(_BOUNDS["sizes"]))
    known_sizes: Histogram = field(default_factory=lambda: Histogram.empty(_BOUNDS["known_sizes"]))
    durations: Histogram = field(default_factory=lambda: Histogram.empty(_BOUNDS["durations"]))
    waits: Histogram = field(default_factory=lambda: Histogram.empty(_BOUNDS["waits"]))

    _COUNTS: ClassVar = ("transfers", "moved_bytes")
    _SECONDS: ClassVar = ("moving_seconds", "busy_seconds")

    def succeed(self, size_bytes: int, seconds: float) -> None:
        """Count a transfer that succeeded; the numbers have been read by `read_increment`."""
        self.transfers += 1
        self.moved_bytes += size_bytes
        self.moving_seconds += seconds
        self.sizes.observe(size_bytes)
        self.known_sizes.observe(size_bytes)
        self.durations.observe(seconds)

    def fail(self, reason: str, count: int = 1) -> None:
        """Count `count` transfers that failed for `reason`."""
        if reason not in self.failures and len(self.failures) >= MAX_FAILURE_REASONS:
            reason = OTHER_REASON
        self.failures[reason] = self.failures.get(reason, 0) + count

    def merge(self, data: Mapping[str, Any]) -> Iterator[ItemError]:
        """Add the plain form `data` part by part, and yield what could not be used."""
        for key, value in data.items():
            try:
                yield from self._merge_part(key, value)
            except ItemError as error:
                yield error

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form, without what is zero: ``{}`` where nothing ended.

        A histogram is ``[sum, bucket, count, bucket, count, ...]`` over the buckets that are not empty.
        """
        numbers = {key: getattr(self, key) for key in (*self._COUNTS, *self._SECONDS)}
        histograms = {key: _sparse(getattr(self, key)) for key in _BOUNDS} if self.transfers else {}
        parts = {**numbers, "failures": dict(self.failures), **histograms}
        return {key: value for key, value in parts.items() if value not in _NOTHING}

    def samples(self, direction: str) -> Iterator[Sample]:
        """Yield what the sums mean to the sinks. Reads only."""
        known = f"vllm:kv_offload_{direction}"
        if self.transfers:
            yield Sample(f"{known}_bytes", "counter", (), self.moved_bytes)
            yield Sample(f"{known}_time", "counter", (), self.moving_seconds)
            yield Sample(f"{known}_size", "histogram", (), self.known_sizes)
            yield Sample("hisparse_offload_transfers_total", "counter", (direction, "success"), self.transfers)
            yield Sample("hisparse_offload_transfer_seconds", "histogram", (direction,), self.durations)
            yield Sample("hisparse_offload_transfer_bytes", "histogram", (direction,), self.sizes)
        if self.busy_seconds:
            yield Sample("hisparse_offload_busy_seconds_total", "counter", (direction,), self.busy_seconds)
        if self.waits.count:
            yield Sample("hisparse_offload_queue_seconds", "histogram", (direction,), self.waits)
        if self.failures:
            failed = sum(self.failures.values())
            yield Sample("hisparse_offload_transfers_total", "counter", (direction, "failure"), failed)
        for reason, count in self.failures.items():
            yield Sample("hisparse_offload_failed_transfers_total", "counter", (direction, reason), count)

    def _merge_part(self, key: str, value: Any) -> Iterator[ItemError]:
        if key in self._COUNTS:
            setattr(self, key, getattr(self, key) + read_whole(value, key))
        elif key in self._SECONDS:
            setattr(self, key, getattr(self, key) + read_increment(value, key))
        elif key in _BOUNDS:
            getattr(self, key).merge(_read_histogram(_BOUNDS[key], value))
        elif key == "failures":
            yield from self._merge_failures(value)
        else:
            raise ItemError(SkipReason.UNKNOWN_KEY, f"unknown field {show(key)}")

    def _merge_failures(self, failures: Any) -> Iterator[ItemError]:
        if not isinstance(failures, Mapping):
            raise ItemError(SkipReason.WRONG_TYPE, f"failures must be a mapping, got {show(failures)}")
        for reason, count in failures.items():
            try:
                self.fail(read_text(reason, "a reason"), read_whole(count, "failures"))
            except ItemError as error:
                yield error


def _sparse(histogram: Histogram) -> list[float]:
    parts: list[float] = [histogram.sum]
    for bucket, count in enumerate(histogram.counts):
        if count:
            parts += (bucket, count)
    return parts


def _read_histogram(bounds: tuple[float, ...], value: Any) -> Histogram:
    if not isinstance(value, list | tuple) or len(value) % 2 == 0:
        raise ItemError(SkipReason.WRONG_TYPE, f"must be a sum, then buckets and counts, got {show(value)}")
    buckets, lanes = len(bounds) + 1, 0
    for bucket, count in zip(value[1::2], value[2::2], strict=True):
        if read_whole(bucket, "a bucket") >= buckets:
            raise ItemError(SkipReason.BUCKET_MISMATCH, f"there are {buckets} buckets, got number {bucket}")
        lanes += read_whole(count, "a bucket count") << LANE_BITS * bucket
    return Histogram.of_lanes(bounds, lanes, float(read_increment(value[0], "a histogram's sum")))
