"""The caches a user hands to ``generate``."""

from pathlib import Path
from typing import Any, Literal

import torch
from transformers.cache_utils import Cache, DynamicCache

from hisparse.config import CacheSettings
from hisparse.errors import InputError, StateError
from hisparse.hot import GroupCounters
from hisparse.integrations.transformers.geometry import ModelGeometry, geometry_of
from hisparse.integrations.transformers.layers import RowLayer
from hisparse.integrations.transformers.plan import plan_batch
from hisparse.integrations.transformers.resident import ResidentRows
from hisparse.integrations.transformers.sampler import CounterSampler
from hisparse.integrations.transformers.slot import StoreSlot
from hisparse.integrations.transformers.stats import cache_stats
from hisparse.integrations.transformers.store import RowStore
from hisparse.integrations.transformers.tiered import TieredRows
from hisparse.telemetry import TelemetryPipeline


class RowCache(Cache):
    """A cache whose indexed layers keep their rows in one store; its other layers are stock ones."""

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

    @property
    def device_kv_bytes(self) -> int:
        """Device bytes of everything cached: selected or resident rows, index keys, stock layers."""
        rows = 0 if self._slot.store is None else self._slot.store.device_bytes
        return rows + sum(_layer_bytes(layer) for layer in self.layers)

    def take_over(self, stock: Cache, tokens: int | None = None) -> None:
        """Copy rows and index keys of a stock cache, as if this one had run the same tokens; `stock` is not changed.

        Args:
            stock: A cache of the same model, all of whose layers keep one row a token.
            tokens: How many of its tokens to take; default all.

        Raises:
            InputError: A layer is of another kind, or `stock` holds fewer tokens; nothing was changed.
            StateError: This cache is not empty.
            CapacityError: No room; see `HiSparseCache`.
        """
        count = stock.get_seq_length() if tokens is None else tokens
        targets = self._row_layers()
        if len(targets) != len(stock.layers) or len(targets) != len(self.layers):
            raise InputError("only caches whose layers all keep one row a token can be taken over")
        if not 0 < count <= stock.get_seq_length():
            raise InputError(
                f"tokens must be 1 to the {stock.get_seq_length()} that the stock cache holds, got {count}"
            )
        if self.get_seq_length() > 0:
            raise StateError(f"take over into an empty cache: this one holds {self.get_seq_length()} tokens; reset it")
        sources: list[Any] = stock.layers
        for target, source in zip(targets, sources, strict=True):
            target.arm()
            target.update(source.keys[:, :, :count], source.values[:, :, :count])
            if source.is_indexer_initialized:
                target.update_indexer(source.indexer_keys[:, :count])

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the newest tokens of every request.

        Args:
            tokens_to_remove: Minus the number of tokens; 0 changes nothing.

        Raises:
            InputError: Positive, or more tokens than are cached; nothing was changed.
            StateError: A layer of this model can't be cropped.
        """
        held = self.get_seq_length()
        if tokens_to_remove > 0 or -tokens_to_remove > held:
            raise InputError(f"crop takes minus the tokens to remove, between -{held} and 0, got {tokens_to_remove}")
        if tokens_to_remove == 0:
            return
        length = held + tokens_to_remove
        for layer in self._other_layers():
            layer.crop(tokens_to_remove)
        if self._slot.store is not None:
            self._slot.store.truncate(length)
        for row_layer in self._row_layers():
            row_layer.truncate_index_keys(length)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let request ``i`` continue request ``beam_idx[i]``; pages are shared until they differ."""
        sources = [int(source) for source in beam_idx]
        self._reindex(sources)
        for layer in self._other_layers():
            layer.reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every request `repeats` times, neighbours together."""
        batch = 0 if self._slot.store is None else self._slot.store.batch
        self._reindex([request for request in range(batch) for _ in range(repeats)])
        for layer in self._other_layers():
            layer.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the requests in `indices`, in that order."""
        batch = 0 if self._slot.store is None else self._slot.store.batch
        kept = torch.arange(batch)[indices.to("cpu")]
        self._reindex([int(source) for source in kept])
        for layer in self._other_layers():
            layer.batch_select_indices(indices)

    def reset(self) -> None:
        """End all requests and start empty; what was counted stays counted."""
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

    def __deepcopy__(self, memo: Any) -> "RowCache":
        """Refuse: a copy would own the same pool.

        Raises:
            StateError: Always.
        """
        raise StateError(f"{type(self).__name__} can't be copied: two caches would own one pool; make a new one")

    def _reindex(self, sources: list[int]) -> None:
        """Rearrange the requests of the store and the index keys."""
        if self._slot.store is None:
            return
        self._slot.store.reindex(sources)
        for layer in self._row_layers():
            layer.reindex_index_keys(sources)

    def _row_layers(self) -> list[RowLayer]:
        """Layers whose rows are in the store, one row a token."""
        return [layer for layer in self.layers if isinstance(layer, RowLayer)]

    def _other_layers(self) -> list[Any]:
        """Layers that look after themselves."""
        return [layer for layer in self.layers if not isinstance(layer, RowLayer)]


class HiSparseCache(RowCache):
    """A cache with its rows on the host and a hot buffer of the selected ones on the device.

    Give it to ``model.generate(past_key_values=cache)`` after ``enable(model)``.  A request is admitted when its
    first tokens arrive: the host pool reserves room for `max_positions` of every request of the batch, or
    refuses with nothing changed.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each setting
        self,
        config: Any,
        *,
        hot_slots: int | None = None,
        host_pool: str | Path = "ram",
        host_pool_bytes: int | None = None,
        max_positions: int | None = None,
        page_rows: int = 64,
        order: Literal["stack", "vllm"] = "stack",
        backend: str = "numba",
        telemetry: TelemetryPipeline | None = None,
    ) -> None:
        """Check the settings against the model; memory is taken when the first tokens arrive.

        Args:
            config: The model's config.
            hot_slots: Rows of one request and layer that fit in the hot buffer; default twice the model's top-k.
            host_pool: ``"ram"`` or ``"disk:DIR"``.
            host_pool_bytes: Size limit of the host pool; default what `max_positions` of every request needs.
            max_positions: Tokens a request may reach; default the model's limit, or what the pool holds.
            page_rows: Rows in a page of the host pool.
            order: Recency order, ``"stack"`` (exact miss-ratio curves) or ``"vllm"`` (peer parity).
            backend: ``"numba"`` or ``"reference"``.
            telemetry: Where counts go about once a second, at every `stats`, `reset` and `close`.

        Raises:
            UnsupportedModelError: The model can't be served; says why.
            SettingError: A setting has no meaning.
            HotBufferError: `hot_slots` is smaller than the model's top-k.
        """
        geometry = geometry_of(config)
        settings = CacheSettings(
            hot_slots=hot_slots,
            host_pool=str(host_pool),
            host_pool_bytes=host_pool_bytes,
            max_positions=max_positions,
            page_rows=page_rows,
            order=order,
            backend=backend,
        )
        settings.slots_for(geometry.top_k)
        self._counters = [GroupCounters(requests=0, layers=len(members)) for members in geometry.groups]

        def open_store(batch: int, dtype: torch.dtype, device: torch.device) -> RowStore:
            plan = plan_batch(geometry, settings, self._counters, batch=batch, dtype=dtype, device=device)
            return TieredRows(plan, batch)

        slot = StoreSlot(open_store)
        self._sampler: CounterSampler | None = None
        if telemetry is not None:
            self._sampler = CounterSampler(telemetry, geometry, self._counters, slot=slot)
        super().__init__(config, geometry, slot)

    def update(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Append one layer's rows, as transformers asks; the last layer completes a step of the telemetry."""
        rows = super().update(*args, **kwargs)
        layer_idx = kwargs.get("layer_idx", args[2] if len(args) > 2 else None)  # noqa: PLR2004 - key, value, layer
        if self._sampler is not None and layer_idx == len(self.layers) - 1:
            self._sampler.step()
        return rows

    def reset(self) -> None:
        """End all requests and start empty; what was counted stays counted, and is published first."""
        self._publish()
        super().reset()
        self._publish()

    def stats(self) -> dict[str, Any]:
        """Return what was counted so far, over all requests this cache has served, as plain numbers.

        Returns:
            ``selections`` (hit, miss, resident, padding), ``host_to_device_bytes``, ``device_kv_bytes`` (now),
            ``prefix_hit_tokens``, ``spilled_pages``, ``requests`` (the selections of each request slot) and
            ``layers``: layer, group, hit, miss, resident, padding, bytes of each.
        """
        self._publish()
        return cache_stats(self._geometry, self._counters, self.device_kv_bytes)

    def check(self) -> None:
        """Recount pool, residencies and counters.

        Raises:
            AccountingError: A sum does not hold; the message prints it.
        """
        super().check()
        for counters in self._counters:
            counters.check()

    def _publish(self) -> None:
        """Hand the telemetry what was counted since the last sample."""
        if self._sampler is not None:
            self._sampler.sample()


class ResidentCache(RowCache):
    """A cache with every row on the device, read by the same absorbed attention: the fair baseline."""

    def __init__(self, config: Any) -> None:
        """Start empty for the model of `config`.

        Raises:
            UnsupportedModelError: The model can't be served; says why.
        """
        geometry = geometry_of(config)

        def open_store(batch: int, dtype: torch.dtype, device: torch.device) -> RowStore:
            return ResidentRows(geometry, batch=batch, dtype=dtype, device=device)

        super().__init__(config, geometry, StoreSlot(open_store))


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
