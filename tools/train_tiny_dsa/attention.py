"""The forward pass of training: dense attention over everything, and the indexers' loss on the side.

The stock forward selects with an untrained indexer from the first step on, and its selection passes no
gradient. So the pass is written out here over the stock modules: the language model sees plain causal
attention, and each indexer is asked, for a sample of queries, to reproduce the attention the heads gave on
average. Its inputs are detached, so the indexer learns from the model and never the other way round.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from transformers import DeepseekV32ForCausalLM
from transformers.models.deepseek_v32.modeling_deepseek_v32 import (
    apply_rotary_pos_emb,
    apply_rotary_pos_emb_interleave,
)

Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, each ``[1, S, rope_width]``."""


@dataclass(frozen=True)
class Queries:
    """Query rows sampled for the indexers, and which keys each may see."""

    rows: torch.Tensor  # int64 [Q], ascending
    visible: torch.Tensor  # bool [Q, S]


def sample_queries(length: int, count: int) -> Queries:
    """`count` random rows of a sequence of `length` tokens (torch's global generator)."""
    rows = torch.randint(0, length, (count,)).sort().values
    return Queries(rows, torch.arange(length)[None] <= rows[:, None])


def forward(
    model: DeepseekV32ForCausalLM, tokens: torch.Tensor, sampled_queries: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits ``[B, S, vocabulary]`` and the mean indexer loss over layers (0 without sampled queries).

    Args:
        model: stays as it is, but for gradients.
        tokens: int64 ``[B, S]``.
        sampled_queries: queries a layer on which the indexers are compared with the attention.
    """
    core, length = model.model, tokens.shape[1]
    hidden = core.embed_tokens(tokens)
    rotation = core.rotary_emb(hidden, position_ids=torch.arange(length)[None])
    losses = []
    for layer in core.layers:
        queries = sample_queries(length, sampled_queries) if sampled_queries else None
        attended, loss = _attend(layer.self_attn, layer.input_layernorm(hidden), rotation, queries)
        hidden = hidden + attended
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        losses.append(loss)
    return model.lm_head(core.norm(hidden)), torch.stack(losses).mean()


def _attend(
    attention: nn.Module, hidden: torch.Tensor, rotation: Rotation, queries: Queries | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense causal attention of one layer, ``[B, S, hidden]``, and its indexer's loss."""
    batch, length, _ = hidden.shape
    residual = attention.q_a_layernorm(attention.q_a_proj(hidden))
    query = attention.q_b_proj(residual).view(batch, length, -1, attention.qk_head_dim).transpose(1, 2)
    query_plain, query_rope = query.split([attention.qk_nope_head_dim, attention.qk_rope_head_dim], dim=-1)
    latent, key_rope = attention.kv_a_proj_with_mqa(hidden).split(
        [attention.kv_lora_rank, attention.qk_rope_head_dim], dim=-1
    )
    latent = attention.kv_a_layernorm(latent).view(batch, 1, length, -1)
    query_rope, key_rope = apply_rotary_pos_emb_interleave(
        query_rope, key_rope.reshape(batch, 1, length, -1), *rotation
    )
    query = torch.cat([query_plain, query_rope], dim=-1)
    key, value = attention.expand_kv(latent, key_rope)
    # Padding the values to the keys' width keeps the fused kernel, which wants the two equal.
    wide_value = functional.pad(value, (0, attention.qk_head_dim - attention.v_head_dim))
    output = functional.scaled_dot_product_attention(query, key, wide_value, is_causal=True, scale=attention.scaling)
    output = output[..., : attention.v_head_dim].transpose(1, 2).reshape(batch, length, -1)
    if queries is None:
        return attention.o_proj(output), output.new_zeros(())
    target = _mean_attention(query, key, attention.scaling, queries)
    scores = index_scores(attention.indexer, hidden.detach(), residual.detach(), rotation=rotation, rows=queries.rows)
    return attention.o_proj(output), _divergence(target, scores, queries.visible)


@torch.no_grad()
def _mean_attention(query: torch.Tensor, key: torch.Tensor, scaling: float, queries: Queries) -> torch.Tensor:
    """Attention of the sampled queries averaged over heads: float32 ``[B, Q, S]``, each row sums to 1."""
    scores = query[:, :, queries.rows].float() @ key.transpose(-1, -2).float() * scaling
    return scores.masked_fill(~queries.visible, -torch.inf).softmax(dim=-1).mean(dim=1)


def index_scores(
    indexer: nn.Module,
    hidden: torch.Tensor,
    residual: torch.Tensor,
    *,
    rotation: Rotation,
    rows: torch.Tensor,
) -> torch.Tensor:
    """What the indexer would rank keys by, for some query rows: float32 ``[B, Q, S]``, no mask applied.

    ``score[q, t] = sum over heads h of weight[q, h] * relu(query[q, h] . key[t] / sqrt(width))``.
    """
    batch = hidden.shape[0]
    rope = indexer.qk_rope_head_dim
    cosines, sines = rotation
    query = indexer.wq_b(residual[:, rows]).view(batch, len(rows), indexer.n_heads, indexer.head_dim)
    key = indexer.k_norm(indexer.wk(hidden)).unsqueeze(2)
    query_rope, _ = apply_rotary_pos_emb(
        query[..., :rope], query[..., :rope], cosines[:, rows], sines[:, rows], unsqueeze_dim=2
    )
    key_rope, _ = apply_rotary_pos_emb(key[..., :rope], key[..., :rope], cosines, sines, unsqueeze_dim=2)
    query = torch.cat([query_rope, query[..., rope:]], dim=-1).float()
    key = torch.cat([key_rope, key[..., rope:]], dim=-1).squeeze(2).float()
    heads = functional.relu(torch.einsum("bqhd,btd->bqht", query, key) * indexer.softmax_scale)
    weights = indexer.weights_proj(hidden[:, rows]).float() * indexer.n_heads**-0.5
    return torch.einsum("bqh,bqht->bqt", weights, heads)


def _divergence(target: torch.Tensor, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """KL divergence from `target` to the softmax of `scores` over visible keys, mean over queries."""
    log_predicted = scores.masked_fill(~visible, -1e9).log_softmax(dim=-1)
    terms = target * ((target + 1e-9).log() - log_predicted)
    return terms.masked_fill(~visible, 0.0).sum(dim=-1).mean()
