"""A made-up model of three row layers, and what one batch of it needs."""

from typing import Any

import torch

from hisparse.config import CacheSettings
from hisparse.hot import GroupCounters
from hisparse.integrations.transformers.geometry import LayerGeometry, ModelGeometry
from hisparse.integrations.transformers.plan import TierPlan, plan_batch
from hisparse.integrations.transformers.shared_pool import SharedPool
from hisparse.integrations.transformers.tiered import TieredRows

WIDTHS = {0: 6, 1: 6, 3: 4}
"""Elements of a row of each layer that has rows; layer 2 keeps its stock cache."""

GEOMETRY = ModelGeometry(
    model_type="made_up",
    top_k=4,
    tokens_per_row=1,
    max_positions=64,
    layers=(
        LayerGeometry("rows", 0, WIDTHS[0]),
        LayerGeometry("rows", 0, WIDTHS[1]),
        LayerGeometry("stock", -1, 0),
        LayerGeometry("rows", 1, WIDTHS[3]),
    ),
)
CPU = torch.device("cpu")


def counters_of(geometry: ModelGeometry = GEOMETRY) -> list[GroupCounters]:
    """Return counters at zero, one per index group."""
    return [GroupCounters(requests=0, layers=len(members)) for members in geometry.groups]


def plan_for(
    batch: int, *, dtype: torch.dtype = torch.float32, device: torch.device = CPU, **settings: Any
) -> TierPlan:
    """Plan a batch of the made-up model: pages of 4 rows, 8 hot slots, numpy backend."""
    chosen = CacheSettings(**{"page_rows": 4, "backend": "reference", **settings})
    return plan_batch(GEOMETRY, chosen, counters_of(), batch=batch, dtype=dtype, device=device)


def open_rows(plan: TierPlan, batch: int) -> TieredRows:
    """Admit a batch to a pool of its own."""
    return TieredRows(plan, batch, SharedPool(plan.settings, None).open_for(plan))


def rows_for(layer: int, batch: int, count: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return random rows ``[batch, count, W]`` of one layer."""
    generator = torch.Generator().manual_seed(seed * 100 + layer)
    return torch.randn(batch, count, WIDTHS[layer], generator=generator).to(dtype)


def append_step(store: Any, batch: int, count: int, *, seed: int = 0) -> dict[int, torch.Tensor]:
    """Append `count` random rows to every layer of a store, and return them by layer."""
    rows = {layer: rows_for(layer, batch, count, seed=seed) for layer in WIDTHS}
    for layer, values in rows.items():
        store.append(layer, values)
    return rows


def picked(rows: torch.Tensor, topk: torch.Tensor) -> torch.Tensor:
    """Return ``[B, S, K, W]`` of `rows` ``[B, T, W]`` at `topk`, the obvious way; padding picks row 0."""
    return torch.stack([rows[request][topk[request].clamp(min=0).long()] for request in range(len(rows))])


def assert_selects(store: Any, rows: dict[int, torch.Tensor], topk: torch.Tensor) -> None:
    """Assert that a store hands every layer its own rows at `topk` int32 ``[B, S, K]``, padding marked."""
    for layer, values in rows.items():
        selected = store.select(layer, topk)
        assert torch.equal(selected.is_selected, topk >= 0)
        expected = picked(values, topk)
        assert selected.rows.shape == expected.shape
        assert torch.equal(selected.rows[topk >= 0], expected[topk >= 0])
