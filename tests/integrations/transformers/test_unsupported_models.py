"""A model that can't be served is refused with its type and the reason, and keeps working with its stock cache."""

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
import zoo

from hisparse.errors import UnsupportedModelError
from hisparse.integrations.transformers import HiSparseCache, ResidentCache, enable

_SMALL: dict[str, Any] = {
    "vocab_size": zoo.VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_MLA: dict[str, Any] = {
    **_SMALL,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_key_value_heads": 2,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "mlp_layer_types": ["dense", "dense"],
}
_INDEXER: dict[str, Any] = {"index_topk": 8, "index_n_heads": 2, "index_head_dim": 16}


@dataclass(frozen=True)
class Foreign:
    """A model type that is not served, and a word of the reason it must be given."""

    model_type: str
    classes: tuple[str, str]
    reason: str
    settings: dict[str, Any]


FOREIGN = (
    Foreign("llama", ("LlamaConfig", "LlamaForCausalLM"), "no indexer", {**_SMALL, "intermediate_size": 48}),
    Foreign("deepseek_v3", ("DeepseekV3Config", "DeepseekV3ForCausalLM"), "no indexer", _MLA),
    Foreign(
        "glm5_next",
        ("Glm5NextTextConfig", "Glm5NextTextModel"),
        "pooled keys",
        {
            **_MLA,
            **_INDEXER,
            "qk_rope_head_dim": 0,
            "index_kpool": 4,
            "layer_types": ["linear_attention", "indexed_attention"],
            "indexer_types": ["full", "full"],
            "linear_head_dim": 16,
            "linear_num_heads": 2,
            "hc_mult": 2,
        },
    ),
    Foreign(
        "qwen4_exp",
        ("Qwen4ExpTextConfig", "Qwen4ExpForCausalLM"),
        "blocks",
        {
            **_SMALL,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": ["linear_attention", "indexed_attention"],
            "hc_count": 2,
            "hc_lowrank": 8,
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 16,
            "indexer_compress_ratio": 4,
        },
    ),
    Foreign(
        "minimax_m3_vl",
        ("MiniMaxM3VLTextConfig", "MiniMaxM3VLForCausalLM"),
        "blocks",
        {
            **_SMALL,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "intermediate_size": 16,
            "dense_intermediate_size": 48,
            "shared_intermediate_size": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rotary_dim": 8,
            "index_head_dim": 16,
            "index_n_heads": 2,
            "index_block_size": 4,
            "index_topk_blocks": 2,
            "layer_types": ["full_attention", "minimax_m3_sparse"],
            "mlp_layer_types": ["dense", "dense"],
        },
    ),
    Foreign(
        "mistral_large4",
        ("MistralLarge4TextConfig", "MistralLarge4TextModel"),
        "share keys and values",
        {**_MLA, **_INDEXER, "kv_source_layers": [0, 0]},
    ),
)


def outputs(model: Any) -> torch.Tensor:
    """Run 40 tokens and one more through the model's stock cache, and return what comes out."""
    ids = torch.arange(1, 42)[None]
    with torch.no_grad():
        first = model(input_ids=ids[:, :-1], use_cache=True)
        cache = first.cache if "cache" in first else first.past_key_values
        return model(input_ids=ids[:, -1:], use_cache=True, **zoo.cache_argument(model, cache))[0]


@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda foreign: foreign.model_type)
def test_unsupported_model_is_refused(foreign: Foreign) -> None:
    """Enabling names the model type and the reason, and leaves the model as it was."""
    torch.manual_seed(0)
    config = getattr(transformers, foreign.classes[0])(**foreign.settings)
    model = getattr(transformers, foreign.classes[1])(config).eval()
    expected = outputs(model)
    for refused in (enable, lambda model: HiSparseCache(model.config), lambda model: ResidentCache(model.config)):
        with pytest.raises(UnsupportedModelError) as caught:
            refused(model)
        assert foreign.model_type in str(caught.value)
        assert foreign.reason in str(caught.value)
    assert torch.equal(outputs(model), expected)


class TurnedRows:
    """Stands before a cache and keeps every latent in it reversed: a model that breaks the row contract."""

    def __init__(self, cache: Any) -> None:
        """Stand before `cache`."""
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        """Pass everything else on."""
        return getattr(self._cache, name)

    def update(self, latent: torch.Tensor, rotary: torch.Tensor, *given: Any, **named: Any) -> Any:
        """Reverse latents on their way in and out."""
        latent, rotary = self._cache.update(latent.flip(-1), rotary, *given, **named)
        return latent.flip(-1), rotary


def keep_rows_reversed(model: Any) -> None:
    """Let one layer cache its latents reversed; its stock outputs stay the same."""
    attention = model.model.layers[1].self_attn
    forward = attention.forward

    def turned(*given: Any, **named: Any) -> Any:
        name = "cache" if "cache" in named else "past_key_values"
        return forward(*given, **{**named, name: TurnedRows(named[name])})

    attention.forward = turned


def expand_differently(model: Any) -> None:
    """Let one layer scale what it expands, which its weights alone don't say."""
    attention = model.model.layers[1].self_attn
    expand = attention.expand_kv
    attention.expand_kv = types.MethodType(lambda _self, latent, rotary: expand(latent * 1.5, rotary), attention)


def drop_indices(model: Any) -> None:
    """Let one layer lose its selection before it reaches attention."""
    attention = model.model.layers[1].self_attn
    indexer = attention.indexer.forward
    attention.indexer.forward = lambda *given, **named: indexer(*given, **named)[..., :1].expand(-1, -1, 8)


@pytest.mark.parametrize("tamper", [keep_rows_reversed, expand_differently], ids=lambda tamper: tamper.__name__)
def test_a_model_that_breaks_its_contract_is_refused(v32: zoo.ModelCase, tamper: Callable[[Any], None]) -> None:
    """The self-check notices that cached rows don't mean what they should, and the stock cache still works."""
    model = zoo.build(v32)
    tamper(model)
    given = zoo.prompt(v32, 1)
    expected = zoo.generate(model, given, max_new_tokens=20)
    with pytest.raises(UnsupportedModelError, match=r"deepseek_v32.*layer 1"):
        enable(model, attention="absorbed")
    assert model.config._attn_implementation == v32.backend
    assert torch.equal(zoo.generate(model, given, max_new_tokens=20), expected)


def test_expanding_differently_is_served_by_expanding(v32: zoo.ModelCase, make_cache: Any) -> None:
    """Expand mode runs the model's own expansion, so that one may differ from what the weights say."""
    model = zoo.build(v32)
    expand_differently(model)
    given = zoo.prompt(v32, 1)
    expected = zoo.generate(model, given, max_new_tokens=40)
    enable(model, attention="expand")
    sequences = zoo.generate(model, given, cache=make_cache(model), max_new_tokens=40)
    assert torch.equal(sequences, expected)


def test_a_repeated_position_is_refused(v32: zoo.ModelCase) -> None:
    """An indexer that names one position twice breaks the contract, and enabling says so."""
    model = zoo.build(v32)
    drop_indices(model)
    with pytest.raises(UnsupportedModelError, match="deepseek_v32"):
        enable(model)


def test_config_and_modules_must_agree(v32: zoo.ModelCase) -> None:
    """A layer that lost its indexer is named, though its config promises one."""
    model = zoo.build(v32)
    model.model.layers[2].self_attn.indexer = None
    with pytest.raises(UnsupportedModelError, match="layer 2"):
        enable(model)


class PackedLinear(torch.nn.Module):
    """A projection whose weight is packed: int8 values and a scale per output, no plain matrix."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        """Pack the weight of `linear`."""
        super().__init__()
        scale = linear.weight.detach().abs().amax(dim=1, keepdim=True) / 127
        self.register_buffer("packed", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Unpack and project."""
        return torch.nn.functional.linear(given, self.packed * self.scale)


def test_packed_weights_are_expanded(v32: zoo.ModelCase, make_cache: Any) -> None:
    """Where `kv_b_proj` has no plain weight, auto takes expand mode, and asking for absorbed says why not."""
    model = zoo.build(v32)
    for layer in model.model.layers:
        layer.self_attn.kv_b_proj = PackedLinear(layer.self_attn.kv_b_proj)
    given = zoo.prompt(v32, 3)
    expected = zoo.generate(model, given, max_new_tokens=40)
    with pytest.raises(UnsupportedModelError, match=r"kv_b_proj.*PackedLinear.*expand"):
        enable(model, attention="absorbed")
    enable(model)
    sequences = zoo.generate(model, given, cache=make_cache(model), max_new_tokens=40)
    assert torch.equal(sequences, expected)
