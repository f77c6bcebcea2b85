"""How long pages stay in the prefix index, and how long they wait for their next use."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
# Undrained samples of one kind: a second of evicting or reusing 4 million rows in pages of 64.
MAX_SAMPLES = 1 << 16


class Samples:
    """Durations since the last time they were taken; the oldest go where nobody takes them."""

    def __init__(self) -> None:
        """Start without samples; memory is used as they come."""
        self.dropped = 0
        self._ring = np.empty(MAX_SAMPLES)
        self._next = 0
        self._size = 0

    def add(self, seconds: Seconds) -> None:
        """Keep the samples ``[N]``, and at most `MAX_SAMPLES` with those that are there."""
        self.dropped += max(0, self._size + seconds.size - MAX_SAMPLES)
        self._size = min(self._size + seconds.size, MAX_SAMPLES)
        seconds = seconds[-MAX_SAMPLES:]
        before_end = min(seconds.size, MAX_SAMPLES - self._next)
        self._ring[self._next : self._next + before_end] = seconds[:before_end]
        self._ring[: seconds.size - before_end] = seconds[before_end:]
        self._next = (self._next + seconds.size) % MAX_SAMPLES

    def take(self) -> Seconds:
        """Return all samples, oldest first, and forget them."""
        first = self._next - self._size
        taken = np.concatenate(
            [self._ring[first:] if first < 0 else self._ring[:0], self._ring[max(first, 0) : self._next]]
        )
        self._next = self._size = 0
        return taken


class PageTimes:
    """When each page entered the index and was last used; durations at reuse and eviction.

    The fields are those of `hisparse.telemetry.HiSparseKVConnectorStats.record_residency`.
    """

    def __init__(self, pages: int, clock: Callable[[], float]) -> None:
        """Start for `pages` pages; `clock` gives seconds and never goes back."""
        self._clock = clock
        self._since = np.zeros(pages)
        self._used = np.zeros(pages)
        self._samples = {
            "host_block_lifetime_seconds": Samples(),
            "host_block_idle_before_evict_seconds": Samples(),
            "host_block_reuse_gap_seconds": Samples(),
        }

    @property
    def dropped(self) -> int:
        """Samples that were given up because nobody took them."""
        return sum(samples.dropped for samples in self._samples.values())

    def enter(self, pages: NDArray[np.integer]) -> None:
        """Pages enter the index now."""
        self._since[pages] = self._used[pages] = self._clock()

    def leave_use(self, pages: NDArray[np.integer]) -> None:
        """The last holder of pages lets them go now."""
        self._used[pages] = self._clock()

    def reuse(self, pages: NDArray[np.integer]) -> None:
        """Pages are used again: the time since their last use is a sample each."""
        now = self._clock()
        self._samples["host_block_reuse_gap_seconds"].add(now - self._used[pages])
        self._used[pages] = now

    def evict(self, pages: NDArray[np.integer]) -> None:
        """Pages leave the index for want of room: lifetime and idle time are a sample each."""
        now = self._clock()
        self._samples["host_block_lifetime_seconds"].add(now - self._since[pages])
        self._samples["host_block_idle_before_evict_seconds"].add(now - self._used[pages])

    def take(self) -> dict[str, Seconds]:
        """Return the samples of each field since the last take, and forget them."""
        return {field: samples.take() for field, samples in self._samples.items()}
