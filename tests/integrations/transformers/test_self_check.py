"""A model that does not do what its type promises is refused by name and layer, and left exactly as it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import zoo
from transformers.cache_utils import DynamicCache

from hisparse.errors import UnsupportedModelError
from hisparse.integrations.transformers import enable
from hisparse.integrations.transformers.geometry import geometry_of
from hisparse.integrations.transformers.layers import RowLayer
from hisparse.integrations.transformers.self_check import capture_stock_step

LAYER = 1


def footprint(model: Any) -> dict[str, Any]:
    """Return everything about a model that enabling could leave changed, weights apart."""
    return {
        "attention": [model.config._attn_implementation, model.config.get_text_config()._attn_implementation],
        "hooks": {
            name: [list(getattr(module, kind)) for kind in vars(module) if kind.endswith(("_hooks", "_with_kwargs"))]
            for name, module in model.named_modules()
        },
        "top_k": {name: getattr(module, "index_topk", None) for name, module in model.named_modules()},
        "training": {name: module.training for name, module in model.named_modules()},
        "forward": {name: vars(module).get("forward") for name, module in model.named_modules()},
    }


def tampered_attention(model: Any) -> Any:
    """Return the attention module that tests tamper with."""
    return model.model.layers[LAYER].self_attn


def is_served(module: Any) -> bool:
    """Return whether a module's attention is ours at the moment."""
    return str(module.config._attn_implementation).startswith("hisparse")


def give_other_outputs(model: Any) -> None:
    """Let one layer's output depend on the attention implementation, by one part in a hundred."""
    module = tampered_attention(model)
    forward = module.forward

    def scaled(*given: Any, **named: Any) -> Any:
        output, weights = forward(*given, **named)
        return output * (1.01 if is_served(module) else 1), weights

    module.forward = scaled


class Between:
    """Stands between one attention module and its cache; `wrap` puts it there for the caches of this package."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        """Pass everything else on."""
        return getattr(self._cache, name)

    @classmethod
    def wrap(cls, module: Any) -> None:
        """Stand between `module` and every cache it is called with."""
        forward, made = module.forward, {}

        def through(*given: Any, **named: Any) -> Any:
            name = "cache" if "cache" in named else "past_key_values"
            cache = named[name]
            if isinstance(cache.layers[module.layer_idx], RowLayer):
                made.setdefault(id(cache), cls(cache))
                named = {**named, name: made[id(cache)]}
            return forward(*given, **named)

        module.forward = through


class TurnedAround(Between):
    """Keeps the rows of a prompt in the opposite order of their tokens."""

    def update(self, latent: torch.Tensor, rotary: torch.Tensor, *given: Any, **named: Any) -> Any:
        latent, rotary = self._cache.update(latent.flip(2), rotary.flip(2), *given, **named)
        return latent.flip(2), rotary.flip(2)


class SecondCopy(Between):
    """Keeps the rows as it should, and lets attention read a copy of its own."""

    def __init__(self, cache: Any) -> None:
        super().__init__(cache)
        self._copy = DynamicCache()

    def update(self, latent: torch.Tensor, rotary: torch.Tensor, *given: Any, **named: Any) -> Any:
        self._cache.update(latent, rotary, *given, **named)
        self._cache.layers[LAYER].take_reads_selection()
        return self._copy.update(latent, rotary, 0)


def permute_rows(model: Any) -> None:
    """Let one layer keep its rows in another order than its tokens."""
    TurnedAround.wrap(tampered_attention(model))


def read_elsewhere(model: Any) -> None:
    """Let one layer attend to rows of its own, so that it never selects any."""
    SecondCopy.wrap(tampered_attention(model))


def lose_the_selection(model: Any) -> None:
    """Let one layer pass no selection to an attention that is not a stock one."""
    module = tampered_attention(model)
    indexer = module.indexer.forward
    module.indexer.forward = lambda *given, **named: None if is_served(module) else indexer(*given, **named)


def fail_when_served(model: Any) -> None:
    """Let one layer fail under an attention it does not know."""
    module = tampered_attention(model)
    forward = module.forward

    def failing(*given: Any, **named: Any) -> Any:
        if is_served(module):
            raise KeyError("unknown attention")
        return forward(*given, **named)

    module.forward = failing


BROKEN = {
    give_other_outputs: "attention of layer 1 over the hot buffer differs from the stock one by 0.01 of its norm",
    permute_rows: "attention of layer 1 over the hot buffer differs",
    read_elsewhere: r"attention of layers \[1\] never asked for selected rows",
    lose_the_selection: "could not decode a token: StateError: layer 1 .*no selection",
    fail_when_served: "could not decode a token: KeyError: 'unknown attention'",
}


@pytest.mark.parametrize(("tamper", "sentence"), BROKEN.items(), ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("attention", ["absorbed", "expand"])
def test_a_broken_contract_is_refused_and_nothing_is_left(
    v32: zoo.ModelCase, tamper: Callable[[Any], None], sentence: str, attention: Any
) -> None:
    """Each way to break the contract is named with its layer, in both modes, and leaves no trace in the model."""
    model = zoo.build(v32)
    tamper(model)
    before = footprint(model)
    with pytest.raises(UnsupportedModelError, match=rf"deepseek_v32: .*{sentence}"):
        enable(model, attention=attention)
    assert footprint(model) == before


def test_modes_of_single_modules_are_kept(case: zoo.ModelCase) -> None:
    """A model of which some modules train and others do not is enabled, and each module keeps its mode."""
    model = zoo.build(case).train()
    model.model.layers[0].eval()
    before = footprint(model)
    handle = enable(model)
    assert footprint(model)["training"] == before["training"]
    handle.disable()
    assert footprint(model) == before


@pytest.mark.parametrize("training", [True, False])
def test_dropout_does_not_disturb_the_check(v32: zoo.ModelCase, *, training: bool) -> None:
    """A model that trains with dropout is checked as it would be served: without it."""
    model = zoo.build(v32, attention_dropout=0.5).train(training)
    for layer in model.model.layers:
        layer.self_attn.o_proj = torch.nn.Sequential(layer.self_attn.o_proj, torch.nn.Dropout(0.5)).train(training)
    enable(model).disable()
    assert all(module.training is training for module in model.modules())


def test_a_model_that_can_not_run_is_left_as_it_was(v32: zoo.ModelCase) -> None:
    """If even the stock step fails, what it raised comes out, and no hook, mode or selection is left changed."""
    model = zoo.build(v32).train()

    def fail(*_given: Any, **_named: Any) -> Any:
        raise ArithmeticError("no kernel for this")

    model.model.layers[2].mlp.forward = fail
    before = footprint(model)
    with pytest.raises((UnsupportedModelError, ArithmeticError), match="no kernel for this"):
        enable(model)
    assert footprint(model) == before


def test_the_step_that_is_captured_selects_for_real(case: zoo.ModelCase) -> None:
    """Every layer with rows is captured once, with fewer rows selected than there are."""
    model = zoo.build(case)
    geometry = geometry_of(model.config)
    before = footprint(model)
    captured = capture_stock_step(model, geometry)
    assert footprint(model) == before
    assert sorted(call.layer for call in captured.calls) == list(geometry.row_layers)
    assert geometry.rows_for(captured.prompt.shape[1]) > 8
    assert all(torch.isfinite(call.output).all() for call in captured.calls)
