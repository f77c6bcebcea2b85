"""What one step of one index group resolved to: computed once by the leader, replayed by the followers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hisparse.kernels import Resolution, StepAddresses


@dataclass(frozen=True, slots=True)
class Step:
    """One resolved selection.

    Attributes:
        requests: int32 ``[B]``, request of each batch row.
        topk: int32 ``[B, K]``, the positions that were resolved.
        resolution: What the residency decided.
        addresses: Where the selected rows are, and which rows go where.
        pending: Layers that have not loaded the misses yet; shrinks as they do.
    """

    requests: NDArray[np.int32]
    topk: NDArray[np.int32]
    resolution: Resolution
    addresses: StepAddresses
    pending: set[int]

    def is_same_selection(self, requests: NDArray[np.int32], topk: NDArray[np.int32]) -> bool:
        """Return whether (`requests`, `topk`) is what this step resolved; reads only."""
        return np.array_equal(self.topk, topk) and np.array_equal(self.requests, requests)
