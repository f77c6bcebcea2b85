"""What `enable` has changed in a model: found on the model itself, taken out, put back."""

from collections.abc import Callable
from typing import Any

from torch import nn

from hisparse.integrations.transformers.hooks import ArmLayer, InstalledHook


def text_attention(model: Any) -> str:
    """Return the attention implementation of the text model."""
    name: str = model.config.get_text_config(decoder=True)._attn_implementation  # noqa: SLF001 - where transformers keeps it
    return name


def set_text_attention(model: Any, name: str) -> None:
    """Set the attention implementation of the text model, and of nothing else a multimodal model contains."""
    text = model.config.get_text_config(decoder=True)
    keys = [key for key in model.config.sub_configs if getattr(model.config, key, None) is text]
    model.set_attn_implementation(dict.fromkeys(keys, name) if keys else name)


def take_out(model: Any) -> Callable[[], None]:
    """Take every hook of this package out of `model` and give it its stock attention back.

    An attention implementation that was set by hand since is kept.

    Returns:
        A function that undoes it: the same hooks, in their places, and the same attention.
    """
    former = text_attention(model)
    emptied: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for module in model.modules():
        tables = _hook_tables(module)
        own = {key: hook for table in tables[:2] for key, hook in table.items() if _is_installed(hook)}
        if not own:
            continue
        emptied += [(table, dict(table)) for table in tables]
        for key, hook in own.items():
            if isinstance(hook, ArmLayer) and text_attention(model) == hook.implementation:
                set_text_attention(model, hook.stock)
            for table in tables:
                table.pop(key, None)

    def put_back() -> None:
        for table, entries in emptied:
            table.clear()
            table.update(entries)
        if text_attention(model) != former:
            set_text_attention(model, former)

    return put_back


def _is_installed(hook: Any) -> bool:
    """Return whether a hook, or the object whose method it is, is one of this package."""
    return isinstance(getattr(hook, "__self__", hook), InstalledHook)


def _hook_tables(module: nn.Module) -> tuple[dict[int, Any], ...]:
    """Return the hooks of a module before and after its forward, and the marks that are keyed alike."""
    return (
        module._forward_pre_hooks,  # noqa: SLF001 - torch lists hooks nowhere else
        module._forward_hooks,  # noqa: SLF001 - same reason
        module._forward_pre_hooks_with_kwargs,  # noqa: SLF001 - same reason
        module._forward_hooks_with_kwargs,  # noqa: SLF001 - same reason
        module._forward_hooks_always_called,  # noqa: SLF001 - same reason
    )
