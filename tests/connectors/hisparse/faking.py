"""A device that counts, is copied from late or never, and can be reset; and a clock."""

from dataclasses import dataclass, field
from typing import Any

from hisparse.connectors import CounterTotals
from hisparse.telemetry import Histogram, KVConnectorStats

GROUPS = ((0, 1), (2,))


@dataclass
class Clock:
    """Seconds that pass when somebody waits, or when told to."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Copy:
    """A copy of a device's counters that arrives after some looks, or never."""

    looks: int
    totals: CounterTotals

    def is_ready(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def read(self) -> CounterTotals:
        return self.totals


@dataclass
class Device:
    """Counters of two index groups on a device, and how it behaves when they are asked for.

    Attributes:
        looks: Looks after which a copy is ready.
        is_capturing: Whether a graph is being captured, so that no copy can begin.
        error: Raised by a request where set.
        requests: How often a copy was asked for.
        copies: The copies that began.
    """

    looks: int = 0
    is_capturing: bool = False
    error: Exception | None = None
    requests: int = 0
    copies: list[Copy] = field(default_factory=list)
    totals: CounterTotals = field(default_factory=lambda: CounterTotals.zero(GROUPS))

    def count(self, hits: int = 0, misses: int = 0, *, group: int = 0, row_bytes: int = 16) -> None:
        """Count one step of one request of `group`; its first layer loads the misses."""
        self.totals.selections[group] += (hits, misses, 0, 0)
        self.totals.loaded_bytes[2 * group] += row_bytes * misses
        self.totals.fetches.observe(0.001 * misses)
        self.totals.request_misses.observe(misses)

    def reset(self) -> None:
        """Set the counters to zero, as a device does when its memory is made anew."""
        self.totals = CounterTotals.zero(GROUPS, epoch=self.totals.epoch + 1)

    def request(self) -> Copy | None:
        """Begin a copy of the totals as they are now."""
        self.requests += 1
        if self.error is not None:
            raise self.error
        if self.is_capturing:
            return None
        now = self.totals
        copy = Copy(
            self.looks,
            CounterTotals(
                now.groups,
                now.selections.copy(),
                now.loaded_bytes.copy(),
                now.fetches.copy(),
                now.request_misses.copy(),
                now.epoch,
            ),
        )
        self.copies.append(copy)
        return copy


class Ledger:
    """Everything handed out so far, by name and labels; gauges as they were last."""

    def __init__(self) -> None:
        self.totals: dict[tuple[Any, ...], Any] = {}
        self.errors: dict[str, int] = {}

    def take(self, stats: KVConnectorStats | None) -> None:
        """Add what was handed out."""
        for sample in () if stats is None else stats.samples():
            key = (sample.name, *sample.labels)
            if isinstance(sample.value, Histogram):
                self.totals.setdefault(key, Histogram.empty(sample.value.bounds)).merge(sample.value)
            elif sample.kind == "counter":
                self.totals[key] = self.totals.get(key, 0) + sample.value
            else:
                self.totals[key] = sample.value
        for reason, count in {} if stats is None else stats.errors.items():
            self.errors[reason] = self.errors.get(reason, 0) + count

    def __getitem__(self, key: tuple[Any, ...]) -> Any:
        """Return what is known of one series, 0 before it was handed out."""
        return self.totals.get(key, 0)

    @property
    def selections(self) -> tuple[int, int]:
        """Hits and misses."""
        return self["vllm:hisparse_cache_hits",], self["vllm:hisparse_cache_misses",]

    @property
    def loaded_bytes(self) -> int:
        """Bytes from host to device."""
        total: int = self["vllm:hisparse_host_to_device_bytes",]
        return total

    def samples(self, outcome: str) -> int:
        """Attempts to sample that ended so."""
        total: int = self["hisparse_telemetry_samples_total", outcome]
        return total

    @property
    def age(self) -> float:
        """Age of the sample on its way."""
        age: float = self["hisparse_telemetry_sample_age_seconds",]
        return age
