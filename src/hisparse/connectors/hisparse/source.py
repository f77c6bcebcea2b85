"""Where a worker's counters are read: at once in this process, or later from a device."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from hisparse.connectors.hisparse.totals import CounterTotals
from hisparse.hot import GroupCounters


class PendingSample(Protocol):
    """A copy of counters that is on its way."""

    def is_ready(self) -> bool:
        """Return whether `read` would return at once. Never blocks."""
        ...

    def read(self) -> CounterTotals:
        """Return the totals at the moment of the request, or later; called once, when ready."""
        ...


class CounterSource(Protocol):
    """Cumulative counters that can be copied without stopping who counts."""

    def request(self) -> PendingSample | None:
        """Begin to copy the totals; None where that can't be done now. Never blocks.

        A device that is capturing a graph, for instance, has to be asked again after the capture.
        """
        ...


class _Ready:
    """A sample that was there when it was asked for."""

    def __init__(self, totals: CounterTotals) -> None:
        self._totals = totals

    def is_ready(self) -> bool:
        return True

    def read(self) -> CounterTotals:
        return self._totals


class GroupCounterSource:
    """Counters of index groups in this process's memory, from the moment the source was made."""

    def __init__(
        self,
        groups: Sequence[Sequence[int]],
        counters: Sequence[GroupCounters],
        *,
        link_bytes_per_second: Callable[[], float] = float,
    ) -> None:
        """Read `counters`, one for each of `groups`.

        Args:
            groups: Layers of each index group.
            counters: What each group counts; what they hold already is somebody else's.
            link_bytes_per_second: Speed of copies from host to device, asked at each sample; 0 where not known.
        """
        self._groups = tuple(tuple(members) for members in groups)
        self._counters = counters
        self._link_bytes_per_second = link_bytes_per_second
        self._before = self._totals()

    def request(self) -> PendingSample:
        """Return the totals, ready at once."""
        try:
            link = self._link_bytes_per_second()
        except Exception:  # noqa: BLE001  a speed that nobody can tell is not known, and no reason to lose counts
            link = 0.0
        return _Ready(replace(self._totals().since(self._before), link_bytes_per_second=link))

    def _totals(self) -> CounterTotals:
        """Return independent copies of everything counted."""
        totals = CounterTotals.zero(self._groups)
        loaded, stored = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for group, counters in enumerate(self._counters):
            totals.selections[group] = counters.selections
            loaded.append(counters.loaded_bytes)
            stored.append(counters.stored_bytes)
            totals.fetches.merge(counters.fetches)
            totals.request_misses.merge(counters.request_misses)
        totals.loaded_bytes[:], totals.stored_bytes[:] = np.concatenate(loaded), np.concatenate(stored)
        return totals
