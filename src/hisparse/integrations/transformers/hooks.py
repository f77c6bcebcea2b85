"""The hook that tells the attention function which cache layer a module's forward pass uses."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from hisparse.errors import StateError
from hisparse.integrations.transformers.attention import AttentionCall, AttentionMode
from hisparse.integrations.transformers.layers import RowLayer


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
            layer.arm()
        if current != self.implementation:
            return args, kwargs
        return args, {**kwargs, "hisparse": AttentionCall(self.stock, self.mode, layer)}


def cache_layer(module: Any, kwargs: dict[str, Any]) -> RowLayer | None:
    """Return the row layer of the cache in `kwargs` that belongs to `module`, or None."""
    # transformers renamed the argument in 5.24.
    cache = kwargs.get("cache", kwargs.get("past_key_values"))
    layers = getattr(cache, "layers", ())
    layer = layers[module.layer_idx] if module.layer_idx < len(layers) else None
    return layer if isinstance(layer, RowLayer) else None


def attention_modules(model: nn.Module) -> list[Any]:
    """Return the model's latent-attention modules, those that expand rows, in layer order."""
    modules = [module for module in model.modules() if hasattr(module, "expand_kv") and hasattr(module, "layer_idx")]
    return sorted(modules, key=lambda module: module.layer_idx)
