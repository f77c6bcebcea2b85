"""A cache of rows: what all caches of this package share, whatever holds their rows."""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache

from hisparse.errors import ArrayError, InputError, PositionError, StateError
from hisparse.integrations.transformers.geometry import ModelGeometry
from hisparse.integrations.transformers.layers import RowLayer
from hisparse.integrations.transformers.slot import StoreSlot
from hisparse.integrations.transformers.tokens import SeenTokens


@dataclass(frozen=True, slots=True)
class _PassStart:
    """What a cache held before the forward pass that is open: tokens, rows, and tokens of each stock layer."""

    tokens: int
    rows: int
    other_lengths: tuple[int, ...]


class RowCache(Cache):
    """A cache whose indexed layers keep their rows in one store; its other layers are stock ones.

    A forward pass of an enabled model begins and ends here.  One that fails or is interrupted is undone: the
    cache is as it was before, or, where a stock layer cannot go back, refuses to go on until it is reset.
    """

    def __init__(self, config: Any, geometry: ModelGeometry, slot: StoreSlot) -> None:
        """Make one layer object per model layer.

        Args:
            config: The transformers config, for the stock layers.
            geometry: Which layers have rows.
            slot: Where the layers find their store.
        """
        layers = DynamicCache(config=config).layers
        for layer, plan in enumerate(geometry.layers):
            if plan.kind == "rows":
                layers[layer] = RowLayer(layer, slot)
            elif plan.kind == "compressed":
                from hisparse.integrations.transformers.compressed import CompressedRowLayer  # noqa: PLC0415 - one model

                layers[layer] = CompressedRowLayer(layer, slot, config.get_text_config(decoder=True))
        super().__init__(layers=layers)
        self._geometry = geometry
        self._slot = slot
        self._open_pass: _PassStart | None = None
        self._is_broken = False

    @property
    def device_kv_bytes(self) -> int:
        """Device bytes of everything cached: selected or resident rows, index keys, stock layers."""
        rows = 0 if self._slot.store is None else self._slot.store.device_bytes
        return rows + sum(_layer_bytes(layer) for layer in self.layers)

    def begin_pass(self, batch: int, queries: int) -> None:
        """Make room for the tokens of a forward pass, before any layer runs; called by the hook of an enabled model.

        Args:
            batch: Requests of the pass.
            queries: Tokens of each.

        Raises:
            StateError: An earlier pass stopped half way and could not be undone.
            ArrayError: The batch is not the one this cache holds.
            PositionError, DiskFullError: The tokens have no room; nothing was changed.
        """
        self._settle()
        store, tokens = self._slot.store, self.get_seq_length()
        if store is not None:
            if batch != store.batch:
                raise ArrayError(
                    f"this cache holds {store.batch} requests, the pass has {batch}; reset it for another batch"
                )
            store.reserve(tokens + queries)
        self._open_pass = _PassStart(tokens, self._slot.length(self._geometry.row_layers[0]), self._other_lengths())

    def end_pass(self, seen: SeenTokens | None = None) -> None:  # noqa: ARG002 - for caches that name their pages
        """Keep what the pass appended; `seen` says what it was, where that is known."""
        self._open_pass = None

    def fail_pass(self) -> None:
        """Undo the pass: back to the length at its start, or unusable until `reset` where layers can't go back."""
        start, self._open_pass = self._open_pass, None
        if start is None:
            return
        if start.tokens == 0:
            self.reset()
        elif self._other_lengths() != start.other_lengths:
            self._is_broken = True
        else:
            self._truncate(start.tokens, start.rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the tokens held before the pass that is open, if one is."""
        if self._open_pass is not None:
            return self._open_pass.tokens
        length: int = super().get_seq_length(layer_idx)
        return length

    def take_over(self, stock: Cache, tokens: int | None = None) -> None:
        """Copy rows and index keys of a stock cache, as if this one had run the same tokens; `stock` is not changed.

        Args:
            stock: A cache of the same model, all of whose layers keep one row a token.
            tokens: How many of its tokens to take; default all.

        Raises:
            InputError: A layer is of another kind or width, or `stock` holds fewer tokens; nothing was changed.
            StateError: This cache is not empty.
            CapacityError: No room, see `HiSparseCache`; nothing was changed.
        """
        count = stock.get_seq_length() if tokens is None else tokens
        self._settle()
        targets, sources = self._row_layers(), self._sources(stock)
        if not 0 < count <= stock.get_seq_length():
            raise InputError(
                f"tokens must be 1 to the {stock.get_seq_length()} that the stock cache holds, got {count}"
            )
        if self.get_seq_length() > 0:
            raise StateError(f"take over into an empty cache: this one holds {self.get_seq_length()} tokens; reset it")
        try:
            for target, source in zip(targets, sources, strict=True):
                target.arm()
                target.update(source.keys[:, :, :count], source.values[:, :, :count])
                if source.is_indexer_initialized:
                    target.update_indexer(source.indexer_keys[:, :count])
        except BaseException:
            self.reset()
            raise

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the newest tokens of every request.

        Args:
            tokens_to_remove: Minus the number of tokens; 0 changes nothing.

        Raises:
            InputError: Positive, or more tokens than are cached; nothing was changed.
            StateError: A layer of this model can't be cropped.
        """
        self._settle()
        tokens_to_remove = operator.index(tokens_to_remove)
        held = self.get_seq_length()
        if tokens_to_remove > 0 or -tokens_to_remove > held:
            raise InputError(f"crop takes minus the tokens to remove, between -{held} and 0, got {tokens_to_remove}")
        if tokens_to_remove == 0:
            return
        for layer in self._other_layers():
            if not layer.is_croppable:
                raise StateError(
                    f"{self._geometry.model_type} can't forget tokens ({type(layer).__name__}); "
                    "use a decoding method that does not crop"
                )
        for layer in self._other_layers():
            layer.crop(tokens_to_remove)
        self._truncate(held + tokens_to_remove, held + tokens_to_remove)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let request ``i`` continue request ``beam_idx[i]``; pages are shared until they differ.

        Raises:
            PositionError: A request is not there; nothing was changed.
        """
        self._reindex([int(source) for source in beam_idx])
        for layer in self._other_layers():
            layer.reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every request `repeats` times, neighbours together.

        Raises:
            StateError: A layer of this model can't; nothing was changed.
            PositionError: `repeats` is below 1; nothing was changed.
            HostPoolFullError: The pool has no room for the copies; nothing was changed.
        """
        self._check_batch_can_change()
        batch = 0 if self._slot.store is None else self._slot.store.batch
        self._reindex([request for request in range(batch) for _ in range(repeats)])
        for layer in self._other_layers():
            layer.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the requests in `indices` (numbers, from the end if negative, or a mask), in that order.

        Raises:
            StateError: A layer of this model can't; nothing was changed.
            PositionError: A request is not there, or none is kept; nothing was changed.
        """
        self._check_batch_can_change()
        if self._slot.store is not None:
            batch = self._slot.store.batch
            try:
                kept = torch.arange(batch)[indices.to("cpu")]
            except IndexError as error:
                raise PositionError(f"indices must be among the {batch} requests of this cache: {error}") from error
            self._reindex([int(source) for source in kept])
        for layer in self._other_layers():
            layer.batch_select_indices(indices)

    def reset(self) -> None:
        """End all requests and start empty; what was counted stays counted."""
        self._open_pass, self._is_broken = None, False
        self._slot.empty()
        for layer in self.layers:
            layer.reset()

    def check(self) -> None:
        """Recount everything that is owned.

        Raises:
            AccountingError: A sum does not hold; the message prints it.
        """
        if self._slot.store is not None:
            self._slot.store.check()

    def close(self) -> None:
        """End all requests and give the host pool back; counts can still be read."""
        self.reset()
        self._slot.close()

    def __reduce__(self) -> Any:
        """Refuse to be copied or pickled: a copy would own the same pool.

        Raises:
            StateError: Always.
        """
        raise StateError(f"{type(self).__name__} can't be copied: two caches would own one pool; make a new one")

    def _settle(self) -> None:
        """Undo a pass that was interrupted without a word (Ctrl-C runs no hooks); refuse if that can't be done.

        Raises:
            StateError: A layer can't go back.
        """
        self.fail_pass()
        if self._is_broken:
            raise StateError(
                "a forward pass stopped half way and this model's stock layers can't go back; reset the cache"
            )

    def _truncate(self, tokens: int, rows: int) -> None:
        """Keep the first `rows` rows of the store and the first `tokens` index keys."""
        if self._slot.store is not None:
            self._slot.store.truncate(rows)
        for layer in self._row_layers():
            layer.truncate_index_keys(tokens)

    def _other_lengths(self) -> tuple[int, ...]:
        """Return the tokens each stock layer has seen."""
        return tuple(int(layer.get_seq_length()) for layer in self._other_layers())

    def _check_batch_can_change(self) -> None:
        """Raise StateError if a layer can't follow when requests are repeated or dropped."""
        for layer, plan in enumerate(self._geometry.layers):
            if plan.kind == "compressed":
                raise StateError(
                    f"{self._geometry.model_type} can't repeat or drop requests: the compression buffers "
                    f"of layer {layer} don't follow; start again with the new batch"
                )

    def _reindex(self, sources: list[int]) -> None:
        """Rearrange the requests of the store and the index keys, or raise with nothing changed."""
        self._settle()
        store = self._slot.store
        if store is None:
            return
        if not sources:
            raise PositionError("at least one request must be kept; reset the cache to end them all")
        for source in sources:
            if not 0 <= source < store.batch:
                raise PositionError(f"request {source} is outside 0 to {store.batch - 1}, the requests of this cache")
        store.reindex(sources)
        for layer in self._row_layers():
            layer.reindex_index_keys(sources)

    def _sources(self, stock: Cache) -> list[Any]:
        """Return the layers of a cache to be taken over; raise InputError unless each has what this cache's needs."""
        sources: list[Any] = stock.layers
        if not len(self._row_layers()) == len(self.layers) == len(sources):
            raise InputError("only caches whose layers all keep one row a token can be taken over")
        leaders = {members[0] for members in self._geometry.groups}
        for layer, source in enumerate(sources):
            if isinstance(source, RowLayer) or not hasattr(source, "update_indexer"):
                raise InputError(
                    f"layer {layer} of the cache to be taken over is a {type(source).__name__}, "
                    "not a stock layer of one row a token"
                )
            if source.is_initialized and layer in leaders and not source.is_indexer_initialized:
                raise InputError(f"layer {layer} of the cache to be taken over has no index keys")
        return sources

    def _row_layers(self) -> list[RowLayer]:
        """Layers whose rows are in the store, one row a token."""
        return [layer for layer in self.layers if isinstance(layer, RowLayer)]

    def _other_layers(self) -> list[Any]:
        """Layers that look after themselves."""
        return [layer for layer in self.layers if not isinstance(layer, RowLayer)]


def _layer_bytes(layer: Any) -> int:
    """Return the device bytes a layer object holds itself."""
    if isinstance(layer, RowLayer):
        return layer.index_key_bytes
    return sum(value.nbytes for value in _tensors_of(vars(layer)))


def _tensors_of(values: dict[str, Any]) -> list[torch.Tensor]:
    """Return the distinct tensors among the values and one level of dicts below, by storage."""
    found = {}
    for value in values.values():
        for item in value.values() if isinstance(value, dict) else (value,):
            if isinstance(item, torch.Tensor):
                found[item.untyped_storage().data_ptr()] = item
    return list(found.values())
