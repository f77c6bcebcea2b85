"""From `Geometry` to a model that transformers knows how to load."""

from tools.train_tiny_dsa.settings import Geometry
from tools.train_tiny_dsa.vocabulary import END_TOKEN
from transformers import DeepseekV32Config, DeepseekV32ForCausalLM


def build_model(geometry: Geometry, vocabulary: int) -> DeepseekV32ForCausalLM:
    """A fresh model of dense MLPs; its random weights come from torch's global generator."""
    config = DeepseekV32Config(
        vocab_size=vocabulary,
        hidden_size=geometry.hidden,
        intermediate_size=geometry.mlp,
        num_hidden_layers=geometry.layers,
        num_attention_heads=geometry.heads,
        num_key_value_heads=geometry.heads,
        kv_lora_rank=geometry.latent,
        q_lora_rank=geometry.query_latent,
        qk_rope_head_dim=geometry.rope_width,
        qk_nope_head_dim=geometry.head_width,
        v_head_dim=geometry.head_width,
        index_n_heads=geometry.index_heads,
        index_head_dim=geometry.index_width,
        index_topk=geometry.index_topk,
        max_position_embeddings=geometry.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": 50_000.0},
        tie_word_embeddings=True,
        bos_token_id=END_TOKEN,
        eos_token_id=END_TOKEN,
        pad_token_id=END_TOKEN,
        first_k_dense_replace=geometry.layers,  # dense MLPs everywhere: no experts
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=geometry.mlp // 6,
    )
    return DeepseekV32ForCausalLM(config)
