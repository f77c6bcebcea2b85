"""Forward passes that would be served wrong are served right or refused, and a refused pass changes nothing."""

from typing import Any

import pytest
import torch
import zoo

from hisparse.config import CacheSettings
from hisparse.errors import ArrayError, HiSparseError, HostPoolFullError, PositionError, SettingError, StateError
from hisparse.integrations.transformers import HiSparseCache, enable

SHORT = 16


def run(model: Any, cache: Any, tokens: torch.Tensor, **named: Any) -> torch.Tensor:
    """Run one forward without gradients and return its logits."""
    with torch.no_grad():
        output = model(input_ids=tokens, use_cache=True, **zoo.cache_argument(model, cache), **named)
    logits: torch.Tensor = output.logits
    return logits


class LowRank(torch.nn.Module):
    """An adapter over a projection: its weight is not all it computes."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, 2, bias=False)
        self.up = torch.nn.Linear(2, base.out_features, bias=False)

    @property
    def weight(self) -> torch.Tensor:
        return self.base.weight

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(values) + self.up(self.down(values))
        return result


def adapt(attention: Any) -> None:
    """Put an adapter over the projection."""
    attention.kv_b_proj = LowRank(attention.kv_b_proj)


def hook(attention: Any) -> None:
    """Hook the projection's output."""
    attention.kv_b_proj.register_forward_hook(lambda _module, _given, output: output * 1.5)


def bias(attention: Any) -> None:
    """Give the projection a bias."""
    attention.kv_b_proj.bias = torch.nn.Parameter(torch.full((attention.kv_b_proj.out_features,), 0.2))


def replace_forward(attention: Any) -> None:
    """Replace the projection's forward on the instance, as offloading hooks do."""
    projection = attention.kv_b_proj
    stock = projection.forward
    projection.forward = lambda values: stock(values) * 0.5


@pytest.mark.parametrize("change", [adapt, hook, bias, replace_forward])
def test_a_projection_changed_after_enabling_is_followed(v32: zoo.ModelCase, make_cache: Any, change: Any) -> None:
    """An adapter, hook, bias or forward put on ``kv_b_proj`` later shows in the tokens as in the stock model's."""
    model = zoo.build(v32)
    handle = enable(model)
    given = zoo.prompt(v32, 1)
    for layer in model.model.layers:
        change(layer.self_attn)
    served = zoo.generate(model, given, cache=make_cache(model), max_new_tokens=SHORT)
    handle.disable()
    assert torch.equal(served, zoo.generate(model, given, max_new_tokens=SHORT))


def test_a_mask_by_head_is_refused(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """Heads that may see different rows can't share one selection: refused, and the step can be repeated."""
    model, given = shelf.served(v32), zoo.prompt(v32, 1)
    cache = make_cache(model)
    token = run(model, cache, given.ids)[:, -1:].argmax(-1)
    heads = model.config.num_attention_heads
    mask = torch.zeros(1, heads, 1, given.ids.shape[1] + 1)
    mask[:, 1, :, :50] = torch.finfo(torch.float32).min
    with pytest.raises(ArrayError, match=r"attention_mask must be \[B, 1, S, T\]"):
        run(model, cache, token, attention_mask=mask)
    assert cache.get_seq_length() == given.ids.shape[1]
    run(model, cache, token)
    cache.check()


def test_training_is_refused(v32: zoo.ModelCase, make_cache: Any) -> None:
    """A cache that carries no gradients says so instead of training on wrong ones, and stays usable."""
    model = zoo.build(v32)
    enable(model)
    cache, given = make_cache(model), zoo.prompt(v32, 1)
    model.train()
    with pytest.raises(StateError, match="gradients"):
        model(input_ids=given.ids, use_cache=True, **zoo.cache_argument(model, cache))
    model.eval()
    assert cache.get_seq_length() == 0
    zoo.generate(model, given, cache=cache, max_new_tokens=2)


def test_dropout_is_refused(v32: zoo.ModelCase, make_cache: Any) -> None:
    """Attention dropout can't be applied to selected rows: decoding with it is refused."""
    model = zoo.build(v32, attention_dropout=0.5)
    enable(model)
    cache, given = make_cache(model), zoo.prompt(v32, 1)
    token = run(model, cache, given.ids)[:, -1:].argmax(-1)
    model.train()
    with pytest.raises(StateError, match=r"attention dropout is 0\.5"):
        run(model, cache, token)
    model.eval()
    run(model, cache, token)


def test_reaching_the_limit_changes_nothing(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """At ``max_positions`` the pass is refused before any layer runs, whichever layers the model has."""
    model, given = shelf.served(case), zoo.prompt(case, 1)
    limit = given.ids.shape[1] + 3
    cache = make_cache(model, max_positions=limit)
    token = run(model, cache, given.ids)[:, -1:].argmax(-1)
    for _ in range(3):
        token = run(model, cache, token)[:, -1:].argmax(-1)
    before = [layer.get_seq_length() for layer in cache.layers]
    for _ in range(2):
        with pytest.raises(PositionError, match=f"beyond the {limit} positions.*max_positions"):
            run(model, cache, token)
    assert [layer.get_seq_length() for layer in cache.layers] == before
    cache.check()


def test_another_batch_is_refused_before_any_layer_runs(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """A batch of another size is refused with both sizes, and the cache goes on with its own."""
    model, given = shelf.served(case), zoo.prompt(case, 1)
    cache = make_cache(model)
    token = run(model, cache, given.ids)[:, -1:].argmax(-1)
    with pytest.raises(ArrayError, match="holds 1 requests, the pass has 2"):
        run(model, cache, token.expand(2, 1))
    run(model, cache, token)
    cache.check()


def test_a_cache_of_another_model_is_refused(shelf: Any, v32: zoo.ModelCase) -> None:
    """A cache with another number of layers than the model is named as such."""
    other = zoo.build(v32, num_hidden_layers=2, first_k_dense_replace=2)
    cache = HiSparseCache(other.config, max_positions=512)
    with pytest.raises(StateError, match=r"2 layers.*has 3"):
        run(shelf.served(v32), cache, zoo.prompt(v32, 1).ids)
    cache.close()


def test_tracing_is_refused(v32: zoo.ModelCase, make_cache: Any) -> None:
    """A compiled model can't be traced through a cache that works outside of torch."""
    model = zoo.build(v32)
    enable(model)
    cache = make_cache(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        with pytest.raises(StateError, match=r"without torch\.compile"):
            run(model, cache, zoo.prompt(v32, 1).ids)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("disk:a\0b", "NUL"), ("disk:~no_such_user_here/x", "home"), ("disk:\ud800", "surrogates")],
)
def test_a_name_no_directory_can_have_is_refused(name: str, reason: str) -> None:
    """A host pool that names no possible directory is refused when the settings are made."""
    with pytest.raises(SettingError, match=f"host_pool must name a directory.*{reason}"):
        CacheSettings(host_pool=name)


def test_a_hot_buffer_beyond_all_memory_is_refused(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """A hot buffer no machine has memory for is refused by a sentence that names the knob, with nothing left open."""
    model = shelf.served(v32)
    cache = make_cache(model, hot_slots=32768, max_positions=512)
    zoo.generate(model, zoo.prompt(v32, 1), cache=cache, max_new_tokens=2)
    with pytest.raises(HiSparseError, match="hot_slots"):
        zoo.generate(model, zoo.prompt(v32, 1), cache=HiSparseCache(model.config, hot_slots=10**15, max_positions=512))


@pytest.mark.parametrize("wrong", [None, 3, "model"])
def test_what_is_no_model_is_named(wrong: Any, shelf: Any, v32: zoo.ModelCase) -> None:
    """`enable` and `HiSparseCache` say what they were given where a model or a config is needed."""
    with pytest.raises(HiSparseError, match=type(wrong).__name__):
        enable(wrong)
    with pytest.raises(HiSparseError, match=type(wrong).__name__):
        HiSparseCache(wrong)
    with pytest.raises(SettingError, match="telemetry must be a TelemetryPipeline"):
        HiSparseCache(shelf.stock(v32).config, telemetry="prometheus")  # type: ignore[arg-type] # the point


def test_a_pool_too_small_for_the_prompt_names_its_own_knob(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """Where ``host_pool_bytes`` is what a prompt exceeds, that is the setting named, and nothing is left behind."""
    model, given = shelf.served(case), zoo.prompt(case, 1)
    cache = make_cache(model, host_pool_bytes=1 << 16, page_rows=8)
    with pytest.raises(HostPoolFullError, match=r"1 requests of \d+ positions need \d+ pages.*host_pool_bytes"):
        run(model, cache, given.ids.repeat(1, 20))
    assert cache.get_seq_length() == 0
    cache.check()
