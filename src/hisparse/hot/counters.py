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
        selections: int64 ``[4]`` in the order of `hisparse.kernels.COUNT_FIELDS`.
        by_request: int64 ``[requests, 4]``, the same per request slot.
        selected: Selections handed to `record_selection`, padding included.
        loaded_bytes: int64 ``[layers of the group]``, bytes really copied.
        fetches: Gathers by duration, in the buckets `FETCH_METRIC` declares.
    """

    def __init__(self, *, requests: int, layers: int) -> None:
        """Start at zero for `requests` request slots and `layers` layers."""
        self.selections = np.zeros(len(COUNT_FIELDS), np.int64)
        self.by_request = np.zeros((requests, len(COUNT_FIELDS)), np.int64)
        self.selected = 0
        self.loaded_bytes = np.zeros(layers, np.int64)
        self.fetches = Histogram.empty(_fetch_bounds())

    def record_selection(self, requests: NDArray[np.int32], counts: NDArray[np.int64], selected: int) -> None:
        """Add the outcome `counts` int64 ``[B, 4]`` of batch rows that belong to `requests` int32 ``[B]``."""
        self.selections += counts.sum(axis=0)
        is_real = requests >= 0
        np.add.at(self.by_request, requests[is_real], counts[is_real])
        self.selected += selected

    def record_load(self, layer_idx: int, copied_bytes: int, seconds: float) -> None:
        """Add one gather of `copied_bytes` for the group's `layer_idx`-th layer, which took `seconds`."""
        self.loaded_bytes[layer_idx] += copied_bytes
        self.fetches.observe(seconds)

    def grow_requests(self, requests: int) -> None:
        """Make room for `requests` request slots; keeps every count."""
        missing = requests - len(self.by_request)
        if missing > 0:
            self.by_request = np.pad(self.by_request, ((0, missing), (0, 0)))

    def check(self) -> None:
        """Recount; reads only.

        Raises:
            AccountingError: hit + miss + resident + padding is not what was selected, or requests do not
                add up to the group.
        """
        hit, miss, resident, padding = (int(n) for n in self.selections)
        if hit + miss + resident + padding != self.selected:
            raise AccountingError(
                f"hit {hit} + miss {miss} + resident {resident} + padding {padding} != {self.selected} selections"
            )
        by_request = self.by_request.sum(axis=0)
        if (by_request > self.selections).any() or (by_request[:3] != self.selections[:3]).any():
            raise AccountingError(f"requests count {by_request.tolist()}, the group {self.selections.tolist()}")


def _fetch_bounds() -> tuple[float, ...]:
    """Return the bucket bounds the catalogue declares for gathers, in seconds."""
    metadata = CATALOGUE[FETCH_METRIC]
    assert isinstance(metadata, HistogramMetadata), metadata  # noqa: S101 - for the type checker
    return metadata.buckets
