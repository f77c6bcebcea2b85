"""The caches a user hands to ``generate``."""

from pathlib import Path
from typing import Any, Literal

import torch

from hisparse.config import CacheSettings
from hisparse.errors import SettingError
from hisparse.hot import GroupCounters
from hisparse.integrations.transformers.geometry import geometry_of
from hisparse.integrations.transformers.plan import plan_batch
from hisparse.integrations.transformers.resident import ResidentRows
from hisparse.integrations.transformers.row_cache import RowCache
from hisparse.integrations.transformers.sampler import CacheSampler
from hisparse.integrations.transformers.slot import StoreSlot
from hisparse.integrations.transformers.stats import cache_stats
from hisparse.integrations.transformers.store import RowStore
from hisparse.integrations.transformers.tiered import TieredRows
from hisparse.kernels import BACKENDS
from hisparse.telemetry import TelemetryPipeline


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
        link_bytes_per_second: float | None = None,
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
            link_bytes_per_second: Speed of copies to the device, for telemetry; default measured, for a pool in memory.

        Raises:
            UnsupportedModelError: The model can't be served; says why.
            SettingError: A setting has no meaning.
            HotBufferError: `hot_slots` is smaller than the model's top-k.
        """
        geometry = geometry_of(config)
        if telemetry is not None and not isinstance(telemetry, TelemetryPipeline):
            raise SettingError(f"telemetry must be a TelemetryPipeline, got {type(telemetry).__name__}")
        if backend not in BACKENDS:
            raise SettingError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
        settings = CacheSettings(
            hot_slots=hot_slots,
            host_pool=str(host_pool),
            host_pool_bytes=host_pool_bytes,
            max_positions=max_positions,
            page_rows=page_rows,
            order=order,
            backend=backend,
            link_bytes_per_second=link_bytes_per_second,
        )
        settings.slots_for(geometry.top_k)
        self._counters = [GroupCounters(requests=0, layers=len(members)) for members in geometry.groups]

        def open_store(batch: int, dtype: torch.dtype, device: torch.device) -> RowStore:
            plan = plan_batch(geometry, settings, self._counters, batch=batch, dtype=dtype, device=device)
            return TieredRows(plan, batch)

        slot = StoreSlot(open_store)
        self._sampler: CacheSampler | None = None
        if telemetry is not None:
            self._sampler = CacheSampler(telemetry, geometry, self._counters, slot=slot)
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
        self._flush()
        super().reset()
        self._tell_levels()

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
            ``prefix_hit_tokens``, ``spilled_pages``, ``requests`` (the selections of each request slot) and
            ``layers``: layer, group, hit, miss, resident, padding, bytes of each.
        """
        self._flush()
        return cache_stats(self._geometry, self._counters, self.device_kv_bytes)

    def check(self) -> None:
        """Recount pool, residencies and counters.

        Raises:
            AccountingError: A sum does not hold; the message prints it.
        """
        super().check()
        for counters in self._counters:
            counters.check()

    def _flush(self) -> None:
        """Hand the telemetry what was counted since the last sample."""
        if self._sampler is not None:
            self._sampler.flush()

    def _tell_levels(self) -> None:
        """Hand the telemetry the levels of the pool if they changed without a forward pass."""
        if self._sampler is not None:
            self._sampler.tell_levels()


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
