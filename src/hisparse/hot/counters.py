"""What an index group counts: selections by outcome where they are resolved, bytes where they are copied."""

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import AccountingError
from hisparse.kernels import COUNT_FIELDS
from hisparse.telemetry import CATALOGUE, Histogram, HistogramMetadata

FETCH_METRIC = "hisparse_hot_gather_seconds"
"""The metric whose buckets the durations of gathers are counted in."""


class GroupCounters:
    """Cumulative counts of one index group; they only grow, also when requests end.

    Attributes:
        selected: Selections handed to `record_selection`, padding included.
        loaded_bytes: int64 ``[layers of the group]``, bytes really copied.
        fetches: Gathers by duration, in the buckets `FETCH_METRIC` declares.
    """

    def __init__(self, *, requests: int, layers: int) -> None:
        """Start at zero for `requests` request slots and `layers` layers."""
        # The last row is for padding rows of a batch, whose request is -1.
        self._counts = np.zeros((requests + 1, len(COUNT_FIELDS)), np.int64)
        self.selected = 0
        self.loaded_bytes = np.zeros(layers, np.int64)
        self.fetches = Histogram.empty(_fetch_bounds())

    @property
    def selections(self) -> NDArray[np.int64]:
        """int64 ``[4]`` in the order of `hisparse.kernels.COUNT_FIELDS`."""
        total: NDArray[np.int64] = self._counts.sum(axis=0)
        return total

    @property
    def by_request(self) -> NDArray[np.int64]:
        """int64 ``[requests, 4]``, the same per request slot, without padding rows."""
        return self._counts[:-1]

    def record_selection(self, requests: NDArray[np.int32], counts: NDArray[np.int64], selected: int) -> None:
        """Add the outcome `counts` int64 ``[B, 4]`` of batch rows that belong to `requests` int32 ``[B]``."""
        np.add.at(self._counts, requests, counts)
        self.selected += selected

    def record_load(self, layer_idx: int, copied_bytes: int, seconds: float) -> None:
        """Add one gather of `copied_bytes` for the group's `layer_idx`-th layer, which took `seconds`."""
        self.loaded_bytes[layer_idx] += copied_bytes
        self.fetches.observe(seconds)

    def grow_requests(self, requests: int) -> None:
        """Make room for `requests` request slots; keeps every count."""
        missing = requests + 1 - len(self._counts)
        if missing > 0:
            self._counts = np.insert(self._counts, len(self._counts) - 1, np.zeros((missing, 1), np.int64), axis=0)

    def copy(self) -> "GroupCounters":
        """Return an independent object with the same counts."""
        copy = GroupCounters(requests=len(self.by_request), layers=len(self.loaded_bytes))
        copy._counts += self._counts
        copy.selected = self.selected
        copy.loaded_bytes += self.loaded_bytes
        copy.fetches.merge(self.fetches)
        return copy

    def check(self) -> None:
        """Recount; reads only.

        Raises:
            AccountingError: hit + miss + resident + padding is not what was selected.
        """
        hit, miss, resident, padding = (int(n) for n in self.selections)
        if hit + miss + resident + padding != self.selected:
            raise AccountingError(
                f"hit {hit} + miss {miss} + resident {resident} + padding {padding} != {self.selected} selections"
            )


def _fetch_bounds() -> tuple[float, ...]:
    """Return the bucket bounds the catalogue declares for gathers, in seconds."""
    metadata = CATALOGUE[FETCH_METRIC]
    assert isinstance(metadata, HistogramMetadata), metadata  # noqa: S101 - for the type checker
    return metadata.buckets
