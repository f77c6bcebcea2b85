"""The comparison on models whose layers are not all alike, at tiny sizes and with random weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import Dots3NoteForCausalLM, Dots3NoteTextConfig, GlmMoeDsaConfig, GlmMoeDsaForCausalLM

from hisparse.cli.comparison import Run, compare
from hisparse.cli.feed import MetricsFeed
from hisparse.cli.models import LoadedModel
from hisparse.cli.prompts import Prompt

TOP_K = 16
NEW_TOKENS = 6
SMALL = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16,
    "num_hidden_layers": 4, "first_k_dense_replace": 4, "num_attention_heads": 2, "num_key_value_heads": 2,
    "kv_lora_rank": 32, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
    "index_topk": TOP_K, "index_head_dim": 16, "index_n_heads": 8, "n_routed_experts": 4, "n_group": 1,
    "topk_group": 1, "num_experts_per_tok": 2, "max_position_embeddings": 256,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip


def shared_selections() -> GlmMoeDsaForCausalLM:
    """Four layers in two index groups: the second and third reuse what the first selects."""
    return GlmMoeDsaForCausalLM(GlmMoeDsaConfig(**SMALL, index_topk_pattern="FSSF"))


def mixed_layers() -> Dots3NoteForCausalLM:
    """Two layers with an indexer around two with a sliding window, which keep their stock cache."""
    sliding = {
        "head_dim": 24, "sliding_window": 24, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 2,
        "swa_q_lora_rank": 16, "swa_kv_lora_rank": 32, "swa_head_dim": 24, "swa_qk_nope_head_dim": 16,
        "swa_v_head_dim": 12,
        "layer_types": ["indexed_attention", "sliding_attention", "sliding_attention", "indexed_attention"],
    }  # fmt: skip
    return Dots3NoteForCausalLM(Dots3NoteTextConfig(**SMALL, **sliding))


@pytest.mark.parametrize(
    ("build", "layers", "groups"), [(shared_selections, [0, 1, 2, 3], [0, 0, 0, 1]), (mixed_layers, [0, 3], [0, 1])]
)
def test_unequal_layers_are_compared_and_counted(
    build: Callable[[], Any], layers: list[int], groups: list[int]
) -> None:
    """Followers count with their leader, stock layers not at all, and the three ways agree."""
    torch.manual_seed(5)
    loaded = LoadedModel("random", build().eval(), tokenizer=None, hot_slots=2 * TOP_K, host_pool="ram")
    prompt = Prompt("random", tuple(torch.randint(1, 97, (70,)).tolist()))
    with MetricsFeed("random", None) as feed:
        result = compare(loaded, [prompt], Run(NEW_TOKENS, 32, feed.pipeline, lambda _stage: None))
    assert result.failures == ()
    assert [layer.layer for layer in result.counts.layers] == layers
    assert [layer.group for layer in result.counts.layers] == groups
    assert result.counts.selections.total == (NEW_TOKENS - 1) * 2 * TOP_K
