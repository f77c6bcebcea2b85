"""The cache layer transformers talks to: rows go to the store, index keys stay on the device."""

from typing import Any

import torch
from transformers.cache_utils import DynamicIndexedLayer

from hisparse.errors import StateError
from hisparse.integrations.transformers.growth import GrowingTensor
from hisparse.integrations.transformers.slot import StoreSlot
from hisparse.integrations.transformers.store import RowStore, SelectedRows


class RowLayer(DynamicIndexedLayer):  # type: ignore[no-untyped-call] # transformers types no __init_subclass__
    """One indexed-attention layer of a `RowCache`.

    ``update`` is handed the latent and the rotary key of the new tokens.  When few enough queries come that
    their selection fits a step, it hands back only those, and attention asks `select` for the rows it reads;
    otherwise (prompt, large chunk) it hands back every row, for the stock attention.
    """

    # A layer type would register this class for every cache of the process.
    _layer_type = None

    def __init__(self, layer: int, slot: StoreSlot) -> None:
        """Serve model layer `layer` from the store in `slot`."""
        super().__init__()  # type: ignore[no-untyped-call] # transformers leaves it untyped
        self._layer = layer
        self._slot = slot
        self._index_keys: GrowingTensor | None = None
        self._is_armed = False
        self._reads_selection = False

    def arm(self) -> None:
        """Expect one forward pass of an enabled attention module; called by its hook."""
        self._is_armed = True
        self._reads_selection = False

    def take_reads_selection(self) -> bool:
        """Return whether attention must read this pass through `select`, and clear it."""
        reads_selection, self._reads_selection = self._reads_selection, False
        return reads_selection

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Take dtype and device; `keys` and `values` stay empty tensors for callers that look at them."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states.new_empty(0), value_states.new_empty(0)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the rows of new tokens; see the class for what comes back.

        Args:
            key_states: Latents ``[B, 1, S, R]``.
            value_states: Rotary keys ``[B, 1, S, P]``.

        Raises:
            StateError: The model calling was not enabled.
            HiSparseError: As the store's `append`; nothing was changed.
        """
        if not self._is_armed:
            raise StateError(
                "this cache needs an enabled model: call hisparse.integrations.transformers.enable(model) first"
            )
        self._is_armed = False
        store = self._slot.ensure(key_states.shape[0], key_states.dtype, key_states.device)
        past, queries, latent = store.length(self._layer), key_states.shape[2], key_states.shape[3]
        store.append(self._layer, torch.cat([key_states[:, 0], value_states[:, 0]], dim=-1))
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if past == 0:
            return key_states, value_states
        self._reads_selection = store.can_select(queries)
        if self._reads_selection:
            return key_states, value_states
        rows = store.history(self._layer)
        return rows[:, None, :, :latent].contiguous(), rows[:, None, :, latent:].contiguous()

    def select(self, topk: torch.Tensor) -> SelectedRows:
        """Return the rows at `topk` int32 ``[B, S, K]``, -1 padded."""
        return self._open_store().select(self._layer, topk)

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Append index keys ``[B, S, D]`` and return all of them ``[B, T, D]``."""
        if self._index_keys is None:
            batch, _, width = indexer_key_states.shape
            dtype, device = indexer_key_states.dtype, indexer_key_states.device
            self._index_keys = GrowingTensor(batch, width, dtype=dtype, device=device)
            self.is_indexer_initialized = True
        self._index_keys.append(indexer_key_states)
        self.indexer_keys = self._index_keys.view()
        return self.indexer_keys

    def restore(self, like: torch.Tensor, index_keys: torch.Tensor | None) -> None:
        """Go on from rows that the store has already.

        Args:
            like: A tensor of the rows' dtype, on their device.
            index_keys: Those of the rows, ``[B, T, D]``; None where the layer has none.
        """
        self.lazy_initialization(like, like)
        if index_keys is not None:
            self.update_indexer(index_keys)

    @property
    def index_key_bytes(self) -> int:
        """Device bytes of the index keys."""
        return 0 if self._index_keys is None else self._index_keys.nbytes

    def get_seq_length(self) -> int:
        """Return the tokens held."""
        return self._slot.length(self._layer)

    def truncate_index_keys(self, length: int) -> None:
        """Keep the index keys of the first `length` tokens."""
        if self._index_keys is not None:
            self._index_keys.truncate(length)
            self.indexer_keys = self._index_keys.view()

    def reindex_index_keys(self, sources: list[int]) -> None:
        """Copy the index keys of request ``sources[i]`` to place ``i``."""
        if self._index_keys is not None:
            self._index_keys.reindex(sources)
            self.indexer_keys = self._index_keys.view()

    def reset(self) -> None:
        """Drop index keys and the view of the store; the cache empties the store itself."""
        self.keys = self.values = self.indexer_keys = self._index_keys = None
        self.is_initialized = self.is_indexer_initialized = False
        self._is_armed = self._reads_selection = False

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse: layers of one request are cropped together, by the cache."""
        raise StateError(f"crop the cache, not one of its layers (asked to remove {-tokens_to_remove} tokens)")

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Refuse: requests are reordered in all layers together, by the cache."""
        raise StateError(f"reorder the cache, not one of its layers (asked for {beam_idx.tolist()})")

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Refuse: requests are repeated in all layers together, by the cache."""
        raise StateError(f"repeat the cache's batch, not one of its layers (asked for {repeats})")

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Refuse: requests are selected in all layers together, by the cache."""
        raise StateError(f"select in the cache's batch, not in one of its layers (asked for {indices.tolist()})")

    def offload(self) -> None:
        """Nothing to do: rows are on the host already."""

    def prefetch(self) -> None:
        """Nothing to do: rows are fetched when they are selected."""

    def _open_store(self) -> RowStore:
        """Return the open store.

        Raises:
            StateError: Nothing was appended yet.
        """
        if self._slot.store is None:
            raise StateError(f"layer {self._layer} was asked for rows before any were appended")
        return self._slot.store
