"""How one batch is laid out over pool and hot buffers: everything that follows from config, settings and dtype."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hisparse.config import CacheSettings
from hisparse.errors import HostPoolFullError, PositionError
from hisparse.hot import GroupCounters
from hisparse.integrations.transformers.geometry import ModelGeometry
from hisparse.integrations.transformers.tensors import row_format_of
from hisparse.layout import RowFormat, pages_for


@dataclass(frozen=True, slots=True)
class TierPlan:
    """What a batch needs.

    Attributes:
        geometry: Layers and groups of the model.
        settings: Sizes and places.
        counters: One per index group; they outlive the batch.
        dtype: Of the rows.
        device: Where attention runs.
        pages: Pages of the host pool.
        max_tokens: Tokens one request may reach.
    """

    geometry: ModelGeometry
    settings: CacheSettings
    counters: Sequence[GroupCounters]
    dtype: torch.dtype
    device: torch.device
    pages: int
    max_tokens: int

    @property
    def hot_slots(self) -> int:
        """Hot slots of one request and layer."""
        return self.settings.slots_for(self.geometry.top_k)

    @property
    def max_rows(self) -> int:
        """Rows one request may reach in each layer."""
        return self.geometry.rows_for(self.max_tokens)

    def check_room(self, tokens: int, batch: int) -> None:
        """Refuse `batch` requests of more tokens than they were admitted for; names the setting that limits them.

        Raises:
            HostPoolFullError: The pool's size limit is what they exceed.
            PositionError: `max_positions`, or the model's own limit, is.
        """
        if tokens <= self.max_tokens:
            return
        if self.settings.max_positions is None and self.max_tokens < self.geometry.max_positions:
            needed = batch * pages_for(self.geometry.rows_for(tokens), self.settings.page_rows)
            raise HostPoolFullError(
                f"{batch} requests of {tokens} positions need {needed} pages, the pool holds {self.pages}; "
                f"raise host_pool_bytes (now {self.settings.host_pool_bytes})"
            )
        raise PositionError(
            f"position {tokens - 1} is beyond the {self.max_tokens} positions this cache was admitted for; "
            "raise max_positions"
        )

    @property
    def row_formats(self) -> list[RowFormat]:
        """Row format of each layer that has rows."""
        return _row_formats(self.geometry, self.dtype)

    @property
    def pool_formats(self) -> list[RowFormat]:
        """Row format of each layer of the host pool: the rows, then the index keys."""
        return _pool_formats(self.geometry, self.dtype)

    @property
    def labels(self) -> dict[str, str]:
        """The plan in words, for an info metric."""
        return {
            "top_k": str(self.geometry.top_k),
            "hot_slots": str(self.hot_slots),
            "page_rows": str(self.settings.page_rows),
            "order": self.settings.order,
            "backend": self.settings.backend,
            "host_pool": self.settings.host_pool.partition(":")[0],
            "row_format": self.row_formats[0].name,
        }


def plan_batch(
    geometry: ModelGeometry,
    settings: CacheSettings,
    counters: Sequence[GroupCounters],
    *,
    batch: int,
    dtype: torch.dtype,
    device: torch.device,
) -> TierPlan:
    """Size the pool for `batch` requests.

    Raises:
        HostPoolFullError: The pool's size limit holds less than one page for each request.
        SettingError: Rows of `dtype` are not supported.
    """
    limit = settings.max_positions or geometry.max_positions
    pages = batch * pages_for(geometry.rows_for(limit), settings.page_rows)
    if settings.host_pool_bytes is not None:
        row_bytes = sum(row_format.row_bytes for row_format in _pool_formats(geometry, dtype))
        page_bytes = row_bytes * settings.page_rows
        pages = settings.host_pool_bytes // page_bytes
        if pages < batch:
            raise HostPoolFullError(
                f"{batch} requests need at least {batch} pages of {page_bytes} bytes, the pool holds {pages}; "
                f"raise host_pool_bytes (now {settings.host_pool_bytes})"
            )
        if settings.max_positions is None:
            limit = min(limit, pages // batch * settings.page_rows * geometry.tokens_per_row)
    return TierPlan(geometry, settings, counters, dtype, device, pages, limit)


def _row_formats(geometry: ModelGeometry, dtype: torch.dtype) -> list[RowFormat]:
    """Return the row format of each layer that has rows."""
    return [row_format_of(dtype, geometry.layers[layer].elements) for layer in geometry.row_layers]


def _pool_formats(geometry: ModelGeometry, dtype: torch.dtype) -> list[RowFormat]:
    """Return the row formats, then the format of the index keys of each layer whose prefixes need them."""
    keys = [row_format_of(dtype, geometry.layers[layer].index_elements) for layer in geometry.index_layers]
    return [*_row_formats(geometry, dtype), *keys]
