"""Absorbed attention in half precision: float32 inside, one rounding at the end."""

from types import SimpleNamespace

import pytest
import torch

from hisparse.integrations.transformers import attention
from hisparse.integrations.transformers.store import SelectedRows

NOPE, ROTARY, VALUE, LATENT = 16, 8, 12, 24
ROWS = 50
SCALING = 0.2


def scene(heads: int, dtype: torch.dtype) -> tuple[SimpleNamespace, torch.Tensor, SelectedRows]:
    """Make a module, a query ``[2, heads, 1, D]`` and rows, of which some are padding."""
    generator = torch.Generator().manual_seed(heads)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    weight = normal(heads * (NOPE + VALUE), LATENT)
    module = SimpleNamespace(
        qk_nope_head_dim=NOPE, kv_lora_rank=LATENT, kv_b_proj=SimpleNamespace(weight=weight), sinks=normal(heads)
    )
    is_selected = torch.rand((2, 1, ROWS), generator=generator) < 0.8
    return module, normal(2, heads, 1, NOPE + ROTARY), SelectedRows(normal(2, 1, ROWS, LATENT + ROTARY), is_selected)


def expanded_float64(
    module: SimpleNamespace, query: torch.Tensor, selected: SelectedRows, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Return the attention ``[2, 1, H, V]`` over expanded rows, all in float64."""
    heads = query.shape[1]
    rows, up = selected.rows[:, 0].double(), module.kv_b_proj.weight.double().view(heads, NOPE + VALUE, LATENT)
    expanded = torch.einsum("bkl,hnl->bhkn", rows[..., :LATENT], up)
    rotary = rows[:, None, :, LATENT:].expand(-1, heads, -1, -1)
    key = torch.cat([expanded[..., :NOPE], rotary], dim=-1)
    scores = SCALING * torch.einsum("bhd,bhkd->bhk", query[:, :, 0].double(), key)
    scores = scores.masked_fill(~selected.is_selected, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.double().view(1, -1, 1).expand(2, -1, 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :ROWS]
    return torch.einsum("bhk,bhkv->bhv", weights, expanded[..., NOPE:]).unsqueeze(1)


@pytest.mark.parametrize("with_sinks", [False, True], ids=["plain", "sinks"])
@pytest.mark.parametrize("heads", [3, 16, 37])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_absorbed_rounds_once(dtype: torch.dtype, heads: int, with_sinks: bool) -> None:  # noqa: FBT001 - a parameter
    """Against float64 over expanded rows, the output is off by no more than its own rounding."""
    module, query, selected = scene(heads, dtype)
    sinks = module.sinks if with_sinks else None
    exact = expanded_float64(module, query, selected, sinks)
    bias = attention._scores_bias(selected, None)
    output = attention._absorbed(module, query, selected, bias, scaling=SCALING, sinks=sinks)
    assert (output.dtype, output.shape) == (dtype, exact.shape)
    half_step = torch.finfo(dtype).eps / 2 * exact.abs()
    assert torch.all((output.double() - exact).abs() <= half_step + 1e-5 * exact.abs().max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_heads_are_widened_in_parts(dtype: torch.dtype) -> None:
    """The product with weights of any dtype is the one with all of them widened at once."""
    generator = torch.Generator().manual_seed(5)
    heads = torch.randn((2, 35, 1, 7), generator=generator)
    weights = torch.randn((35, 7, 5), generator=generator).to(dtype)
    product = attention._times_weights(heads, weights)
    assert product.dtype == torch.float32
    assert torch.allclose(product, torch.matmul(heads, weights.float()), rtol=1e-6, atol=1e-6)
