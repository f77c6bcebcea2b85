"""Enabling changes nothing but where rows are read, and can be undone."""

from typing import Any

import pytest
import torch
import zoo

from hisparse.integrations.transformers import enable

SHORT = 40


def footprint(model: Any) -> tuple[Any, ...]:
    """Return what enabling might change: the attention implementation, hooks and forwards of every module."""
    hooks = [
        (name, len(module._forward_hooks), len(module._forward_pre_hooks), "forward" in vars(module))
        for name, module in model.named_modules()
    ]
    return model.config._attn_implementation, hooks


def test_disable_restores_the_model(shelf: Any, case: zoo.ModelCase) -> None:
    """A disabled model has its former attention, no hook of ours, and the stock tokens."""
    model = zoo.build(case)
    before = footprint(model)
    handle = enable(model)
    handle.disable()
    assert footprint(model) == before
    sequences = zoo.generate(model, zoo.prompt(case, 1), max_new_tokens=SHORT)
    assert torch.equal(sequences, shelf.reference(case, 1, max_new_tokens=SHORT))
    handle.disable()
    assert footprint(model) == before


def test_enabling_twice_is_enabling_once(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """A second enable adds no second hook and leaves the tokens as they are."""
    model = zoo.build(case)
    before = footprint(model)
    enable(model)
    once = footprint(model)
    handle = enable(model)
    assert footprint(model) == once
    sequences = zoo.generate(model, zoo.prompt(case, 1), cache=make_cache(model), max_new_tokens=SHORT)
    assert torch.equal(sequences, shelf.reference(case, 1, max_new_tokens=SHORT))
    handle.disable()
    assert footprint(model) == before


def test_enabling_changes_no_weight_and_no_random_state(case: zoo.ModelCase) -> None:
    """The self-check leaves weights, buffers and torch's random state as they were."""
    model = zoo.build(case)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    enable(model)
    assert torch.equal(torch.get_rng_state(), state)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_model_in_training_mode_stays_in_it(v32: zoo.ModelCase) -> None:
    """Enabling a model in training mode leaves every module's mode as it was."""
    model = zoo.build(v32).train()
    enable(model)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_either_stock_backend_is_kept(make_cache: Any, v32: zoo.ModelCase, backend: str) -> None:
    """A model enabled on sdpa or on eager gives the tokens of that backend, cached and uncached."""
    model = zoo.build(v32)
    model.set_attn_implementation(backend)
    given = zoo.prompt(v32, 3)
    expected = zoo.generate(model, given, max_new_tokens=SHORT)
    handle = enable(model)
    assert torch.equal(zoo.generate(model, given, cache=make_cache(model), max_new_tokens=SHORT), expected)
    assert torch.equal(zoo.generate(model, given, max_new_tokens=SHORT), expected)
    handle.disable()
    assert model.config._attn_implementation == backend


def test_without_the_self_check(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """Skipping the self-check skips nothing else."""
    model = zoo.build(case)
    enable(model, self_check=False)
    sequences = zoo.generate(model, zoo.prompt(case, 3), cache=make_cache(model), max_new_tokens=SHORT)
    assert torch.equal(sequences, shelf.reference(case, 3, max_new_tokens=SHORT))


def test_mixture_of_experts(make_cache: Any) -> None:
    """Sparse MLP layers between the attention layers change nothing."""
    case = zoo.BY_NAME["glm_moe_dsa-FSSF"]
    model = zoo.build(case, mlp_layer_types=["dense", "sparse", "sparse", "sparse"])
    given = zoo.prompt(case, 3)
    expected = zoo.generate(model, given, max_new_tokens=SHORT)
    enable(model)
    assert torch.equal(zoo.generate(model, given, cache=make_cache(model), max_new_tokens=SHORT), expected)
