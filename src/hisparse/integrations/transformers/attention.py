"""Attention over selected rows, registered with transformers under names of its own."""

import sys
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from hisparse.errors import ArrayError, StateError
from hisparse.integrations.transformers.layers import RowLayer
from hisparse.integrations.transformers.store import SelectedRows

AttentionMode = Literal["absorbed", "expand"]
_PLAIN_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_HEADS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What an enabled module tells the attention function.

    Attributes:
        stock: ``"sdpa"`` or ``"eager"``, the backend for everything that is not read from the hot buffer.
        mode: ``"absorbed"`` scores latents directly; ``"expand"`` runs ``expand_kv`` on the selected rows.
        layer: The cache layer, or None where the cache is a stock one.
    """

    stock: str
    mode: AttentionMode
    layer: RowLayer | None


def hisparse_attention(  # noqa: PLR0913, PLR0917 - the signature transformers calls
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    indices: torch.Tensor | None = None,
    hisparse: AttentionCall | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend as transformers' `AttentionInterface` asks.

    Args:
        module: The attention module.
        query: ``[B, H, S, D]``.
        key: ``[B, H, T, D]``, all keys, or only the new ones when the hot buffer is read.
        value: ``[B, H, T, V]``, likewise.
        attention_mask: bool (True attends) or additive ``[B, 1, S, T]``.
        scaling: Factor of the scores.
        dropout: As transformers passes it; only the stock path uses it.
        indices: int32 ``[B, S, K]``, the selection, or None in a layer that makes none.
        hisparse: From the hook `enable` installed.
        **kwargs: Passed on to the stock path; ``s_aux`` holds attention sinks.

    Returns:
        ``[B, S, H, V]`` and the weights where the stock path returns them.

    Raises:
        StateError: The module was not enabled.
    """
    if hisparse is None:
        raise StateError(
            f"attention of {type(module).__name__} is set to hisparse, but the model was not enabled; "
            "call enable(model) instead of set_attn_implementation"
        )
    layer = hisparse.layer
    if layer is not None and layer.take_reads_selection():
        if indices is None or attention_mask is None:
            raise StateError(
                f"layer {module.layer_idx} ({type(module).__name__}) passed no selection or no mask to attention"
            )
        if dropout > 0:
            raise StateError(
                f"attention dropout is {dropout}: a HiSparseCache decodes in evaluation mode (model.eval())"
            )
        visible, bias = _visible(attention_mask, indices)
        selected = layer.select(torch.where(visible, indices, -1))
        scores_bias = _scores_bias(selected, bias)
        return _attend(module, query, selected, scores_bias, call=hisparse, scaling=scaling, kwargs=kwargs), None
    mask = attention_mask if indices is None else _fold(attention_mask, indices, key.shape[2], query.dtype)
    stock = stock_attention(module, hisparse.stock)
    result: tuple[torch.Tensor, torch.Tensor | None] = stock(
        module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs
    )
    return result


def has_plain_projection(module: Any) -> bool:
    """Return whether ``kv_b_proj`` is nothing but a matrix product, so that its weight says all there is to say.

    Looked at in every call: adapters, hooks and offloading may replace it at any time.
    """
    projection: Any = module.kv_b_proj
    return (
        type(projection) is nn.Linear
        and type(projection.weight) is nn.Parameter
        and getattr(projection, "bias", None) is None
        and projection.weight.dtype in _PLAIN_DTYPES
        and projection.weight.device.type != "meta"
        and "forward" not in vars(projection)
        and not (projection._forward_hooks or projection._forward_pre_hooks)  # noqa: SLF001 - torch lists hooks nowhere else
    )


def stock_attention(module: nn.Module, name: str) -> Any:
    """Return the attention function `name` as the model's own file would find it."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: PLC0415 - slow import, first use

    eager = sys.modules[type(module).__module__].eager_attention_forward
    return ALL_ATTENTION_FUNCTIONS.get_interface(name, eager)


def _visible(mask: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return (bool ``[B, S, K]``: may be read, additive ``[B, S, K]`` or None) of the mask at `indices`."""
    if mask.shape[1] != 1:
        raise ArrayError(f"attention_mask must be [B, 1, S, T], the same for all heads, got {list(mask.shape)}")
    picked = mask[:, 0].expand(indices.shape[0], -1, -1).gather(-1, indices.long())
    if picked.dtype == torch.bool:
        return picked, None
    return picked > torch.finfo(picked.dtype).min / 2, picked


def _scores_bias(selected: SelectedRows, bias: torch.Tensor | None) -> torch.Tensor:
    """Return what is added to float32 scores, ``[B, S, 1, K]``: the mask's bias, -inf where nothing was selected."""
    base = torch.zeros_like(selected.is_selected, dtype=torch.float32) if bias is None else bias.float()
    return base.masked_fill(~selected.is_selected, float("-inf")).unsqueeze(2)


def _fold(mask: torch.Tensor | None, indices: torch.Tensor, keys: int, dtype: torch.dtype) -> torch.Tensor:
    """Restrict `mask` to the selection, as the stock sdpa and eager paths do before they attend."""
    is_chosen = indices.new_zeros((*indices.shape[:2], keys), dtype=torch.bool).scatter_(-1, indices.long(), value=True)
    is_chosen = is_chosen.unsqueeze(1)
    if mask is None:
        return is_chosen
    if mask.dtype == torch.bool:
        return mask & is_chosen
    return mask.masked_fill(~is_chosen, torch.finfo(dtype).min)


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Normalise float32 scores ``[B, S, H, K]``; a sink logit per head joins the denominator."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    sink = sinks.reshape(1, 1, -1, 1).expand(*scores.shape[:2], -1, 1).float()
    return torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]


def _times_weights(heads: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the float32 product of float32 `heads` ``[B, H, S, N]`` and `weights` ``[H, N, M]`` of any dtype.

    Half-precision weights are widened some heads at a time: 128 heads of 128 x 512 at once take 25 ms, most of it
    for fresh memory, and 16 at a time 3 ms (one core of an EPYC 7003, torch 2.13).
    """
    if weights.dtype == torch.float32:
        return torch.matmul(heads, weights)
    parts = [slice(first, first + _HEADS_AT_ONCE) for first in range(0, heads.shape[1], _HEADS_AT_ONCE)]
    return torch.cat([torch.matmul(heads[:, part], weights[part].float()) for part in parts], dim=1)


def _attend(
    module: Any,
    query: torch.Tensor,
    selected: SelectedRows,
    bias: torch.Tensor,
    *,
    call: AttentionCall,
    scaling: float,
    kwargs: dict[str, Any],
) -> torch.Tensor:
    """Attend to the selected rows as `call` says."""
    if call.mode == "absorbed":
        return _absorbed(module, query, selected, bias, scaling=scaling, sinks=kwargs.get("s_aux"))
    return _expanded(module, query, selected, bias, stock=call.stock, scaling=scaling, kwargs=kwargs)


def _absorbed(
    module: Any,
    query: torch.Tensor,
    selected: SelectedRows,
    bias: torch.Tensor,
    *,
    scaling: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Fold ``kv_b_proj`` into query and output, so that no row is expanded (DeepSeek-V2, arXiv 2405.04434, 2.1.2).

    Everything is computed in float32 and rounded once, at the end.
    """
    heads, nope, latent = query.shape[1], module.qk_nope_head_dim, module.kv_lora_rank
    up = module.kv_b_proj.weight.view(heads, -1, latent)
    exact, rows = query.float(), selected.rows.float()
    query_latent = _times_weights(exact[..., :nope], up[:, :nope])
    query_rows = torch.cat([query_latent, exact[..., nope:]], dim=-1).transpose(1, 2)
    scores = torch.matmul(query_rows, rows.transpose(-1, -2)) * scaling + bias
    output_latent = torch.matmul(_softmax(scores, sinks), rows[..., :latent])
    output = _times_weights(output_latent.transpose(1, 2), up[:, nope:].transpose(1, 2))
    return output.transpose(1, 2).to(query.dtype).contiguous()


def _expanded(
    module: Any,
    query: torch.Tensor,
    selected: SelectedRows,
    bias: torch.Tensor,
    *,
    stock: str,
    scaling: float,
    kwargs: dict[str, Any],
) -> torch.Tensor:
    """Run the model's own ``expand_kv`` and stock attention on the selected rows, whatever ``kv_b_proj`` is.

    What the stock step rounds is rounded here at the same places.
    """
    batch, queries, count, _ = selected.rows.shape
    flat = selected.rows.view(batch * queries, 1, count, -1)
    latent, rotary = flat[..., : module.kv_lora_rank], flat[..., module.kv_lora_rank :]
    key, value = module.expand_kv(latent.contiguous(), rotary.contiguous())
    each_query = query.transpose(1, 2).reshape(batch * queries, -1, 1, query.shape[-1])
    mask = bias.view(batch * queries, 1, 1, count).to(query.dtype)
    attend = stock_attention(module, stock)
    output: torch.Tensor = attend(module, each_query, key, value, mask, dropout=0.0, scaling=scaling, **kwargs)[0]
    return output.view(batch, queries, -1, value.shape[-1])
