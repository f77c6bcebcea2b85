"""A tensor that grows along its second axis without copying itself every step."""

import torch


class GrowingTensor:
    """``[B, T, W]`` with spare room: appending costs amortised constant time per row."""

    def __init__(self, batch: int, width: int, *, dtype: torch.dtype, device: torch.device) -> None:
        """Start empty."""
        # A tensor made under inference_mode could not be written to outside of it.
        with torch.inference_mode(mode=False):
            self._room = torch.empty(batch, 0, width, dtype=dtype, device=device)
        self._length = 0

    @property
    def length(self) -> int:
        """Rows held along the second axis."""
        return self._length

    @property
    def nbytes(self) -> int:
        """Bytes allocated, spare room included."""
        return self._room.nbytes

    def view(self) -> torch.Tensor:
        """Return ``[B, T, W]``, sharing memory until the next change."""
        return self._room[:, : self._length]

    def flat(self) -> tuple[torch.Tensor, int]:
        """Return (``[B * room, W]`` sharing memory, rows from one batch item to the next)."""
        return self._room.view(-1, self._room.shape[2]), self._room.shape[1]

    def append(self, rows: torch.Tensor) -> None:
        """Append `rows` ``[B, S, W]``."""
        stop = self._length + rows.shape[1]
        if stop > self._room.shape[1]:
            batch, _, width = self._room.shape
            # An eighth to spare: nine copies of a row over its life, and at most 12 % of memory unused.
            with torch.inference_mode(mode=False):
                room = self._room.new_empty(batch, stop + max(64, stop // 8), width)
            room[:, : self._length] = self.view()
            self._room = room
        self._room[:, self._length : stop] = rows.detach()
        self._length = stop

    def truncate(self, length: int) -> None:
        """Keep the first `length` rows."""
        self._length = min(self._length, length)

    def reindex(self, sources: list[int]) -> None:
        """Copy batch item ``sources[i]`` to place ``i``."""
        with torch.inference_mode(mode=False), torch.no_grad():
            self._room = self._room.index_select(0, torch.tensor(sources, device=self._room.device))
