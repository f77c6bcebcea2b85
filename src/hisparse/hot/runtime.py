"""One layer's view of its index group."""

import numpy as np
from numpy.typing import NDArray

from hisparse.hot.group import HiSparseIndexGroup
from hisparse.hot.step import Step


class HiSparseRuntime:
    """What attention of one layer calls: make the selected rows hot, and say in which slots they are."""

    def __init__(self, group: HiSparseIndexGroup, layer: int) -> None:
        """View `group` as `layer`, one of its layers."""
        self._group = group
        self._layer = layer

    @property
    def is_leader(self) -> bool:
        """Whether this layer resolves for its group."""
        return self._layer == self._group.layers[0]

    def fetch(self, requests: NDArray[np.int32], topk: NDArray[np.int32]) -> Step:
        """Resolve (leader) or replay (follower) the selection, and load this layer's misses.

        Args:
            requests: int32 ``[B]``, request slot of each row.
            topk: int32 ``[B, K]``, positions, -1 padded.

        Returns:
            The step; ``step.addresses.slots`` are valid in this layer's hot buffer until the group's next step.

        Raises:
            InputError: The selection is wrong; nothing was changed.
            StateError: A follower selects something else than its leader.
            StorageError: Rows could not be read; they will be misses again.
        """
        if self.is_leader:
            step = self._group.resolve(requests, topk)
        else:
            step = self._group.replay(self._layer, requests, topk)
        self._group.load(self._layer, step)
        return step
