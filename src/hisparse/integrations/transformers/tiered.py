"""Rows in the host pool, read through hot buffers."""

from collections.abc import Sequence

import numpy as np
import torch

from hisparse.config import CacheSettings
from hisparse.errors import ArrayError, HostPoolFullError, StateError
from hisparse.host import HostPool
from hisparse.hot import GroupCounters, HiSparseIndexGroup, HiSparseRuntime
from hisparse.integrations.transformers.device import hot_buffer_over, pinned_bytes
from hisparse.integrations.transformers.geometry import ModelGeometry
from hisparse.integrations.transformers.host_rows import HostRows
from hisparse.integrations.transformers.store import SelectedRows
from hisparse.integrations.transformers.tensors import as_bytes, row_format_of, to_host_bytes
from hisparse.kernels import Residency
from hisparse.layout import pages_for


class TieredRows:
    """A batch of requests whose rows are on the host and whose selected rows are made hot."""

    def __init__(
        self,
        geometry: ModelGeometry,
        settings: CacheSettings,
        counters: Sequence[GroupCounters],
        *,
        batch: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Admit `batch` requests, or change nothing.

        Args:
            geometry: Layers and groups of the model.
            settings: Sizes and places.
            counters: One per index group; they outlive this batch.
            batch: Requests.
            dtype: Of the rows.
            device: Where attention runs.

        Raises:
            HotBufferError: The hot buffer is smaller than one selection.
            CapacityError: Pool or disk has no room for the batch.
            StorageError: The pool can't be opened.
        """
        self._geometry = geometry
        self._settings = settings
        self._counters = counters
        self._hot_slots = settings.slots_for(geometry.top_k)
        pages, self._max_rows = _pool_size(geometry, settings, batch=batch, dtype=dtype)
        formats = [row_format_of(dtype, geometry.layers[layer].elements) for layer in geometry.row_layers]
        allocate = pinned_bytes if device.type == "cuda" else None
        self.host = HostRows(
            lambda: HostPool(pages, settings.page_rows, formats, settings.host_pool, allocate=allocate),
            geometry.row_layers,
            batch=batch,
            max_rows=self._max_rows,
        )
        self._lengths = dict.fromkeys(geometry.row_layers, 0)
        try:
            self._open_hot(batch, dtype, device)
        except BaseException:
            self.host.close()
            raise

    def _open_hot(self, batch: int, dtype: torch.dtype, device: torch.device) -> None:
        """Create fresh hot buffers, residencies and runtimes for `batch` requests."""
        layers, settings = self._geometry.layers, self._settings
        # A tensor made under inference_mode could not be written to outside of it.
        with torch.inference_mode(mode=False):
            self._hot = {
                layer: torch.zeros(batch * self._hot_slots, layers[layer].elements, dtype=dtype, device=device)
                for layer in self._geometry.row_layers
            }
        self._groups = []
        for members, counters in zip(self._geometry.groups, self._counters, strict=True):
            counters.grow_requests(batch)
            residency = Residency(
                max_requests=batch,
                hot_slots=self._hot_slots,
                max_positions=self._max_rows,
                top_k=self._geometry.top_k,
                page_rows=settings.page_rows,
                order=settings.order,
                backend=settings.backend,
            )
            buffers = [hot_buffer_over(self._hot[layer]) for layer in members]
            group = HiSparseIndexGroup(members, buffers, residency, source=self.host, counters=counters)
            self._groups.append(group)
        self._batch_rows = np.arange(batch, dtype=np.int32)
        self._runtimes = {layer: HiSparseRuntime(group, layer) for group in self._groups for layer in group.layers}

    @property
    def batch(self) -> int:
        """Requests in the batch."""
        return self.host.batch

    @property
    def device_bytes(self) -> int:
        """Device bytes of the hot buffers."""
        return sum(group.nbytes for group in self._groups)

    @property
    def config_labels(self) -> dict[str, str]:
        """What this batch was opened with, as labels."""
        settings = self._settings
        dtype = next(iter(self._hot.values())).dtype
        return {
            "top_k": str(self._geometry.top_k),
            "hot_slots": str(self._hot_slots),
            "page_rows": str(settings.page_rows),
            "order": settings.order,
            "backend": settings.backend,
            "host_pool": settings.host_pool.partition(":")[0],
            "row_format": str(dtype).removeprefix("torch."),
        }

    def length(self, layer: int) -> int:
        """Return the rows held for each request of `layer`."""
        return self._lengths[layer]

    def append(self, layer: int, rows: torch.Tensor) -> None:
        """Append `rows` ``[B, S, W]`` to every request of `layer`; all or nothing.

        Raises:
            ArrayError: The batch or the width is not the one this cache was opened with.
            PositionError: Beyond the admitted length.
            CapacityError, StorageError: The disk can't take them.
        """
        self._check_rows(layer, rows)
        start, count = self._lengths[layer], rows.shape[1]
        if count == 0:
            return
        self.host.extend(start + count)
        self.host.write(layer, start, to_host_bytes(rows))
        self._lengths[layer] = start + count

    def history(self, layer: int) -> torch.Tensor:
        """Return all rows ``[B, T, W]`` of `layer` on the device, as a new tensor."""
        hot = self._hot[layer]
        rows = torch.empty(self.batch * self._lengths[layer], hot.shape[1], dtype=hot.dtype)
        self.host.read(layer, self._lengths[layer], as_bytes(rows))
        return rows.view(self.batch, -1, hot.shape[1]).to(hot.device)

    def can_select(self, queries: int) -> bool:
        """Return whether `queries` queries of one request always fit one step's hot buffer."""
        return queries * self._geometry.top_k <= self._hot_slots

    def select(self, layer: int, topk: torch.Tensor) -> SelectedRows:
        """Make the rows of `layer` at `topk` int32 ``[B, S, K]`` hot, and return them from the hot buffer.

        Raises:
            InputError: The selection is wrong; nothing was changed.
            StorageError: Rows could not be read.
        """
        batch, queries, columns = topk.shape
        selection = topk.reshape(-1, columns).to("cpu", torch.int32).numpy()
        if columns < self._geometry.top_k:
            selection = np.pad(selection, ((0, 0), (0, self._geometry.top_k - columns)), constant_values=-1)
        requests = self._batch_rows if queries == 1 else np.repeat(self._batch_rows, queries)
        step = self._runtimes[layer].fetch(requests, np.ascontiguousarray(selection))
        hot = self._hot[layer]
        slots = torch.from_numpy(step.slots[:, :columns]).to(hot.device)
        is_selected = torch.from_numpy(step.is_selected[:, :columns]).to(hot.device)
        rows = hot.index_select(0, slots.reshape(-1)).view(batch, queries, columns, -1)
        return SelectedRows(rows, is_selected.view(batch, queries, columns))

    def truncate(self, length: int) -> None:
        """Keep the first `length` rows of every request; removed rows leave the hot buffer."""
        longest = max(self._lengths.values())
        if length < longest:
            removed = np.arange(length, longest, dtype=np.int32)
            for group in self._groups:
                for request in range(self.batch):
                    group.invalidate(request, removed)
        self.host.truncate(length)
        self._lengths = {layer: min(held, length) for layer, held in self._lengths.items()}

    def reindex(self, sources: list[int]) -> None:
        """Let request ``i`` continue request ``sources[i]``; full pages are shared, moved requests start cold.

        Raises:
            HostPoolFullError: The pool has no room for the new batch; nothing was changed.
        """
        is_same_batch = len(sources) == self.batch
        self.host.reindex(sources)
        if not is_same_batch:
            hot = next(iter(self._hot.values()))
            self._open_hot(len(sources), hot.dtype, hot.device)
            return
        for request, source in enumerate(sources):
            if request != source:
                for group in self._groups:
                    group.reset(request)

    def check(self) -> None:
        """Recount pool, residencies and counters.

        Raises:
            AccountingError: A sum does not hold.
        """
        self.host.check()
        for group in self._groups:
            group.check()

    def close(self) -> None:
        """Give the pool back."""
        self.host.close()

    def _check_rows(self, layer: int, rows: torch.Tensor) -> None:
        """Refuse rows that do not belong to this batch, and a step that some layers did not finish."""
        hot = self._hot[layer]
        expected = (self.batch, rows.shape[1] if rows.ndim > 1 else 0, hot.shape[1])
        if tuple(rows.shape) != expected or rows.dtype != hot.dtype:
            raise ArrayError(
                f"rows of layer {layer} must be {hot.dtype}[{self.batch}, S, {hot.shape[1]}], "
                f"got {rows.dtype}{list(rows.shape)}; reset the cache to use it for another batch"
            )
        if rows.device != hot.device:
            raise StateError(
                f"layer {layer} runs on {rows.device}, but this cache was opened on {hot.device}; "
                "models split over several devices are not supported"
            )
        first = self._geometry.row_layers[0]
        if layer == first and len(set(self._lengths.values())) > 1:
            held = sorted(set(self._lengths.values()))
            raise StateError(f"a forward pass stopped half way: layers hold {held} rows; reset the cache")


def _pool_size(geometry: ModelGeometry, settings: CacheSettings, *, batch: int, dtype: torch.dtype) -> tuple[int, int]:
    """Return (pages of the pool, rows one request may reach).

    Raises:
        HostPoolFullError: The pool's size limit holds less than one page for each request.
    """
    limit = geometry.rows_for(settings.max_positions or geometry.max_positions)
    if settings.host_pool_bytes is None:
        return batch * pages_for(limit, settings.page_rows), limit
    row_bytes = sum(row_format_of(dtype, geometry.layers[layer].elements).row_bytes for layer in geometry.row_layers)
    pages = settings.host_pool_bytes // (row_bytes * settings.page_rows)
    if pages < batch:
        raise HostPoolFullError(
            f"{batch} requests need at least {batch} pages of {row_bytes * settings.page_rows} bytes, "
            f"the pool holds {pages}; raise host_pool_bytes (now {settings.host_pool_bytes})"
        )
    if settings.max_positions is None:
        limit = min(limit, pages // batch * settings.page_rows)
    return pages, limit
