"""The hot buffers of a batch, and the index groups that fill them."""

import numpy as np
import torch

from hisparse.errors import SettingError
from hisparse.hot import HiSparseIndexGroup, HiSparseRuntime, RowSource
from hisparse.integrations.transformers.device import hot_buffer_over
from hisparse.integrations.transformers.plan import TierPlan
from hisparse.integrations.transformers.store import SelectedRows
from hisparse.integrations.transformers.tensors import to_host_numbers
from hisparse.kernels import Residency, map_memory


class HotLevel:
    """One hot buffer per layer and one residency per index group, for `batch` requests; starts cold."""

    def __init__(self, plan: TierPlan, source: RowSource, batch: int) -> None:
        """Take the device memory; missing rows will come from `source`."""
        self._rows = {
            layer: zero_rows(batch * plan.hot_slots, plan.geometry.layers[layer].elements, plan)
            for layer in plan.geometry.row_layers
        }
        self._groups = [
            HiSparseIndexGroup(
                members,
                [hot_buffer_over(self._rows[layer]) for layer in members],
                _fresh_residency(plan, batch),
                source=source,
                counters=counters,
            )
            for members, counters in zip(plan.geometry.groups, plan.counters, strict=True)
        ]
        for counters in plan.counters:
            counters.grow_requests(batch)
        self._runtimes = {layer: HiSparseRuntime(group, layer) for group in self._groups for layer in group.layers}
        self._counted = {
            layer: (group.counters, idx) for group in self._groups for idx, layer in enumerate(group.layers)
        }
        self._requests = np.arange(batch, dtype=np.int32)
        self._top_k = plan.geometry.top_k

    @property
    def nbytes(self) -> int:
        """Device bytes of the hot buffers."""
        return sum(group.nbytes for group in self._groups)

    def select(self, layer: int, topk: torch.Tensor) -> SelectedRows:
        """Make the rows of `layer` at `topk` int32 ``[B, S, K]`` hot, and return them from the hot buffer.

        Raises:
            InputError: The selection is wrong; nothing was changed.
            StorageError: Rows could not be read.
        """
        batch, queries, columns = topk.shape
        selection = to_host_numbers(topk).reshape(-1, columns)
        if columns < self._top_k:
            selection = np.pad(selection, ((0, 0), (0, self._top_k - columns)), constant_values=-1)
        requests = self._requests if queries == 1 else np.repeat(self._requests, queries)
        addresses = self._runtimes[layer].fetch(requests, selection).addresses
        slots, is_selected = addresses.slots, addresses.is_selected
        if columns < self._top_k:
            slots, is_selected = slots[:, :columns], is_selected[:, :columns]
        hot = self._rows[layer]
        index = torch.from_numpy(slots.reshape(-1))
        mask = torch.from_numpy(is_selected.reshape(batch, queries, columns))
        if not hot.is_cpu:
            index, mask = index.to(hot.device), mask.to(hot.device)
        return SelectedRows(hot.index_select(0, index).view(batch, queries, columns, -1), mask)

    def record_store(self, layer: int, copied_bytes: int) -> None:
        """Count `copied_bytes` of rows of `layer` that were copied to the host."""
        counters, layer_idx = self._counted[layer]
        counters.record_store(layer_idx, copied_bytes)

    def forget(self, start: int, stop: int) -> None:
        """Forget positions ``start .. stop - 1`` of every request."""
        positions = np.arange(start, stop, dtype=np.int32)
        for group in self._groups:
            for request in self._requests:
                group.invalidate(int(request), positions)

    def reset(self, request: int) -> None:
        """Make `request` cold in every group."""
        for group in self._groups:
            group.reset(request)

    def check(self) -> None:
        """Recount residencies and counters.

        Raises:
            AccountingError: A sum does not hold.
        """
        for group in self._groups:
            group.check()


def zero_rows(count: int, width: int, plan: TierPlan) -> torch.Tensor:
    """Return zeroed rows ``[count, width]`` on the plan's device, on a CPU in memory that is quick to gather into."""
    # A tensor made under inference_mode could not be written to outside of it.
    with torch.inference_mode(mode=False):
        if plan.device.type != "cpu":
            return torch.zeros(count, width, dtype=plan.dtype, device=plan.device)
        try:
            memory = map_memory(count * width * plan.dtype.itemsize)
        except (OSError, OverflowError, ValueError) as error:
            raise SettingError(
                f"no memory for hot buffers of {plan.hot_slots} rows of {width} values for each request and layer "
                f"({error}); lower hot_slots"
            ) from error
        return torch.from_numpy(memory).view(plan.dtype).view(count, width)


def _fresh_residency(plan: TierPlan, batch: int) -> Residency:
    """Return the residency of one index group, all slots free."""
    return Residency(
        max_requests=batch,
        hot_slots=plan.hot_slots,
        max_positions=plan.max_rows,
        top_k=plan.geometry.top_k,
        page_rows=plan.settings.page_rows,
        order=plan.settings.order,
        backend=plan.settings.backend,
    )
