"""Rows resident on the device: the fair baseline, and the store self-checks compare with."""

import torch

from hisparse.errors import ArrayError
from hisparse.integrations.transformers.geometry import ModelGeometry
from hisparse.integrations.transformers.growth import GrowingTensor
from hisparse.integrations.transformers.store import SelectedRows


class ResidentRows:
    """A batch of requests with every row on the device; selected rows are gathered from there."""

    def __init__(self, geometry: ModelGeometry, *, batch: int, dtype: torch.dtype, device: torch.device) -> None:
        """Start empty for `batch` requests."""
        self._batch = batch
        self._rows = {
            layer: GrowingTensor(batch, geometry.layers[layer].elements, dtype=dtype, device=device)
            for layer in geometry.row_layers
        }

    @property
    def batch(self) -> int:
        """Requests in the batch."""
        return self._batch

    @property
    def device_bytes(self) -> int:
        """Device bytes allocated for the rows."""
        return sum(rows.nbytes for rows in self._rows.values())

    def length(self, layer: int) -> int:
        """Return the rows held for each request of `layer`."""
        return self._rows[layer].length

    def reserve(self, tokens: int) -> None:
        """Nothing to ask for: rows grow on the device."""

    def append(self, layer: int, rows: torch.Tensor) -> None:
        """Append `rows` ``[B, S, W]``.

        Raises:
            ArrayError: The batch is not the one this cache was opened with.
        """
        if rows.shape[0] != self._batch:
            raise ArrayError(f"rows must be for {self._batch} requests, got {rows.shape[0]}; reset the cache")
        self._rows[layer].append(rows)

    def history(self, layer: int) -> torch.Tensor:
        """Return all rows ``[B, T, W]`` of `layer`, as a new tensor."""
        return self._rows[layer].view().contiguous()

    def can_select(self, queries: int) -> bool:
        """Return whether the queries are decoded; a chunk of several goes through the dense path."""
        return queries == 1

    def select(self, layer: int, topk: torch.Tensor) -> SelectedRows:
        """Gather the rows of `layer` at `topk` int32 ``[B, S, K]``."""
        batch, queries, columns = topk.shape
        flat, stride = self._rows[layer].flat()
        offsets = torch.arange(batch, device=topk.device).view(-1, 1, 1) * stride
        index = (topk.clamp(min=0) + offsets).view(-1)
        rows = flat.index_select(0, index).view(batch, queries, columns, -1)
        return SelectedRows(rows, topk >= 0)

    def truncate(self, length: int) -> None:
        """Keep the first `length` rows of every request."""
        for rows in self._rows.values():
            rows.truncate(length)

    def reindex(self, sources: list[int]) -> None:
        """Copy request ``sources[i]`` to place ``i``."""
        for rows in self._rows.values():
            rows.reindex(sources)
        self._batch = len(sources)

    def check(self) -> None:
        """Nothing is owned that could leak."""

    def close(self) -> None:
        """Nothing to give back."""
