"""A model is enabled as a whole or not at all, any number of times, and only in its text part."""

from typing import Any

import pytest
import torch
import transformers
import zoo

from hisparse.errors import UnsupportedModelError
from hisparse.integrations.transformers import HiSparseCache, enable

TOKENS = 16


def attention_of(model: Any) -> str:
    """Return the attention implementation of the text model."""
    return str(model.config.get_text_config(decoder=True)._attn_implementation)


def hooks_of(model: Any) -> list[Any]:
    """Return every hook on any module."""
    return [
        hook
        for module in model.modules()
        for hooks in (module._forward_pre_hooks, module._forward_hooks)
        for hook in hooks.values()
    ]


def assert_serves(shelf: Any, model: Any, case: zoo.ModelCase) -> None:
    """Assert that a hot-buffer cache gives the stock tokens."""
    cache = HiSparseCache(model.config)
    sequences = zoo.generate(model, zoo.prompt(case, 1), cache=cache, max_new_tokens=TOKENS)
    assert torch.equal(sequences, zoo.generate(shelf.stock(case), zoo.prompt(case, 1), max_new_tokens=TOKENS))
    cache.check()
    cache.close()


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4"])
def test_any_handle_undoes_everything(name: str) -> None:
    """A model enabled twice is stock again after either handle's disable, and the other's has nothing left to do."""
    case = zoo.BY_NAME[name]
    for first_to_go in (0, 1):
        model = zoo.build(case)
        handles = [enable(model, self_check=False), enable(model, self_check=False)]
        handles[first_to_go].disable()
        assert (attention_of(model), hooks_of(model)) == (case.backend, [])
        handles[1 - first_to_go].disable()
        assert (attention_of(model), hooks_of(model)) == (case.backend, [])


def test_a_handle_that_was_used_undoes_no_later_enabling(shelf: Any, v32: zoo.ModelCase) -> None:
    """Repeating disable is harmless, also for a model that has been enabled anew since."""
    model = zoo.build(v32)
    handle = enable(model, self_check=False)
    handle.disable()
    enable(model, self_check=False)
    handle.disable()
    assert_serves(shelf, model, v32)


def test_the_last_choice_counts(shelf: Any, v32: zoo.ModelCase) -> None:
    """Enabling again changes the mode of every layer, and the tokens stay."""
    model = zoo.build(v32)
    for attention in ("absorbed", "expand", "auto"):
        handle = enable(model, attention=attention)  # type: ignore[arg-type] # one of the three
        modes = {hook.mode for hook in hooks_of(model) if hasattr(hook, "mode")}
        assert modes == {"expand" if attention == "expand" else "absorbed"}
        assert_serves(shelf, model, v32)
    handle.disable()
    assert attention_of(model) == v32.backend


def pack(model: Any) -> None:
    """Give one layer a projection that is a matrix no more."""
    attention = model.model.layers[1].self_attn
    attention.kv_b_proj = torch.nn.Sequential(attention.kv_b_proj)


def scale_what_is_served(model: Any) -> None:
    """Let one layer's output differ under our attention."""
    attention = model.model.layers[1].self_attn
    forward = attention.forward

    def scaled(*given: Any, **named: Any) -> Any:
        output, weights = forward(*given, **named)
        return output * (2 if attention_of(attention).startswith("hisparse") else 1), weights

    attention.forward = scaled


@pytest.mark.parametrize(("tamper", "kind"), [(pack, "Sequential"), (scale_what_is_served, "differs")])
def test_a_refused_change_keeps_the_former_choice(v32: zoo.ModelCase, tamper: Any, kind: str) -> None:
    """If an enabled model can't be enabled another way, it stays enabled the way it was."""
    model = zoo.build(v32)
    tamper(model)
    handle = enable(model, attention="expand", self_check=False)
    before = (attention_of(model), hooks_of(model))
    with pytest.raises(UnsupportedModelError, match=f"layer 1.*{kind}"):
        enable(model, attention="absorbed")
    assert (attention_of(model), hooks_of(model)) == before
    handle.disable()
    assert (attention_of(model), hooks_of(model)) == (v32.backend, [])


@pytest.mark.parametrize(
    "weight", ["sequential", "biased", "double", "subclass"], ids=("sequential", "biased", "double", "subclass")
)
def test_absorbed_needs_a_plain_matrix(v32: zoo.ModelCase, weight: str) -> None:
    """A projection that is more than a matrix is refused for absorbed by its layer, and auto expands it."""

    class OwnLinear(torch.nn.Linear):
        """A linear layer that may do anything."""

    model = zoo.build(v32)
    attention = model.model.layers[2].self_attn
    linear = attention.kv_b_proj
    changed = {
        "sequential": lambda: torch.nn.Sequential(linear),
        "biased": lambda: torch.nn.Linear(linear.in_features, linear.out_features),
        "double": lambda: torch.nn.Linear(linear.in_features, linear.out_features, bias=False, dtype=torch.float64),
        "subclass": lambda: OwnLinear(linear.in_features, linear.out_features, bias=False),
    }
    attention.kv_b_proj = changed[weight]()
    with pytest.raises(UnsupportedModelError, match=r'layer 2: kv_b_proj is .*; use attention="expand"'):
        enable(model, attention="absorbed", self_check=False)
    assert (attention_of(model), hooks_of(model)) == (v32.backend, [])
    enable(model, self_check=False)
    assert [hook.mode for hook in hooks_of(model) if hasattr(hook, "mode")] == ["absorbed", "absorbed", "expand"]


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention", "paged|sdpa"])
@pytest.mark.parametrize("case_name", ["deepseek_v32", "deepseek_v4"])
def test_another_attention_is_refused(case_name: str, name: str) -> None:
    """An implementation that neither masks nor passes the selection is refused by its name, and stays set."""
    model = zoo.build(zoo.BY_NAME[case_name])
    model.config._attn_implementation_internal = name
    with pytest.raises(UnsupportedModelError) as caught:
        enable(model)
    assert repr(name) in str(caught.value)
    assert "sdpa, eager" in str(caught.value)
    assert (attention_of(model), hooks_of(model)) == (name, [])


def test_an_attention_set_since_is_the_one_that_counts(v32: zoo.ModelCase) -> None:
    """Who sets another stock attention on an enabled model keeps it, over a second enable and after disable."""
    model = zoo.build(v32)
    handle = enable(model, self_check=False)
    model.set_attn_implementation("eager")
    handle.disable()
    assert attention_of(model) == "eager"
    enable(model, self_check=False)
    model.set_attn_implementation("sdpa")
    handle = enable(model)
    handle.disable()
    assert (attention_of(model), hooks_of(model)) == ("sdpa", [])


def multimodal(case: zoo.ModelCase) -> Any:
    """Make a small model with encoders for images and sound around the text model of a case."""
    torch.manual_seed(0)
    width = case.settings["hidden_size"]
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "mlp_layer_types": ["dense"],
        "adapter_in_dim": 16,
        "adapter_out_dim": width,
    }
    audio = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "downsample_hidden_size": 8,
        "feature_size": 16,
        "adapter_input_size": 16,
        "adapter_out_dim": width,
    }
    config = transformers.Dots3NoteConfig(
        text_config=dict(case.settings),
        vision_config=vision,
        audio_config=audio,
        image_token_id=190,
        video_token_id=191,
        audio_token_id=192,
    )
    model = transformers.Dots3NoteForConditionalGeneration(config).eval()
    model.set_attn_implementation("sdpa")
    return model


def test_only_the_text_model_is_switched() -> None:
    """Encoders of a multimodal model keep their attention while its text decodes from the hot buffer."""
    case = zoo.BY_NAME["dots3_note"]
    model = multimodal(case)
    given = zoo.prompt(case, 1, length=100)
    expected = zoo.generate(model, given, max_new_tokens=TOKENS)

    def everywhere() -> list[str]:
        parts = (model.config, model.config.text_config, model.config.vision_config, model.config.audio_config)
        return [str(part._attn_implementation) for part in parts]

    before = everywhere()
    handle = enable(model)
    assert everywhere() == [before[0], "hisparse_sdpa", *before[2:]]
    cache = HiSparseCache(model.config)
    assert torch.equal(zoo.generate(model, given, cache=cache, max_new_tokens=TOKENS), expected)
    assert cache.stats()["selections"]["miss"] > 0
    cache.check()
    cache.close()
    handle.disable()
    assert everywhere() == before
    assert not hooks_of(model)
