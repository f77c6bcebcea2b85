"""deepseek_v4: one row stands for several tokens, and the selection is made inside a compressor module.

The model passes no indices to attention.  Three hooks per compressor make the difference: one marks a decode
step, one keeps the indexer's selection, one replaces the compressor's output by the selected rows.
"""

from typing import Any

import torch
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4CSACache, DeepseekV4CSACompressor

from hisparse.errors import StateError
from hisparse.integrations.transformers.hooks import InstalledHook
from hisparse.integrations.transformers.slot import StoreSlot

_ROWS = "compressor"


class CompressedRowLayer(DeepseekV4CSACache):  # type: ignore[no-untyped-call] # transformers types no __init_subclass__
    """A compressed-sparse-attention layer whose entries are rows of the store.

    The sliding window, the compression buffers and the index keys stay where the stock layer keeps them.
    """

    # A layer type would register this class for every cache of the process.
    _layer_type: str | None = None  # type: ignore[assignment] # the base class is inferred as str from its own value
    # Generation methods that roll back ask this first.
    is_croppable = False

    def __init__(self, layer: int, slot: StoreSlot, config: Any) -> None:
        """Serve model layer `layer` from the store in `slot`; `config` is the text config."""
        super().__init__(config)
        self._layer = layer
        self._slot = slot
        self._is_armed = False
        self._is_decoding = False
        self._selection: torch.Tensor | None = None

    def arm(self, queries: int) -> None:
        """Expect one pass of an enabled compressor over `queries` tokens."""
        self._is_armed = True
        self._is_decoding = queries == 1 and self._slot.length(self._layer) > 0
        self._selection = None

    def keep_selection(self, indices: torch.Tensor) -> None:
        """Keep the indexer's output ``[B, S, K]``, -1 where invalid, for `take_rows`."""
        self._selection = indices

    def update_compressor_states(self, name: str, compressed: torch.Tensor) -> torch.Tensor:
        """Append entries ``[B, S, D]`` and return all of them; while decoding, a placeholder of their shape.

        Raises:
            StateError: The model calling was not enabled.
            HiSparseError: As the store's `append`; nothing was changed.
        """
        if name != _ROWS:
            all_entries: torch.Tensor = super().update_compressor_states(name, compressed)
            return all_entries
        if not self._is_armed:
            raise StateError(
                "this cache needs an enabled model: call hisparse.integrations.transformers.enable(model) first"
            )
        self._is_armed = False
        store = self._slot.ensure(compressed.shape[0], compressed.dtype, compressed.device)
        store.append(self._layer, compressed)
        self.entry_count[name] += compressed.shape[1]
        length = store.length(self._layer)
        # The indexer may select an entry that this very step completed: decide only now what is there to read.
        if self._is_decoding:
            return compressed.new_zeros(1).expand(compressed.shape[0], length, compressed.shape[2])
        return store.history(self._layer) if length > compressed.shape[1] else compressed

    def take_rows(self, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the selected rows ``[B, 1, K, D]`` and their bias ``[B, 1, 1, K]``, or None when not decoding.

        Args:
            bias: The stock bias ``[B, 1, 1, T]``, for its dtype.
        """
        selection, self._selection = self._selection, None
        store = self._slot.store
        if not self._is_decoding or selection is None or store is None:
            return None
        selected = store.select(self._layer, selection.to(torch.int32))
        new_bias = bias.new_zeros(selected.is_selected.shape).masked_fill(~selected.is_selected, float("-inf"))
        return selected.rows, new_bias.unsqueeze(1)

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse: compressed entries can't be split into the tokens they were made of.

        Raises:
            StateError: Always, unless there is nothing to remove.
        """
        if tokens_to_remove != 0:
            raise StateError(
                f"deepseek_v4 can't forget {-tokens_to_remove} tokens: its entries are compressed from several tokens; "
                "use a decoding method that does not crop"
            )

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Refuse, as the stock layer does not repeat its compression buffers."""
        raise StateError(f"deepseek_v4 can't repeat its batch {repeats} times: compression buffers don't follow")

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Refuse, as the stock layer does not select in its compression buffers."""
        raise StateError(f"deepseek_v4 can't select requests {indices.tolist()}: compression buffers don't follow")

    def reset(self) -> None:
        """Drop everything; the cache empties the store itself."""
        super().reset()
        self._is_armed = self._is_decoding = False
        self._selection = None


class CompressorHook(InstalledHook):
    """The three hooks of one compressor."""

    def arm(self, _module: Any, args: tuple[Any, ...]) -> None:
        """Pre-hook of the compressor: tell the layer how many tokens come."""
        layer = _layer_of(args)
        if layer is not None:
            layer.arm(args[0].shape[1])

    def keep_selection(self, _module: Any, args: tuple[Any, ...], output: torch.Tensor) -> None:
        """Hook of the indexer: keep what it selected."""
        layer = _layer_of(args)
        if layer is not None:
            layer.keep_selection(output)

    def replace_rows(
        self, _module: Any, args: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Hook of the compressor: hand selected rows to attention instead of the placeholder."""
        layer = _layer_of(args)
        return None if layer is None else layer.take_rows(output[1])


def hook_compressors(model: Any) -> list[Any]:
    """Install the hooks on every compressor of `model` and return their handles."""
    handles = []
    for module in model.modules():
        if isinstance(module, DeepseekV4CSACompressor):
            hook = CompressorHook()
            handles.append(module.register_forward_pre_hook(hook.arm))
            handles.append(module.indexer.register_forward_hook(hook.keep_selection))
            handles.append(module.register_forward_hook(hook.replace_rows))
    return handles


def _layer_of(args: tuple[Any, ...]) -> CompressedRowLayer | None:
    """Return the compressed layer a compressor or indexer call uses: its last arguments are (cache, layer)."""
    cache, layer_idx = args[3], args[4]
    layer = None if cache is None else cache.layers[layer_idx]
    return layer if isinstance(layer, CompressedRowLayer) else None
