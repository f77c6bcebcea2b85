"""An index group: the layers that read the same selection."""

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import StateError
from hisparse.hot.buffer import HotBuffer, RowSource
from hisparse.hot.counters import GroupCounters
from hisparse.hot.step import Step
from hisparse.kernels import Residency


class HiSparseIndexGroup:
    """Leader and followers that share one residency; each layer has its own hot buffer.

    The selection is resolved once a step, when the leader asks; every layer then loads the same misses into
    its own buffer.  A slot is served only after every layer of the step has loaded it: if a step stops half
    way, or a load fails, its misses are forgotten and become misses again.
    """

    def __init__(
        self,
        layers: Sequence[int],
        buffers: Sequence[HotBuffer],
        residency: Residency,
        *,
        source: RowSource,
        counters: GroupCounters,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Group `layers` (the first is the leader) over one `residency`.

        Args:
            layers: Layer numbers as `source` knows them.
            buffers: One hot buffer per layer, of ``max_requests * hot_slots`` rows.
            residency: State of the slots of all requests.
            source: Where missing rows come from.
            counters: Where selections and bytes are counted; may carry earlier totals.
            clock: Seconds, for the duration of gathers.
        """
        self.layers = tuple(layers)
        self.buffers = tuple(buffers)
        self.residency = residency
        self.counters = counters
        self._source = source
        self._clock = clock
        self._step: Step | None = None

    @property
    def nbytes(self) -> int:
        """Device bytes of the hot buffers of all layers."""
        return sum(buffer.nbytes for buffer in self.buffers)

    def resolve(self, requests: NDArray[np.int32], topk: NDArray[np.int32]) -> Step:
        """Resolve the selection of one step for all layers; moves no bytes.

        Args:
            requests: int32 ``[B]``, request slot of each row, -1 for a padding row.
            topk: int32 ``[B, K]``, positions, -1 padded, unique within a row.

        Returns:
            The step every layer of the group now loads.

        Raises:
            InputError: As `Residency.resolve`; nothing was changed.
        """
        self._forget_unloaded()
        source = self._source
        resolution, addresses = self.residency.resolve_rows(requests, topk, source.pages, length=source.length)
        self._step = step = Step(
            requests=requests,
            # Followers compare; the caller may write to its array before they do.
            topk=topk.copy() if len(self.layers) > 1 else topk,
            resolution=resolution,
            addresses=addresses,
            pending=set(self.layers),
        )
        self.counters.record_selection(requests, resolution.counts, topk.size)
        return step

    def replay(self, layer: int, requests: NDArray[np.int32], topk: NDArray[np.int32]) -> Step:
        """Return the leader's step for follower `layer`; reads only.

        Raises:
            StateError: The leader has not resolved this selection, or `layer` has already loaded it.
        """
        step = self._step
        if step is None or layer not in step.pending:
            raise StateError(f"layer {layer} has no step to replay: its leader {self.layers[0]} must resolve first")
        if not step.is_same_selection(requests, topk):
            raise StateError(f"layer {layer} selects other rows than its leader {self.layers[0]} resolved in this step")
        return step

    def load(self, layer: int, step: Step) -> int:
        """Gather the misses of `step` into the hot buffer of `layer`; returns the bytes copied.

        If the gather fails the misses are forgotten for all layers, and the error is passed on.
        """
        layer_idx = self.layers.index(layer)
        started = self._clock()
        try:
            copied = self.buffers[layer_idx].load(
                partial(self._source.gather, layer, step.addresses.miss_rows), step.addresses.miss_slots
            )
        except BaseException:
            self._forget_unloaded()
            raise
        self.counters.record_load(layer_idx, copied, self._clock() - started)
        step.pending.discard(layer)
        return copied

    def invalidate(self, request: int, positions: NDArray[np.int32]) -> None:
        """Forget rows that were rewritten or removed; their next use is a miss."""
        self._forget_unloaded()
        self.residency.invalidate(request, positions)

    def reset(self, request: int) -> None:
        """Return the slots of `request` to the fresh state."""
        self._forget_unloaded()
        self.residency.reset(request)

    def check(self) -> None:
        """Recount residency and counters.

        Raises:
            AccountingError: A sum does not hold.
        """
        self.residency.check()
        self.counters.check()

    def _forget_unloaded(self) -> None:
        """Make the misses of a step that some layer did not load misses again."""
        step, self._step = self._step, None
        if step is None or not step.pending:
            return
        misses = step.resolution
        for request in np.unique(misses.miss_request):
            self.residency.invalidate(int(request), misses.miss_position[misses.miss_request == request])
