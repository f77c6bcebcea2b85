"""Contract between cache layers and whatever holds their rows."""

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """Rows attention reads.

    Attributes:
        rows: ``[B, S, K, W]``, in the order of the selection.
        is_selected: bool ``[B, S, K]``, false where the selection was padding.
    """

    rows: torch.Tensor
    is_selected: torch.Tensor


class RowStore(Protocol):
    """Rows of all layers for one batch of requests."""

    @property
    def batch(self) -> int:
        """Requests in the batch."""
        ...

    @property
    def device_bytes(self) -> int:
        """Device bytes the rows occupy now."""
        ...

    def length(self, layer: int) -> int:
        """Return the rows held for each request of `layer`."""
        ...

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` tokens of every request, before any layer appends theirs; all or nothing."""
        ...

    def append(self, layer: int, rows: torch.Tensor) -> None:
        """Append `rows` ``[B, S, W]`` to every request of `layer`; all or nothing."""
        ...

    def history(self, layer: int) -> torch.Tensor:
        """Return all rows ``[B, T, W]`` of `layer` on the device, as a new tensor."""
        ...

    def can_select(self, queries: int) -> bool:
        """Return whether `queries` queries of one request always fit one step's selection."""
        ...

    def select(self, layer: int, topk: torch.Tensor) -> SelectedRows:
        """Return the rows of `layer` at `topk` int32 ``[B, S, K]``, -1 padded."""
        ...

    def truncate(self, length: int) -> None:
        """Keep the first `length` rows of every request and layer."""
        ...

    def reindex(self, sources: list[int]) -> None:
        """Make request ``i`` a continuation of request ``sources[i]``; the batch becomes ``len(sources)``."""
        ...

    def check(self) -> None:
        """Recount; raises AccountingError."""
        ...

    def close(self) -> None:
        """Give everything back; harmless when repeated."""
        ...
