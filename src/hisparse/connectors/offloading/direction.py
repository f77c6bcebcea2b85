"""What one worker measured of its transfers in one direction."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hisparse.connectors.reading import read_whole
from hisparse.telemetry import Histogram, Sample, SkipReason
from hisparse.telemetry.catalogue import SIZE_BUCKETS, TRANSFER_BUCKETS, TRANSFER_SIZE_BUCKETS
from hisparse.telemetry.histogram import LANE_BITS, check_sendable, every_lane
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
# A bucket of 2**53 or more would be refused where it arrives. Two counts below that stay within their lanes.
_FULL_BITS = (2**LANE_BITS - 1) ^ (2**53 - 1)


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
        reasons: Reasons told apart so far, at most `MAX_FAILURE_REASONS`. Given by who goes on counting after these
            sums have left, so that the bound holds over all of them.
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
    reasons: set[str] = field(default_factory=set, compare=False, repr=False)

    _COUNTS: ClassVar = ("transfers", "moved_bytes")
    _SECONDS: ClassVar = ("moving_seconds", "busy_seconds")

    def succeed(self, size_bytes: int | None, seconds: float | None) -> list[ItemError]:
        """Count a transfer that succeeded, and return what could not be added.

        Args:
            size_bytes: Its bytes, read by `read_whole`; None where they are not known.
            seconds: Its time, read by `read_increment`; None where it is not known.
        """
        self.transfers += 1
        wrong = []
        for add, value in ((self._add_bytes, size_bytes), (self._add_seconds, seconds)):
            try:
                if value is not None:
                    add(value)
            except ItemError as error:
                wrong.append(error)
        return wrong

    def fail(self, reason: str, count: int = 1) -> None:
        """Count `count` transfers that failed for `reason`.

        Raises:
            ItemError: So many failures could not be sent; nothing changed.
        """
        check_sendable(sum(self.failures.values()) + count, "failures")
        if reason not in self.reasons:
            if len(self.reasons) < MAX_FAILURE_REASONS:
                self.reasons.add(reason)
            else:
                reason = OTHER_REASON
        self.failures[reason] = self.failures.get(reason, 0) + count

    def wait(self, seconds: float) -> None:
        """Count the time that a transfer waited, read by `read_increment`.

        Raises:
            ItemError: The sum could not be sent; nothing changed.
        """
        check_sendable(self.waits.sum + seconds, "waits")
        self.waits.observe(seconds)

    def be_busy(self, seconds: float) -> None:
        """Add time in which a transfer was under way and no earlier one was.

        Raises:
            ItemError: The sum could not be sent; nothing changed.
        """
        check_sendable(self.busy_seconds + seconds, "busy seconds")
        self.busy_seconds += seconds

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
        histograms = {key: _sparse(held) for key in _BOUNDS if (held := getattr(self, key)).lanes}
        return {key: value for key, value in {**numbers, "failures": dict(self.failures)}.items() if value} | histograms

    def samples(self, direction: str) -> Iterator[Sample]:
        """Yield what the sums mean to the sinks. Reads only."""
        known = f"vllm:kv_offload_{direction}"
        if self.transfers or self.moved_bytes or self.moving_seconds or self.sizes.lanes or self.durations.lanes:
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

    def _add_bytes(self, size_bytes: float) -> None:
        check_sendable(max(self.moved_bytes, self.sizes.sum, self.known_sizes.sum) + size_bytes, "bytes")
        self._increase("moved_bytes", size_bytes)
        self.sizes.observe(size_bytes)
        self.known_sizes.observe(size_bytes)

    def _add_seconds(self, seconds: float) -> None:
        check_sendable(max(self.moving_seconds, self.durations.sum) + seconds, "seconds")
        self._increase("moving_seconds", seconds)
        self.durations.observe(seconds)

    def _merge_part(self, key: str, value: Any) -> Iterator[ItemError]:
        if key in self._COUNTS:
            self._increase(key, read_whole(value, key))
        elif key in self._SECONDS:
            self._increase(key, read_increment(value, key))
        elif key in _BOUNDS:
            _merge_histogram(getattr(self, key), _read_histogram(_BOUNDS[key], value), key)
        elif key == "failures":
            yield from self._merge_failures(value)
        else:
            raise ItemError(SkipReason.UNKNOWN_KEY, f"unknown field {show(key)}")

    def _increase(self, key: str, growth: float) -> None:
        total = getattr(self, key) + growth
        check_sendable(total, key)
        setattr(self, key, total)

    def _merge_failures(self, failures: Any) -> Iterator[ItemError]:
        if not isinstance(failures, Mapping):
            raise ItemError(SkipReason.WRONG_TYPE, f"failures must be a mapping, got {show(failures)}")
        for reason, count in failures.items():
            try:
                number, (text, wrong) = read_whole(count, "failures"), read_reason(reason)
                self.fail(text, number)
                yield from wrong
            except ItemError as error:
                yield error


def read_reason(failure: Any) -> tuple[str, list[ItemError]]:
    """Return why something failed as one word or so, and what was wrong with `failure`.

    An error, or its class, is its class's name. What is no usable text is `OTHER_REASON`: it failed all the same.
    """
    if isinstance(failure, BaseException):
        failure = type(failure)
    if isinstance(failure, type) and issubclass(failure, BaseException):
        failure = failure.__name__
    try:
        # Exactly text: a member of an enumeration would not be one after the way to the scheduler.
        return str.__str__(read_text(failure, "a failure")), []
    except ItemError as error:
        return OTHER_REASON, [error]


def _merge_histogram(held: Histogram, added: Histogram, what: str) -> None:
    check_sendable(held.sum + added.sum, what)
    if (held.lanes + added.lanes) & every_lane(len(held.bounds) + 1, _FULL_BITS):
        raise ItemError(SkipReason.OUT_OF_RANGE, f"a bucket of {what} would count 2**53 transfers")
    held.merge(added)


def _sparse(histogram: Histogram) -> list[float]:
    parts: list[float] = [histogram.sum]
    for bucket, count in enumerate(histogram.counts):
        if count:
            parts += (bucket, count)
    return parts


def _read_histogram(bounds: tuple[float, ...], value: Any) -> Histogram:
    if not isinstance(value, list | tuple) or len(value) % 2 == 0:
        raise ItemError(SkipReason.WRONG_TYPE, f"must be a sum, then buckets and counts, got {show(value)}")
    buckets, lanes, filled = len(bounds) + 1, 0, set[int]()
    for bucket, count in zip(value[1::2], value[2::2], strict=True):
        number = read_whole(bucket, "a bucket")
        if number >= buckets or number in filled:
            raise ItemError(SkipReason.BUCKET_MISMATCH, f"there are {buckets} buckets, got {number}, or got it twice")
        filled.add(number)
        lanes += read_whole(count, "a bucket count") << LANE_BITS * number
    return Histogram.of_lanes(bounds, lanes, float(read_increment(value[0], "a histogram's sum")))
