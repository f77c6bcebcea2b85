"""Small random models of every architecture the hot buffer serves, and what their stock cache generates.

One table drives the end-to-end tests: a new architecture is tested by adding a row. Widths are tiny, so that
a decode step takes a few milliseconds, while the context is ten or more times `top_k`, so that selection
really is sparse. Weights are wide enough (`initializer_range` 0.15) that greedy decoding doesn't fall into
one repeated token, and seeds are chosen so that no token hangs on rounding (`test_zoo.py` sees to it).
"""

import copy
import inspect
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers

VOCABULARY = 199
NEW_TOKENS = 200
TOP_K = 16
PADS = (0, 41, 97)

_SHARED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "index_topk": TOP_K,
    "index_n_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.15,
}
_MLA: dict[str, Any] = {
    **_SHARED,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "index_head_dim": 16,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
}

_CSA = "compressed_sparse_attention"


@dataclass(frozen=True)
class ModelCase:
    """One architecture at a tiny size.

    Attributes:
        name: Unique name, used as the test id.
        model_type: What `config.model_type` says.
        classes: Names of the configuration class and of the model class in `transformers`.
        settings: Keyword arguments of the configuration.
        groups: Index groups as layers, the leader first; layers in no group keep their stock cache layer.
        backend: Stock attention backend the tokens are compared with.
        seed: Seed of weights and prompts.
        context: Tokens of the standard prompt.
    """

    name: str
    model_type: str
    classes: tuple[str, str]
    settings: dict[str, Any] = field(hash=False)
    groups: tuple[tuple[int, ...], ...]
    backend: str = "sdpa"
    seed: int = 0
    context: int = 240

    @property
    def row_elements(self) -> int:
        """Elements of one row: latent plus rotary key, or one compressed entry."""
        if self.model_type == "deepseek_v4":
            return int(self.settings["head_dim"])
        return int(self.settings["kv_lora_rank"]) + int(self.settings["qk_rope_head_dim"])


CASES = (
    ModelCase(
        name="deepseek_v32",
        model_type="deepseek_v32",
        classes=("DeepseekV32Config", "DeepseekV32ForCausalLM"),
        settings={**_MLA, "num_hidden_layers": 3, "first_k_dense_replace": 2},
        groups=((0,), (1,), (2,)),
        seed=1,
    ),
    ModelCase(
        name="glm_moe_dsa-FSSF",
        model_type="glm_moe_dsa",
        classes=("GlmMoeDsaConfig", "GlmMoeDsaForCausalLM"),
        settings={**_MLA, "num_hidden_layers": 4, "first_k_dense_replace": 4, "index_topk_pattern": "FSSF"},
        groups=((0, 1, 2), (3,)),
        seed=3,
    ),
    ModelCase(
        name="glm_moe_dsa-FSFS",
        model_type="glm_moe_dsa",
        classes=("GlmMoeDsaConfig", "GlmMoeDsaForCausalLM"),
        settings={**_MLA, "num_hidden_layers": 4, "first_k_dense_replace": 4, "index_topk_pattern": "FSFS"},
        groups=((0, 1), (2, 3)),
        seed=6,
    ),
    ModelCase(
        name="axk2",
        model_type="axk2",
        classes=("AXK2Config", "AXK2ForCausalLM"),
        settings={**_MLA, "num_hidden_layers": 3, "first_k_dense_replace": 3, "gated_norm_rank": 4},
        groups=((0,), (1,), (2,)),
        seed=14,
    ),
    ModelCase(
        name="hy_v4",
        model_type="hy_v4",
        classes=("HYV4Config", "HYV4ForCausalLM"),
        settings={**_MLA, "num_hidden_layers": 3, "mlp_layer_types": ["dense"] * 3, "hc_mult": 2},
        groups=((0,), (1, 2)),
        backend="eager",
    ),
    ModelCase(
        name="dots3_note",
        model_type="dots3_note_text",
        classes=("Dots3NoteTextConfig", "Dots3NoteForCausalLM"),
        settings={
            **_MLA,
            "num_hidden_layers": 4,
            "first_k_dense_replace": 4,
            "head_dim": 24,
            "sliding_window": 48,
            "layer_types": [
                "indexed_attention",
                "sliding_attention",
                "sliding_attention",
                "indexed_attention",
            ],
            "swa_num_attention_heads": 2,
            "swa_num_key_value_heads": 2,
            "swa_q_lora_rank": 16,
            "swa_kv_lora_rank": 32,
            "swa_head_dim": 24,
            "swa_qk_nope_head_dim": 16,
            "swa_v_head_dim": 12,
        },
        groups=((0,), (3,)),
        seed=16,
    ),
    ModelCase(
        name="deepseek_v4",
        model_type="deepseek_v4",
        classes=("DeepseekV4Config", "DeepseekV4ForCausalLM"),
        settings={
            **_SHARED,
            "num_hidden_layers": 3,
            "moe_intermediate_size": 32,
            "head_dim": 32,
            "q_lora_rank": 32,
            "index_head_dim": 16,
            "num_experts_per_tok": 2,
            "n_routed_experts": 4,
            "sliding_window": 32,
            "o_groups": 2,
            "o_lora_rank": 16,
            "hc_mult": 2,
            "hc_sinkhorn_iters": 3,
            "partial_rotary_factor": 0.25,
            "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 32},
            "layer_types": [_CSA, "heavily_compressed_attention", _CSA],
            "mlp_layer_types": ["moe", "moe", "moe"],
        },
        groups=((0,), (2,)),
        backend="eager",
        context=300,
        seed=14,
    ),
)
BY_NAME = {case.name: case for case in CASES}

STOCK_FIRST = (
    replace(
        BY_NAME["dots3_note"],
        name="dots3_note-sliding-first",
        settings={
            **BY_NAME["dots3_note"].settings,
            "layer_types": ["sliding_attention", "indexed_attention", "sliding_attention", "indexed_attention"],
        },
        groups=((1,), (3,)),
    ),
    replace(
        BY_NAME["deepseek_v4"],
        name="deepseek_v4-heavy-first",
        settings={
            **BY_NAME["deepseek_v4"].settings,
            "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"],
        },
        groups=((1,),),
    ),
)
"""Architectures whose first layer keeps its stock cache: lengths and admission can't be read off layer 0."""


@dataclass(frozen=True)
class Prompt:
    """A batch: `ids` int64[B, T] and `mask` int64[B, T], 0 where a row is padded on the left."""

    ids: torch.Tensor
    mask: torch.Tensor

    @property
    def batch(self) -> int:
        """Rows of the batch."""
        return int(self.ids.shape[0])

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """Keyword arguments of `generate`."""
        return {"input_ids": self.ids, "attention_mask": self.mask}


def build(case: ModelCase, *, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """Make the model of a case, seeded, in evaluation mode, on its stock backend.

    Attention sinks start at zero, all alike: they are drawn at random here, so that a mixed-up one shows.
    """
    torch.manual_seed(case.seed)
    config = getattr(transformers, case.classes[0])(**{**copy.deepcopy(case.settings), **settings})
    model = getattr(transformers, case.classes[1])(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                torch.nn.init.normal_(parameter)
    lower_precision(model, dtype)
    model.set_attn_implementation(case.backend)
    return model


def lower_precision(model: Any, dtype: torch.dtype) -> None:
    """Cast the weights to `dtype` in place, except those the architecture keeps in float32."""
    kept = model._keep_in_fp32_modules_strict or ()
    for name, parameter in model.named_parameters():
        if not any(f".{part}." in f".{name}." for part in kept):
            parameter.data = parameter.data.to(dtype)


def prompt(case: ModelCase, batch: int, *, length: int | None = None, seed: int = 1) -> Prompt:
    """Make a seeded random batch: one full row, or `batch` rows padded on the left by `PADS` tokens."""
    length = case.context if length is None else length
    generator = torch.Generator().manual_seed(case.seed * 1000 + seed)
    ids = torch.randint(1, VOCABULARY, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(batch):
        pad = PADS[row] if batch > 1 else 0
        mask[row, :pad] = 0
    return Prompt(ids=ids, mask=mask)


def cache_argument(model: Any, cache: Any) -> dict[str, Any]:
    """Name the cache as this transformers wants it: `cache` since 5.24, `past_key_values` before."""
    parameters = inspect.signature(type(model).forward).parameters
    return {"cache" if "cache" in parameters else "past_key_values": cache}


def generate(model: Any, given: Prompt, *, cache: Any = None, **options: Any) -> Any:
    """Decode `NEW_TOKENS` greedy tokens; `options` go to `generate` and override."""
    settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **options}
    if cache is not None:
        settings |= cache_argument(model, cache)
    return model.generate(**given.inputs, **settings)


def forced_logits(model: Any, cache: Any, given: Prompt, tokens: torch.Tensor) -> torch.Tensor:
    """Read a prompt, then decode `tokens` int64[B, N] whatever the model says: its logits, float32[N, B, V]."""
    logits = []
    with torch.no_grad():
        for step in [given.ids, *tokens[:, :-1].split(1, dim=1)]:
            output = model(input_ids=step, use_cache=True, logits_to_keep=1, **cache_argument(model, cache))
            logits.append(output.logits[:, -1].float())
    return torch.stack(logits)


def new_tokens(given: Prompt, sequences: torch.Tensor) -> torch.Tensor:
    """Return only what was generated, int64[B, N]."""
    return sequences[:, given.ids.shape[1] :]


def disturb(model: Any, scale: float, seed: int = 7) -> Any:
    """Return a copy whose weights differ by normal noise of the relative size `scale`."""
    disturbed = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in disturbed.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.mul_(1 + scale * noise.to(parameter.dtype))
    return disturbed
