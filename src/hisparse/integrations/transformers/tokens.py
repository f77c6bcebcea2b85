"""Which tokens a cache holds, as far as that is known: what pages are named by."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from hisparse.integrations.transformers.growth import GrowingTensor


@dataclass(frozen=True, slots=True)
class SeenTokens:
    """The tokens of one forward pass whose rows depend on nothing but the tokens before them.

    Attributes:
        ids: ``[B, S]``.
        mask: Which tokens so far are read, ``[B, T]``, 0 where one is not; None where all are.
        positions: Of the tokens, ``[B, S]`` or ``[1, S]``; None where they are counted from the first.
    """

    ids: torch.Tensor
    mask: torch.Tensor | None
    positions: torch.Tensor | None

    @classmethod
    def of(cls, given: Mapping[str, Any], *, training: bool) -> Self | None:
        """Read the arguments of a decoder's forward; None where they do not say what its rows are made of."""
        ids, mask, positions = (given.get(name) for name in ("input_ids", "attention_mask", "position_ids"))
        if training or given.get("inputs_embeds") is not None or not _is_matrix(ids):
            return None
        if not all(tensor is None or _is_matrix(tensor) for tensor in (mask, positions)):
            return None
        return cls(ids, mask, positions)


class TokenRecord:
    """The first tokens of every request of a batch; tokens stay where the rows are and are read when asked for.

    A request that was padded, masked or given positions of its own is left out from then on: its rows are not
    those of its tokens alone.
    """

    def __init__(self) -> None:
        """Start without requests."""
        self._tokens: GrowingTensor | None = None
        self._is_odd = torch.zeros(0, dtype=torch.bool)

    @property
    def length(self) -> int:
        """Tokens known of every request."""
        return 0 if self._tokens is None else self._tokens.length

    def append(self, start: int, seen: SeenTokens | None) -> None:
        """Note the tokens of a pass that began after `start` of them; unknown ones, and all after, are not noted."""
        if seen is None or start != self.length:
            return
        batch, count = seen.ids.shape
        device = seen.ids.device
        if self._tokens is None:
            self._tokens = GrowingTensor(batch, 1, dtype=torch.int64, device=device)
            self._is_odd = torch.zeros(batch, dtype=torch.bool, device=device)
        self._tokens.append(seen.ids.unsqueeze(2))
        # Comparisons stay on the device: reading one back would make every step wait for it.
        if seen.mask is not None:
            self._is_odd = self._is_odd | (seen.mask == 0).any(dim=1)
        if seen.positions is not None:
            expected = torch.arange(start, start + count, device=seen.positions.device)
            self._is_odd = self._is_odd | (seen.positions != expected).any(dim=1)

    def known(self) -> list[NDArray[np.int64]]:
        """Return the known tokens of each request, int64 ``[T]``, none of a request that is left out."""
        if self._tokens is None:
            return []
        rows = self._tokens.view().squeeze(2).cpu().numpy()
        return [row[:0] if is_odd else row for row, is_odd in zip(rows, self._is_odd.tolist(), strict=True)]

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        if self._tokens is not None:
            self._tokens.truncate(length)

    def reindex(self, sources: list[int]) -> None:
        """Let request ``i`` continue request ``sources[i]``."""
        if self._tokens is not None:
            self._tokens.reindex(sources)
            self._is_odd = self._is_odd[torch.tensor(sources, device=self._is_odd.device)]

    def clear(self) -> None:
        """Forget all requests."""
        self._tokens = None


def _is_matrix(tensor: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(tensor, torch.Tensor) and tensor.ndim == 2  # noqa: PLR2004 - a matrix
