"""What an index group counts: selections by outcome where they are resolved, bytes where they are copied."""

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import AccountingError
from hisparse.kernels import COUNT_FIELDS
from hisparse.telemetry import CATALOGUE, Histogram, HistogramMetadata

FETCH_METRIC = "hisparse_hot_gather_seconds"
"""The metric whose buckets the durations of gathers are counted in."""
MISSES_METRIC = "hisparse_hot_request_misses_rows"
"""The metric whose buckets the misses of one request in one step are counted in."""

# Steps are added up when this many steps or batch rows have come. At one request a step costs 1.9 us in this
# way, histogram included, and 2.4 us where `np.add.at` adds each step to the counts alone (one core, 2026-11).
_MAX_STEPS = 64
_MAX_ROWS = 2048
_MISS = COUNT_FIELDS.index("miss")
_NOBODY = -1


class GroupCounters:
    """Cumulative counts of one index group; they only grow, also when requests end.

    Attributes:
        selected: Selections handed to `record_selection`, padding included.
        loaded_bytes: int64 ``[layers of the group]``, bytes really copied to hot buffers.
        stored_bytes: The same of rows copied to the host, as they were appended.
        fetches: Gathers by duration, in the buckets `FETCH_METRIC` declares.
    """

    def __init__(self, *, requests: int, layers: int) -> None:
        """Start at zero for `requests` request slots and `layers` layers."""
        # The last row is for padding rows of a batch, whose request is -1.
        self._counts = np.zeros((requests + 1, len(COUNT_FIELDS)), np.int64)
        self._steps: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []
        self._rows = 0
        self._request_misses = empty_histogram(MISSES_METRIC)
        self.selected = 0
        self.loaded_bytes = np.zeros(layers, np.int64)
        self.stored_bytes = np.zeros(layers, np.int64)
        self.fetches = empty_histogram(FETCH_METRIC)

    @property
    def selections(self) -> NDArray[np.int64]:
        """int64 ``[4]`` in the order of `hisparse.kernels.COUNT_FIELDS`."""
        self._add_steps()
        total: NDArray[np.int64] = self._counts.sum(axis=0)
        return total

    @property
    def by_request(self) -> NDArray[np.int64]:
        """int64 ``[requests, 4]``, the same per request slot, without padding rows."""
        self._add_steps()
        return self._counts[:-1]

    @property
    def request_misses(self) -> Histogram:
        """Misses of one request in one step, padding rows left out, in the buckets `MISSES_METRIC` declares."""
        self._add_steps()
        return self._request_misses

    def record_selection(self, requests: NDArray[np.int32], counts: NDArray[np.int64], selected: int) -> None:
        """Add the outcome of one step; equal neighbours in `requests` are rows of one request.

        Args:
            requests: int32 ``[B]``, request of each batch row, -1 for a padding row.
            counts: int64 ``[B, 4]``; kept until it is added up, so the caller gives it away.
            selected: Selections of the step, padding included.
        """
        self._steps.append((requests.copy(), counts))
        self._rows += len(requests)
        self.selected += selected
        if len(self._steps) >= _MAX_STEPS or self._rows >= _MAX_ROWS:
            self._add_steps()

    def record_load(self, layer_idx: int, copied_bytes: int, seconds: float) -> None:
        """Add one gather of `copied_bytes` for the group's `layer_idx`-th layer, which took `seconds`."""
        self.loaded_bytes[layer_idx] += copied_bytes
        self.fetches.observe(seconds)

    def record_store(self, layer_idx: int, copied_bytes: int) -> None:
        """Add `copied_bytes` of rows of the group's `layer_idx`-th layer that were copied to the host."""
        self.stored_bytes[layer_idx] += copied_bytes

    def grow_requests(self, requests: int) -> None:
        """Make room for `requests` request slots; keeps every count."""
        self._add_steps()
        missing = requests + 1 - len(self._counts)
        if missing > 0:
            self._counts = np.insert(self._counts, len(self._counts) - 1, np.zeros((missing, 1), np.int64), axis=0)

    def copy(self) -> "GroupCounters":
        """Return an independent object with the same counts."""
        copy = GroupCounters(requests=len(self.by_request), layers=len(self.loaded_bytes))
        copy._counts += self._counts
        copy.selected = self.selected
        copy.loaded_bytes += self.loaded_bytes
        copy.stored_bytes += self.stored_bytes
        copy.fetches.merge(self.fetches)
        copy._request_misses.merge(self._request_misses)
        return copy

    def check(self) -> None:
        """Recount; changes no count.

        Raises:
            AccountingError: hit + miss + resident + padding is not what was selected, or the misses of the
                requests are not those of the selections.
        """
        hit, miss, resident, padding = (int(n) for n in self.selections)
        if hit + miss + resident + padding != self.selected:
            raise AccountingError(
                f"hit {hit} + miss {miss} + resident {resident} + padding {padding} != {self.selected} selections"
            )
        if self.request_misses.sum != miss:
            raise AccountingError(f"misses of the requests {self.request_misses.sum} != miss {miss}")

    def _add_steps(self) -> None:
        """Add the steps that were put aside."""
        if not self._steps:
            return
        requests = np.concatenate([requests for requests, _ in self._steps])
        counts = np.concatenate([counts for _, counts in self._steps])
        firsts = np.cumsum([0, *(len(requests) for requests, _ in self._steps[:-1])])
        self._steps, self._rows = [], 0
        rows, fields = self._counts.shape
        # Every outcome of every request is one bin; a sum of doubles is exact up to 2**53.
        bins = (np.where(requests < 0, rows - 1, requests) * fields)[:, None] + np.arange(fields)
        added = np.bincount(bins.reshape(-1), counts.reshape(-1), rows * fields)
        self._counts += added.astype(np.int64).reshape(rows, fields)
        self._observe(requests, counts[:, _MISS], firsts)

    def _observe(self, requests: NDArray[np.int32], misses: NDArray[np.int64], firsts: NDArray[np.int64]) -> None:
        """Count the misses of every request of every step; steps begin at rows `firsts`."""
        begins = np.empty(len(requests), np.bool_)
        np.not_equal(requests[1:], requests[:-1], out=begins[1:])
        begins[firsts[firsts < len(requests)]] = True
        starts = np.flatnonzero(begins)
        if not len(starts):
            return
        of_requests = np.add.reduceat(misses, starts)[requests[starts] != _NOBODY]
        histogram = self._request_misses
        buckets = np.searchsorted(histogram.bounds, of_requests)
        added = np.bincount(buckets, minlength=len(histogram.counts)).tolist()
        histogram.merge(Histogram(histogram.bounds, added, float(of_requests.sum())))


def empty_histogram(name: str) -> Histogram:
    """Return a histogram without samples over the bucket bounds that the catalogue declares for metric `name`."""
    metadata = CATALOGUE[name]
    assert isinstance(metadata, HistogramMetadata), metadata  # noqa: S101 - for the type checker
    return Histogram.empty(metadata.buckets)
