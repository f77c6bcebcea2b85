"""The caches a user hands to ``generate``."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch

from hisparse.config import CacheSettings
from hisparse.errors import CapacityError, SettingError, StorageError
from hisparse.hot import GroupCounters
from hisparse.integrations.transformers.geometry import ModelGeometry, geometry_of
from hisparse.integrations.transformers.naming import PageNaming, config_digest, config_dtype
from hisparse.integrations.transformers.plan import TierPlan, plan_batch
from hisparse.integrations.transformers.prefixes import PrefixKeeper, are_storable, check_adoptable
from hisparse.integrations.transformers.resident import ResidentRows
from hisparse.integrations.transformers.row_cache import RowCache
from hisparse.integrations.transformers.sampler import CacheSampler
from hisparse.integrations.transformers.shared_pool import SharedPool
from hisparse.integrations.transformers.slot import StoreSlot
from hisparse.integrations.transformers.stats import cache_stats
from hisparse.integrations.transformers.store import RowStore
from hisparse.integrations.transformers.tiered import TieredRows
from hisparse.integrations.transformers.tokens import SeenTokens
from hisparse.kernels import BACKENDS
from hisparse.telemetry import TelemetryPipeline


class HiSparseCache(RowCache):
    """A cache with its rows on the host and a hot buffer of the selected ones on the device.

    Give it to ``model.generate(past_key_values=cache)`` after ``enable(model)``.  A request is admitted when its
    first tokens arrive: the host pool reserves room for `max_positions` of every request of the batch, or
    refuses with nothing changed.  What a request leaves in the pool serves later ones that begin alike, see
    `adopt_prefix`.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each setting
        self,
        config: Any,
        *,
        hot_slots: int | None = None,
        host_pool: str | Path | SharedPool = "ram",
        host_pool_bytes: int | None = None,
        max_positions: int | None = None,
        page_rows: int | None = None,
        order: Literal["stack", "vllm"] = "stack",
        backend: str = "numba",
        telemetry: TelemetryPipeline | None = None,
        link_bytes_per_second: float | None = None,
        identity: str | None = None,
        salt: str | None = None,
    ) -> None:
        """Check the settings against the model; memory is taken when the first tokens arrive.

        Args:
            config: The model's config.
            hot_slots: Rows of one request and layer that fit in the hot buffer; default twice the model's top-k.
            host_pool: ``"ram"``, ``"disk:DIR"``, or the `host_pool` of another cache of the same loaded model.
            host_pool_bytes: Size limit of the host pool; default what `max_positions` of every request needs.
            max_positions: Tokens a request may reach; default the model's limit, or what the pool holds.
            page_rows: Rows in a page of the host pool; default 64, or those of the pool given.
            order: Recency order, ``"stack"`` (exact miss-ratio curves) or ``"vllm"`` (peer parity).
            backend: ``"numba"`` or ``"reference"``.
            telemetry: Where counts go about once a second, at every `stats`, `reset` and `close`.
            link_bytes_per_second: Speed of copies to the device, for telemetry; default measured, for a pool in memory.
            identity: Which weights these are, for example path and revision; needed by ``"disk:DIR?persist"``.
            salt: Pages are found only by caches of the same salt.

        Raises:
            UnsupportedModelError: The model can't be served; says why.
            SettingError: A setting has no meaning, or contradicts the pool given.
            HotBufferError: `hot_slots` is smaller than the model's top-k.
            StateError: The pool given was closed.
        """
        geometry = geometry_of(config)
        if telemetry is not None and not isinstance(telemetry, TelemetryPipeline):
            raise SettingError(f"telemetry must be a TelemetryPipeline, got {type(telemetry).__name__}")
        settings, shared = _settings_and_pool(
            host_pool,
            identity,
            hot_slots=hot_slots,
            host_pool_bytes=host_pool_bytes,
            max_positions=max_positions,
            page_rows=page_rows,
            order=order,
            backend=backend,
            link_bytes_per_second=link_bytes_per_second,
        )
        settings.slots_for(geometry.top_k)
        naming = PageNaming(config_digest(config), shared.identity if identity is None else identity, salt)
        self._settings, self._config_dtype = settings, config_dtype(config)
        self._counters = [GroupCounters(requests=0, layers=len(members)) for members in geometry.groups]
        self._prefixes = PrefixKeeper(geometry, shared, naming)
        slot = StoreSlot(self._open_store)
        self._sampler = None if telemetry is None else self._sampler_for(telemetry, geometry, slot)
        super().__init__(config, geometry, slot)

    @property
    def host_pool(self) -> SharedPool:
        """The host pool, to be given to other caches of the same loaded model; the last of them closes it."""
        return self._prefixes.shared

    def adopt_prefix(self, input_ids: torch.Tensor) -> int:
        """Begin with the longest stored prefix, so that ``generate`` computes only what follows it.

        Args:
            input_ids: The prompts that will be given to ``generate``, int ``[B, T]``, not padded, on the model's
                device.

        Returns:
            Tokens restored for every request: whole pages, at most T - 1, of a batch what every request finds;
            0 where the pool has nothing.

        Raises:
            UnsupportedModelError: The model keeps more than rows and index keys; says what.
            ArrayError: Not a matrix of token ids.
            StateError: This cache is not empty, or closed.
            HostPoolFullError: The pool has no room for the requests; nothing was changed.
            PositionError: The prompts are longer than a request may become.
            StorageError: The pool can't be opened or read.
        """
        self._settle()
        self._slot.check_open()
        store = self._slot.store
        check_adoptable(self._geometry, input_ids, held=None if store is None else self.get_seq_length())
        dtype = self._prefixes.shared.dtype or self._config_dtype
        plan = self._plan(input_ids.shape[0], dtype, input_ids.device)
        found = self._prefixes.find_store(plan, input_ids)
        if found is None:
            return 0
        self._slot.fill(found)
        try:
            for layer, row_layer in enumerate(self._row_layers()):
                has_keys = layer in self._geometry.index_layers
                row_layer.restore(input_ids.new_empty(0, dtype=dtype), found.index_keys(layer) if has_keys else None)
        except BaseException:
            self.reset()
            raise
        restored = self._prefixes.adopted(found, input_ids)
        self._tell_levels()
        return restored

    def publish(self) -> int:
        """Let later requests find the full pages of these, which may go on; `reset` and `close` do so too.

        Of requests that were padded, masked, given embeddings or positions of their own, nothing is published.

        Returns:
            Pages that are new to later requests.

        Raises:
            StorageError: The disk can't take the index keys of the pages.
        """
        self._settle()
        store = self._slot.store
        return self._prefixes.publish(store, self._index_keys()) if isinstance(store, TieredRows) else 0

    def update(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Append one layer's rows, as transformers asks; the last layer completes a step of the telemetry."""
        rows = super().update(*args, **kwargs)
        layer_idx = kwargs.get("layer_idx", args[2] if len(args) > 2 else None)  # noqa: PLR2004 - key, value, layer
        if self._sampler is not None and layer_idx == len(self.layers) - 1:
            self._sampler.step()
        return rows

    def end_pass(self, seen: SeenTokens | None = None) -> None:
        """Keep what the pass appended, and note which tokens it was."""
        start = self._open_pass
        super().end_pass(seen)
        if start is not None:
            self._prefixes.note(start.tokens, seen)

    def reset(self) -> None:
        """End all requests and start empty; their full pages can be found by later ones, and counts stay."""
        self._flush()
        self._keep_pages()
        super().reset()
        self._prefixes.shared.settle()
        self._tell_levels()

    def close(self) -> None:
        """End all requests and give the host pool up, back if no other cache has it; counts can still be read."""
        if self._prefixes.outlives:
            self._keep_pages()
        self._prefixes.forget()
        super().close()
        self._prefixes.leave()

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the newest tokens of every request, as `RowCache.crop`."""
        super().crop(tokens_to_remove)
        self._tell_levels()

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the requests at `indices`, as `RowCache.batch_select_indices`."""
        super().batch_select_indices(indices)
        self._tell_levels()

    def fail_pass(self) -> None:
        """Undo the pass, as `RowCache.fail_pass`."""
        super().fail_pass()
        self._tell_levels()

    def stats(self) -> dict[str, Any]:
        """Return what was counted so far, over all requests this cache has served, as plain numbers.

        Returns:
            ``selections`` (hit, miss, resident, padding), ``host_to_device_bytes``, ``device_kv_bytes`` (now),
            ``prefix_queried_tokens`` and ``prefix_hit_tokens`` (of `adopt_prefix`), ``spilled_pages``, ``requests``
            (the selections of each request slot) and ``layers``: layer, group, hit, miss, resident, padding, bytes
            of each.
        """
        self._flush()
        return cache_stats(
            self._geometry, self._counters, device_kv_bytes=self.device_kv_bytes, prefixes=self._prefixes.counts
        )

    def check(self) -> None:
        """Recount pool, residencies and counters.

        Raises:
            AccountingError: A sum does not hold; the message prints it.
        """
        super().check()
        for counters in self._counters:
            counters.check()

    def _sampler_for(self, pipeline: TelemetryPipeline, geometry: ModelGeometry, slot: StoreSlot) -> CacheSampler:
        """Return what publishes the counts of this cache."""
        return CacheSampler(pipeline, geometry, self._counters, slot=slot, prefixes=self._prefixes.counts)

    def _open_store(self, batch: int, dtype: torch.dtype, device: torch.device) -> RowStore:
        """Admit a batch that begins with nothing."""
        return self._prefixes.open_store(self._plan(batch, dtype, device), batch)

    def _plan(self, batch: int, dtype: torch.dtype, device: torch.device) -> TierPlan:
        """Return what a batch needs."""
        return plan_batch(self._geometry, self._settings, self._counters, batch=batch, dtype=dtype, device=device)

    def _keep_pages(self) -> None:
        """Publish, then forget the tokens; requests end whether the disk takes their index keys or not."""
        store = self._slot.store
        if isinstance(store, TieredRows):
            with suppress(StorageError, CapacityError):
                self._prefixes.publish(store, self._index_keys())
        self._prefixes.forget()

    def _index_keys(self) -> dict[int, torch.Tensor]:
        """Return the index keys that the device holds, by layer."""
        if not self._geometry.can_restore:
            return {}
        rows = self._row_layers()
        held = {layer: rows[layer].indexer_keys for layer in self._geometry.index_layers}
        return {layer: keys for layer, keys in held.items() if keys is not None}

    def _truncate(self, tokens: int, rows: int) -> None:
        """Keep the first tokens, as `RowCache`."""
        super()._truncate(tokens, rows)
        self._prefixes.tokens.truncate(tokens)

    def _reindex(self, sources: list[int]) -> None:
        """Rearrange the requests; pages that several come to share get their index keys first."""
        store, index_keys = self._slot.store, self._index_keys()
        if isinstance(store, TieredRows) and are_storable(index_keys, store.plan):
            for source in {source for source in sources if 0 <= source < store.batch and sources.count(source) > 1}:
                store.host.complete(source, index_keys)
        super()._reindex(sources)
        self._prefixes.tokens.reindex(sources)

    def _flush(self) -> None:
        """Hand the telemetry what was counted since the last sample."""
        if self._sampler is not None:
            self._sampler.flush()

    def _tell_levels(self) -> None:
        """Hand the telemetry the levels of the pool if they changed without a forward pass."""
        if self._sampler is not None:
            self._sampler.tell_levels()


def _settings_and_pool(
    host_pool: str | Path | SharedPool, identity: str | None, **given: Any
) -> tuple[CacheSettings, SharedPool]:
    """Return the settings of a cache and its pool, one of its own unless it was given another's.

    Raises:
        SettingError: A setting has no meaning, or contradicts the pool.
    """
    if given["backend"] not in BACKENDS:
        raise SettingError(f"backend must be one of {', '.join(BACKENDS)}, got {given['backend']!r}")
    if not isinstance(host_pool, SharedPool):
        page_rows = 64 if given["page_rows"] is None else given["page_rows"]
        settings = CacheSettings(**{**given, "host_pool": str(host_pool), "page_rows": page_rows})
        return settings, SharedPool(settings, identity)
    theirs = host_pool.settings
    if given["host_pool_bytes"] is not None:
        raise SettingError("host_pool_bytes is set where a pool is made, not for a cache that shares it")
    if given["page_rows"] not in (None, theirs.page_rows):
        raise SettingError(f"page_rows is {given['page_rows']}, the shared host pool has {theirs.page_rows}")
    shared = {name: getattr(theirs, name) for name in ("host_pool", "host_pool_bytes", "page_rows")}
    return CacheSettings(**{**given, **shared}), host_pool


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
