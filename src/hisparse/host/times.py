"""How long pages stay in the prefix index, and how long they wait for their next use."""

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
# Undrained samples of one kind: a second of evicting or reusing 4 million rows in pages of 64.
MAX_SAMPLES = 1 << 16


class Samples:
    """Durations since the last time they were taken; the oldest go where nobody takes them."""

    def __init__(self) -> None:
        """Start without samples."""
        self.dropped = 0
        self._parts: deque[Seconds] = deque()
        self._size = 0

    def add(self, seconds: Seconds) -> None:
        """Keep the samples ``[N]``, and at most `MAX_SAMPLES` with those that are there."""
        self._parts.append(seconds[-MAX_SAMPLES:])
        self._size += seconds.size
        while self._size > MAX_SAMPLES:
            oldest = self._parts.popleft()
            surplus = min(oldest.size, self._size - MAX_SAMPLES)
            if surplus < oldest.size:
                self._parts.appendleft(oldest[surplus:])
            self._size -= surplus
            self.dropped += surplus

    def take(self) -> Seconds:
        """Return all samples, oldest first, and forget them."""
        taken = np.concatenate([np.empty(0), *self._parts])
        self._parts.clear()
        self._size = 0
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

    def enter(self, pages: NDArray[np.int32]) -> None:
        """Pages enter the index now."""
        self._since[pages] = self._used[pages] = self._clock()

    def leave_use(self, pages: NDArray[np.int32]) -> None:
        """The last holder of pages lets them go now."""
        self._used[pages] = self._clock()

    def reuse(self, pages: NDArray[np.int32]) -> None:
        """Pages are used again: the time since their last use is a sample each."""
        now = self._clock()
        self._samples["host_block_reuse_gap_seconds"].add(now - self._used[pages])
        self._used[pages] = now

    def evict(self, pages: NDArray[np.int32]) -> None:
        """Pages leave the index for want of room: lifetime and idle time are a sample each."""
        now = self._clock()
        self._samples["host_block_lifetime_seconds"].add(now - self._since[pages])
        self._samples["host_block_idle_before_evict_seconds"].add(now - self._used[pages])

    def take(self) -> dict[str, Seconds]:
        """Return the samples of each field since the last take, and forget them."""
        return {field: samples.take() for field, samples in self._samples.items()}
