"""The worker side: samples of counters in two phases, by time or by calls, that never block a step."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hisparse.connectors.hisparse.recording import record_growth
from hisparse.connectors.hisparse.schedule import Schedule
from hisparse.connectors.hisparse.source import CounterSource, PendingSample
from hisparse.connectors.hisparse.totals import CounterTotals
from hisparse.connectors.reading import explained
from hisparse.errors import SettingError
from hisparse.telemetry import HiSparseConnectorStats, SkipReason
from hisparse.telemetry.values import ItemError, read_increment

AGE_METRIC = "hisparse_telemetry_sample_age_seconds"
SAMPLES_METRIC = "hisparse_telemetry_samples_total"
_POLL_SECONDS = 0.0005


class _Asked(NamedTuple):
    """A sample on its way, and when it was asked for."""

    sample: PendingSample
    at: float


class HiSparseConnectorWorker:
    """Hands out what a worker's counters grew by.

    A sample is asked for when it is due and read in a later call, once it is ready; until then calls go on,
    and the statistics say how old it is. Totals are sampled, not growth, so a sample that never arrives loses
    nothing: the next one that does contains it. What a `flush` could not get in time is counted as pending.
    """

    def __init__(
        self,
        source: CounterSource,
        *,
        rank: int | None = None,
        every_seconds: float = 1.0,
        every_calls: int = 2000,
        flush_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Sample `source`; the first sample is due at the first call.

        Args:
            source: The counters.
            rank: The worker among those of its engine, None where there is only one.
            every_seconds: Longest time between two samples.
            every_calls: Most calls between two samples.
            flush_seconds: Longest time a flush waits for the device.
            clock: Seconds that never run backwards.
            wait: Sleeps for some seconds; only a flush calls it.

        Raises:
            SettingError: A period is not positive.
        """
        if not flush_seconds >= 0:
            raise SettingError(f"flush_seconds must be >= 0, got {flush_seconds}")
        self._source: CounterSource | None = source
        self._rank, self._clock, self._wait, self._flush_seconds = rank, clock, wait, flush_seconds
        self._sampling = Schedule(every_seconds, every_calls, clock)
        # When no sample can be had, that is told as often as a sample would have been.
        self._reporting = Schedule(every_seconds, every_calls, clock)
        self._asked: _Asked | None = None
        self._before = CounterTotals.zero(())
        self._stats = HiSparseConnectorStats(rank=rank)
        self._has_read = False

    def get_kv_connector_stats(self) -> HiSparseConnectorStats | None:
        """Read the sample that was asked for if it is ready, ask for one if it is due, hand out what is new."""
        self._sampling.count_call()
        self._reporting.count_call()
        if self._asked is not None:
            self._look()
        if self._asked is None and self._sampling.is_due():
            self._ask()
        if not self._has_read:
            if not self._reporting.is_due():
                return None
            if self._stats.is_empty():
                self._reporting.restart()
                return None
        return self._take()

    def flush(self) -> None:
        """Wait for the sample that was asked for, and take the rest; blocks for at most `flush_seconds`.

        What was read is handed out by the next `get_kv_connector_stats`. A sample that does not come in time
        is counted as pending and read later, unless this is shut down.
        """
        until = self._clock() + self._flush_seconds
        if self._is_had(until):
            self._ask()
            self._is_had(until)
        self._has_read = self._has_read or not self._stats.is_empty()

    def shutdown(self) -> None:
        """Flush, and let go of the source; harmless twice."""
        self.flush()
        self._source = self._asked = None

    def _ask(self) -> None:
        """Ask for a sample; read it where it is ready at once."""
        if self._source is None:
            return
        try:
            sample = self._source.request()
            if sample is None:
                self._stats.increase_counter(SAMPLES_METRIC, 1, ("refused",))
                return
            self._sampling.restart()
            self._asked = _Asked(sample, self._clock())
            if sample.is_ready():
                self._read(sample)
        except Exception as error:  # noqa: BLE001  a device that can't be sampled must not end a serving step
            self._drop(error)

    def _look(self) -> None:
        """Read the sample on its way, or count that it is still on its way."""
        if self._asked is None:
            return
        try:
            if self._asked.sample.is_ready():
                self._read(self._asked.sample)
            else:
                self._stats.increase_counter(SAMPLES_METRIC, 1, ("pending",))
        except Exception as error:  # noqa: BLE001  as in asking
            self._drop(error)

    def _read(self, sample: PendingSample) -> None:
        """Record what the counters grew by since the last sample."""
        given = sample.read()
        totals = CounterTotals.read(given)
        # Apart until all is recorded: half of a sample would be counted again with the next one.
        recorded = HiSparseConnectorStats(rank=self._rank)
        record_growth(recorded, totals.since(self._before), with_zeros=not self._before.groups)
        self._stats.aggregate(recorded)
        self._before, self._asked, self._has_read = totals, None, True
        self._stats.increase_counter(SAMPLES_METRIC, 1, ("read",))
        self._record_link(given.link_bytes_per_second)

    def _record_link(self, speed: Any) -> None:
        """Tell the link's speed, unless it is not known; one that cannot be costs no counts."""
        try:
            if number := read_increment(speed, "link_bytes_per_second"):
                self._stats.set_gauge("hisparse_host_link_bytes_per_second", number)
        except ItemError as error:
            self._stats.skip(error.reason, str(error))

    def _drop(self, error: Exception) -> None:
        """Forget the sample on its way; the next one contains what it would have told."""
        self._asked = None
        self._sampling.restart()
        reason = error.reason if isinstance(error, ItemError) else SkipReason.INTERNAL
        self._stats.skip(reason, f"while sampling counters: {explained(error)}")

    def _is_had(self, until: float) -> bool:
        """Wait for the sample on its way, if there is one; return whether none is left."""
        while self._asked is not None and not self._is_ready() and self._clock() < until:
            self._wait(_POLL_SECONDS)
        self._look()
        return self._asked is None

    def _is_ready(self) -> bool:
        try:
            return self._asked is None or self._asked.sample.is_ready()
        except Exception:  # noqa: BLE001  the look that follows meets it again, and counts it
            return True

    def _take(self) -> HiSparseConnectorStats:
        """Hand over what is recorded, with the age of the sample on its way."""
        stats = self._stats
        stats.set_gauge(AGE_METRIC, 0.0 if self._asked is None else max(0.0, self._clock() - self._asked.at))
        self._stats = HiSparseConnectorStats(rank=self._rank)
        self._has_read = False
        self._reporting.restart()
        return stats
