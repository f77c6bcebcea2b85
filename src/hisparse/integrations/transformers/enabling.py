"""Switching a model's attention to the hot buffer, and back."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import nn

from hisparse.errors import SettingError, UnsupportedModelError
from hisparse.integrations.transformers.attention import AttentionMode, hisparse_attention
from hisparse.integrations.transformers.geometry import ModelGeometry, geometry_of
from hisparse.integrations.transformers.hooks import (
    ArmLayer,
    InstalledHook,
    TrackPass,
    attention_modules,
    decoder_of,
)
from hisparse.integrations.transformers.self_check import capture_stock_step, check_captured

_STOCK = ("sdpa", "eager")
AttentionChoice = Literal["auto", "absorbed", "expand"]


class Enabled:
    """A model whose attention reads `HiSparseCache`; stock caches keep working on it."""

    def __init__(self, model: Any, stock: str, hooks: Sequence[Any]) -> None:
        """Hold what `disable` has to undo.

        Args:
            model: The transformers model.
            stock: Attention implementation it had.
            hooks: Handles of the hooks installed.
        """
        self._model = model
        self._stock = stock
        self._hooks = list(hooks)

    def disable(self) -> None:
        """Give the model its former attention back; harmless when repeated."""
        for hook in self._hooks:
            hook.remove()
        if self._hooks:
            set_text_attention(self._model, self._stock)
        self._hooks = []


def enable(model: Any, attention: AttentionChoice = "auto", *, self_check: bool = True) -> Enabled:
    """Let `model` decode from a `HiSparseCache`.

    Registers attention functions with transformers, adds one pre-hook to each attention module, and sets the
    model's attention implementation.  Calling it again replaces the former choice.

    Args:
        model: A transformers causal language model of a supported type.
        attention: ``"absorbed"`` (fast) scores latents directly and needs a plain ``kv_b_proj`` weight;
            ``"expand"`` runs the model's own ``expand_kv`` on the selected rows and works with quantised
            weights; ``"auto"`` takes absorbed where the weights allow.
        self_check: Decode one token through both paths, module by module, and refuse on a mismatch.

    Returns:
        A handle whose `disable` undoes everything.

    Raises:
        UnsupportedModelError: The model can't be served, or does not do what its type promises; says why.
            The model is left as it was.
        SettingError: `attention` is not one of the three.
    """
    if attention not in ("auto", "absorbed", "expand"):
        raise SettingError(f'attention must be "auto", "absorbed" or "expand", got {attention!r}')
    geometry = geometry_of(model.config)
    _disable_former(model)
    if any(layer.kind == "compressed" for layer in geometry.layers):
        from hisparse.integrations.transformers.compressed import hook_compressors  # noqa: PLC0415 - one model

        return _enable(model, geometry, self_check=self_check, install=lambda _stock: hook_compressors(model))
    modules = _checked_modules(model, geometry)
    modes = {module: _mode_for(module, attention) for module in modules}

    def install(stock: str) -> list[Any]:
        name = _register(stock)
        set_text_attention(model, name)
        return [
            module.register_forward_pre_hook(ArmLayer(name, stock, mode), with_kwargs=True, prepend=True)
            for module, mode in modes.items()
        ]

    return _enable(model, geometry, self_check=self_check, install=install)


def _enable(model: Any, geometry: ModelGeometry, *, self_check: bool, install: Callable[[str], list[Any]]) -> Enabled:
    """Capture a stock step, install the hooks, compare; undo everything if the comparison fails."""
    stock = model.config.get_text_config(decoder=True)._attn_implementation  # noqa: SLF001 - where transformers keeps it
    if stock not in _STOCK:
        raise UnsupportedModelError(
            f"attention implementation {stock!r} is not supported: set one of {', '.join(_STOCK)} "
            "(model.set_attn_implementation) before enable"
        )
    captured = capture_stock_step(model, geometry) if self_check else None
    enabled = Enabled(model, stock, [*TrackPass().install(decoder_of(model)), *install(stock)])
    if captured is not None:
        try:
            check_captured(model, geometry, captured)
        except BaseException:
            enabled.disable()
            raise
    return enabled


def set_text_attention(model: Any, name: str) -> None:
    """Set the attention implementation of the text model, and of nothing else a multimodal model contains."""
    text = model.config.get_text_config(decoder=True)
    keys = [key for key in model.config.sub_configs if getattr(model.config, key, None) is text]
    model.set_attn_implementation(dict.fromkeys(keys, name) if keys else name)


def _register(stock: str) -> str:
    """Register the attention function and the stock mask under one name, and return it."""
    from transformers import AttentionInterface, AttentionMaskInterface  # noqa: PLC0415 - slow import, first use
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS  # noqa: PLC0415 - same reason

    name = f"hisparse_{stock}"
    AttentionInterface.register(name, hisparse_attention)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[stock])
    return name


def _checked_modules(model: Any, geometry: ModelGeometry) -> list[Any]:
    """Return the attention modules, one per layer.

    Raises:
        UnsupportedModelError: Modules and config disagree.
    """
    modules = attention_modules(model)
    found = [module.layer_idx for module in modules]
    if found != list(range(len(geometry.layers))):
        raise UnsupportedModelError(
            f"{geometry.model_type}: the config has {len(geometry.layers)} layers, but modules with expand_kv "
            f"were found for layers {found}"
        )
    leaders = {members[0] for members in geometry.groups}
    for module in modules:
        has_indexer = getattr(module, "indexer", None) is not None
        if has_indexer != (module.layer_idx in leaders):
            raise UnsupportedModelError(
                f"{geometry.model_type}: layer {module.layer_idx} {'has' if has_indexer else 'lacks'} an indexer, "
                "which its config does not say"
            )
    return modules


def _mode_for(module: Any, attention: AttentionChoice) -> AttentionMode:
    """Return the mode of one module.

    Raises:
        UnsupportedModelError: Absorbed was asked for, and the weight is not a plain matrix.
    """
    if attention == "expand":
        return "expand"
    projection: Any = module.kv_b_proj
    weight: Any = getattr(projection, "weight", None)
    is_plain = (
        type(projection) is nn.Linear
        and type(weight) is nn.Parameter
        and getattr(projection, "bias", None) is None
        and weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
    )
    if is_plain:
        return "absorbed"
    if attention == "absorbed":
        raise UnsupportedModelError(
            f"layer {module.layer_idx}: kv_b_proj is {type(projection).__name__} with weight {type(weight).__name__}, "
            'not a plain matrix; use attention="expand"'
        )
    return "expand"


def _disable_former(model: Any) -> None:
    """Undo an earlier `enable` of the same model."""
    for module in model.modules():
        # torch lists hooks nowhere else; the marks beside them are keyed alike.
        pre_hooks, hooks = module._forward_pre_hooks, module._forward_hooks  # noqa: SLF001 - see above
        marks = (
            module._forward_pre_hooks_with_kwargs,  # noqa: SLF001 - see above
            module._forward_hooks_with_kwargs,  # noqa: SLF001 - see above
            module._forward_hooks_always_called,  # noqa: SLF001 - see above
        )
        for key, hook in [*pre_hooks.items(), *hooks.items()]:
            if isinstance(hook, ArmLayer):
                set_text_attention(model, hook.stock)
            if isinstance(getattr(hook, "__self__", hook), InstalledHook):
                for kept in (pre_hooks, hooks, *marks):
                    kept.pop(key, None)
