"""Hooks: a forward pass begins and ends at its cache, and attention learns which cache layer it uses."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hisparse.errors import StateError, UnsupportedModelError
from hisparse.integrations.transformers.attention import AttentionCall, AttentionMode, has_plain_projection
from hisparse.integrations.transformers.layers import RowLayer
from hisparse.integrations.transformers.row_cache import RowCache
from hisparse.integrations.transformers.tokens import SeenTokens


class InstalledHook:
    """Base of everything `enable` hooks into a model, so that it can be found and taken out again."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ArmLayer(InstalledHook):
    """A forward pre-hook for one attention module.

    The attention interface passes no cache, but it passes on keyword arguments: the hook adds one.

    Attributes:
        implementation: Name the model's attention must still be set to.
        stock: Backend for what is not read from the hot buffer.
        mode: How selected rows are attended.
    """

    implementation: str
    stock: str
    mode: AttentionMode

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Arm the module's cache layer and pass the call on.

        Raises:
            StateError: The model's attention implementation was changed after `enable`, and the cache is one
                that only its own attention can read.
        """
        layer = cache_layer(module, kwargs)
        current = module.config._attn_implementation  # noqa: SLF001 - where transformers keeps the setting
        if layer is not None:
            if current != self.implementation:
                raise StateError(
                    f"the model was enabled with attention {self.implementation!r}, but it is set to {current!r} now; "
                    "call enable(model) again, or use a stock cache"
                )
            if module.training and torch.is_grad_enabled():
                raise StateError(
                    "a HiSparseCache carries no gradients: decode in evaluation mode (model.eval()) or no_grad"
                )
            layer.arm()
        if current != self.implementation:
            return args, kwargs
        mode = self.mode if has_plain_projection(module) else "expand"
        return args, {**kwargs, "hisparse": AttentionCall(self.stock, mode, layer)}


class TrackPass(InstalledHook):
    """Hooks of the decoder, through which every forward pass goes: a pass that fails is undone in its cache."""

    __slots__ = ()

    def begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Pre-hook: begin the pass.

        Raises:
            StateError: The cache is of another model, can't go on, or the model is compiled.
            HiSparseError: As `RowCache.begin_pass`; nothing was changed.
        """
        given = _arguments(module, args, kwargs)
        cache = _row_cache(given)
        if cache is None:
            return
        if torch.compiler.is_compiling():
            raise StateError("a HiSparseCache can't be traced: call the model without torch.compile")
        if len(cache.layers) != len(module.layers):
            raise StateError(
                f"this cache is for a model of {len(cache.layers)} layers, "
                f"{type(module).__name__} has {len(module.layers)}"
            )
        tokens = given.get("inputs_embeds") if given.get("input_ids") is None else given["input_ids"]
        if isinstance(tokens, torch.Tensor):
            cache.begin_pass(tokens.shape[0], tokens.shape[1])

    def end(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Forward hook, called with no output when the pass raised."""
        given = _arguments(module, args, kwargs)
        cache = _row_cache(given)
        if cache is not None and output is None:
            cache.fail_pass()
        elif cache is not None:
            cache.end_pass(SeenTokens.of(given, training=module.training))

    def install(self, decoder: nn.Module) -> list[Any]:
        """Install both on `decoder` and return their handles."""
        return [
            decoder.register_forward_pre_hook(self.begin, with_kwargs=True),
            decoder.register_forward_hook(self.end, with_kwargs=True, always_call=True),
        ]


def decoder_of(model: nn.Module) -> nn.Module:
    """Return the module that runs the layers: the innermost one that has the attention modules below its ``layers``.

    Raises:
        UnsupportedModelError: There is none.
    """
    found = None
    for module in model.modules():
        layers = getattr(module, "layers", None)
        if isinstance(layers, nn.ModuleList) and any(has_rows(part) for part in layers.modules()):
            found = module
    if found is None:
        raise UnsupportedModelError(f"{type(model).__name__} has no module with decoder layers")
    return found


def _arguments(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a forward call by name."""
    return inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments if args else kwargs


def _row_cache(given: dict[str, Any]) -> RowCache | None:
    """Return the row cache a decoder was called with, or None."""
    cache = given.get("cache", given.get("past_key_values"))
    return cache if isinstance(cache, RowCache) else None


def cache_layer(module: Any, kwargs: dict[str, Any]) -> RowLayer | None:
    """Return the row layer of the cache in `kwargs` that belongs to `module`, or None."""
    # transformers renamed the argument in 5.24.
    cache = kwargs.get("cache", kwargs.get("past_key_values"))
    layers = getattr(cache, "layers", ())
    layer = layers[module.layer_idx] if module.layer_idx < len(layers) else None
    return layer if isinstance(layer, RowLayer) else None


def has_rows(module: Any) -> bool:
    """Return whether `module` is attention whose keys and values are rows: latents, or compressed entries."""
    return hasattr(module, "layer_idx") and (hasattr(module, "expand_kv") or hasattr(module, "compressor"))


def attention_modules(model: nn.Module) -> list[Any]:
    """Return the model's latent-attention modules, those that expand rows, in layer order."""
    modules = [module for module in model.modules() if hasattr(module, "expand_kv") and hasattr(module, "layer_idx")]
    return sorted(modules, key=lambda module: module.layer_idx)
