"""Rows in the host pool, read through hot buffers."""

from collections.abc import Sequence

import torch

from hisparse.errors import ArrayError, StateError
from hisparse.host import HostPool
from hisparse.integrations.transformers.host_rows import HostRows
from hisparse.integrations.transformers.hot_level import HotLevel
from hisparse.integrations.transformers.plan import TierPlan
from hisparse.integrations.transformers.store import SelectedRows
from hisparse.integrations.transformers.tensors import as_bytes, to_host_bytes
from hisparse.layout import PageKey


class TieredRows:
    """A batch of requests whose rows are on the host and whose selected rows are made hot."""

    def __init__(
        self, plan: TierPlan, batch: int, pool: HostPool, *, prefixes: Sequence[Sequence[PageKey]] = ()
    ) -> None:
        """Admit `batch` requests to `pool`, or change nothing.

        Args:
            plan: What a batch needs.
            batch: Requests.
            pool: An open pool of the plan's formats; it stays open when this batch ends.
            prefixes: For each request the keys of its first pages; all begin with as many as every one finds.

        Raises:
            HotBufferError: The hot buffer is smaller than one selection.
            CapacityError: Pool or disk has no room for the batch.
        """
        self.plan = plan
        geometry = plan.geometry
        self.host = HostRows(
            pool, geometry.row_layers, geometry.index_layers, batch=batch, max_rows=plan.max_rows, prefixes=prefixes
        )
        try:
            self._hot = HotLevel(plan, self.host, batch)
        except BaseException:
            self.host.close()
            raise
        self._lengths = dict.fromkeys(geometry.row_layers, self.host.length)

    @property
    def batch(self) -> int:
        """Requests in the batch."""
        return self.host.batch

    @property
    def device_bytes(self) -> int:
        """Device bytes of the hot buffers."""
        return self._hot.nbytes

    def length(self, layer: int) -> int:
        """Return the rows held for each request of `layer`."""
        return self._lengths[layer]

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` tokens of every request, before any layer appends theirs; all or nothing.

        Raises:
            PositionError, HostPoolFullError: Beyond the admitted length.
            DiskFullError: The disk can't take them.
        """
        self.plan.check_room(tokens, self.batch)
        # A compressed row appears when the last of its tokens has come.
        self.host.extend(tokens // self.plan.geometry.tokens_per_row)

    def append(self, layer: int, rows: torch.Tensor) -> None:
        """Append `rows` ``[B, S, W]`` to every request of `layer`; all or nothing.

        Raises:
            ArrayError: The batch or the width is not the one this cache was opened with.
            StateError: Layers hold different lengths, or run on different devices.
            PositionError: Beyond the admitted length.
            CapacityError, StorageError: The disk can't take them.
        """
        self._check_rows(layer, rows)
        start, count = self._lengths[layer], rows.shape[1]
        if count == 0:
            return
        if start + count > self.plan.max_rows:
            self.plan.check_room((start + count) * self.plan.geometry.tokens_per_row, self.batch)
        self.host.extend(start + count)
        self.host.write(layer, start, to_host_bytes(rows))
        self._hot.record_store(layer, rows.nbytes)
        self._lengths[layer] = start + count

    def history(self, layer: int) -> torch.Tensor:
        """Return all rows ``[B, T, W]`` of `layer` on the device, as a new tensor."""
        length, width = self._lengths[layer], self.plan.geometry.layers[layer].elements
        rows = torch.empty(self.batch * length, width, dtype=self.plan.dtype)
        self.host.read(layer, length, as_bytes(rows))
        return rows.view(self.batch, length, width).to(self.plan.device)

    def index_keys(self, layer: int) -> torch.Tensor:
        """Return the index keys ``[B, T, D]`` that the pool has of the rows held, on the device, as a new tensor."""
        length, width = self.host.length, self.plan.geometry.layers[layer].index_elements
        keys = torch.empty(self.batch * length, width, dtype=self.plan.dtype)
        self.host.read_index_keys(layer, length, as_bytes(keys))
        return keys.view(self.batch, length, width).to(self.plan.device)

    def can_select(self, queries: int) -> bool:
        """Return whether `queries` queries of one request always fit one step's hot buffer."""
        return queries * self.plan.geometry.top_k <= self.plan.hot_slots

    def select(self, layer: int, topk: torch.Tensor) -> SelectedRows:
        """Make the rows of `layer` at `topk` int32 ``[B, S, K]`` hot, and return them from the hot buffer.

        Raises:
            InputError: The selection is wrong; nothing was changed.
            StorageError: Rows could not be read.
        """
        return self._hot.select(layer, topk)

    def truncate(self, length: int) -> None:
        """Keep the first `length` rows of every request; removed rows leave the hot buffer."""
        self._hot.forget(length, max(self._lengths.values()))
        self.host.truncate(length)
        self._lengths = {layer: min(held, length) for layer, held in self._lengths.items()}

    def reindex(self, sources: list[int]) -> None:
        """Let request ``i`` continue request ``sources[i]``; full pages are shared, moved requests start cold.

        Raises:
            HostPoolFullError: The pool has no room for the new batch; nothing was changed.
        """
        # What can fail comes first: a new hot level takes memory, the host may have no room.
        hot = self._hot if len(sources) == self.batch else HotLevel(self.plan, self.host, len(sources))
        self.host.reindex(sources)
        if hot is not self._hot:
            self._hot = hot
            return
        for request, source in enumerate(sources):
            if request != source:
                self._hot.reset(request)

    def check(self) -> None:
        """Recount pool, residencies and counters.

        Raises:
            AccountingError: A sum does not hold.
        """
        self.host.check()
        self._hot.check()

    def close(self) -> None:
        """End the requests; the pool stays open."""
        self.host.close()

    def _check_rows(self, layer: int, rows: torch.Tensor) -> None:
        """Refuse rows that do not belong to this batch, and a step that some layers did not finish."""
        plan, width = self.plan, self.plan.geometry.layers[layer].elements
        expected = (self.batch, rows.shape[1] if rows.ndim > 1 else 0, width)
        if tuple(rows.shape) != expected or rows.dtype != plan.dtype:
            raise ArrayError(
                f"rows of layer {layer} must be {plan.dtype}[{self.batch}, S, {width}], "
                f"got {rows.dtype}{list(rows.shape)}; reset the cache to use it for another batch"
            )
        if rows.device != plan.device:
            raise StateError(
                f"layer {layer} runs on {rows.device}, but this cache was opened on {plan.device}; "
                "models split over several devices are not supported"
            )
        if layer == next(iter(self._lengths)) and len(set(self._lengths.values())) > 1:
            held = sorted(set(self._lengths.values()))
            raise StateError(f"a forward pass stopped half way: layers hold {held} rows; reset the cache")
