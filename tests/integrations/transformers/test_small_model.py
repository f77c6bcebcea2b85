"""The shipped small model: real geometry, real locality, and the same tokens."""

from typing import Any

import pytest
import torch
import zoo
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from hisparse.data import long_documents, tiny_dsa_path
from hisparse.integrations.transformers import HiSparseCache, enable

CONTEXT = 2500
NEW_TOKENS = 48
CHUNK = 500


def load(dtype: torch.dtype) -> Any:
    """Load the shipped model."""
    return AutoModelForCausalLM.from_pretrained(tiny_dsa_path(), dtype=dtype).eval()


@pytest.fixture(scope="module")
def document() -> zoo.Prompt:
    """The first tokens of a module of the standard library, as the model was trained on."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_dsa_path())
    ids = tokenizer(long_documents(1)[0].text, return_tensors="pt").input_ids[:, :CONTEXT]
    assert ids.shape[1] == CONTEXT
    return zoo.Prompt(ids=ids, mask=torch.ones_like(ids))


def test_tokens_and_locality(document: zoo.Prompt, make_cache: Any) -> None:
    """On a long document the tokens are the stock ones, and a hot buffer of twice `top_k` finds rows again."""
    model = load(torch.float32)
    options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "prefill_chunk_size": CHUNK}
    expected = zoo.generate(model, document, **options)
    enable(model)
    cache = make_cache(model, hot_slots=2 * model.config.index_topk, max_positions=CONTEXT + NEW_TOKENS)
    assert torch.equal(zoo.generate(model, document, cache=cache, **options), expected)
    stats = cache.stats()
    selections = stats["selections"]
    assert selections["hit"] / (selections["hit"] + selections["miss"]) > 0.3
    assert sum(selections.values()) == 6 * 128 * (NEW_TOKENS - 1)
    assert stats["host_to_device_bytes"] == selections["miss"] * 576 * 4
    stock_bytes = 6 * (576 + 128) * 4 * (CONTEXT + NEW_TOKENS)
    assert stats["device_kv_bytes"] < stock_bytes / 2


def test_bf16_logits(document: zoo.Prompt, make_cache: Any) -> None:
    """As shipped, in bfloat16, teacher-forced logits differ from stock sdpa no more than stock eager does."""
    model = load(torch.bfloat16)
    prompt = zoo.Prompt(ids=document.ids[:, :500], mask=document.mask[:, :500])
    tokens = document.ids[:, 500:514]
    logits = {}
    for backend in ("sdpa", "eager"):
        model.set_attn_implementation(backend)
        logits[backend] = zoo.forced_logits(model, DynamicCache(config=model.config), prompt, tokens)
    model.set_attn_implementation("sdpa")
    enable(model)
    hot = zoo.forced_logits(model, make_cache(model, max_positions=540), prompt, tokens)
    stock_error = (logits["eager"] - logits["sdpa"]).square().mean().sqrt()
    assert stock_error > 0
    assert (hot - logits["sdpa"]).square().mean().sqrt() <= 1.5 * stock_error


def test_row_bytes_follow_the_dtype(document: zoo.Prompt) -> None:
    """A row of the shipped model in bfloat16 is 1152 bytes, as in DeepSeek-V3.2, and so the bytes count."""
    model = load(torch.bfloat16)
    enable(model)
    cache = HiSparseCache(model.config, max_positions=512)
    prompt = zoo.Prompt(ids=document.ids[:, :300], mask=document.mask[:, :300])
    zoo.generate(model, prompt, cache=cache, max_new_tokens=8)
    stats = cache.stats()
    assert stats["host_to_device_bytes"] == stats["selections"]["miss"] * 1152
    cache.check()
    cache.close()
