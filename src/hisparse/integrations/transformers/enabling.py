"""Switching a model's attention to the hot buffer, and back."""

from collections.abc import Mapping
from typing import Any, Literal

from transformers import PreTrainedModel

from hisparse.errors import SettingError, UnsupportedModelError
from hisparse.integrations.transformers.attention import AttentionMode, has_plain_projection, hisparse_attention
from hisparse.integrations.transformers.geometry import ModelGeometry, geometry_of
from hisparse.integrations.transformers.hooks import ArmLayer, TrackPass, attention_modules, decoder_of
from hisparse.integrations.transformers.installed import set_text_attention, take_out, text_attention
from hisparse.integrations.transformers.self_check import capture_stock_step, check_captured

_STOCK = ("sdpa", "eager")
AttentionChoice = Literal["auto", "absorbed", "expand"]


class Enabled:
    """A model whose attention reads `HiSparseCache`; stock caches keep working on it."""

    def __init__(self, model: Any) -> None:
        """Hold the model that `disable` restores."""
        self._model = model
        self._is_disabled = False

    def disable(self) -> None:
        """Give the model its stock attention back, however often it was enabled; harmless when repeated."""
        if not self._is_disabled:
            take_out(self._model)
        self._is_disabled = True


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
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModelError(f"enable takes a transformers model, got {type(model).__name__}")
    geometry = geometry_of(model.config)
    put_back = take_out(model)
    try:
        _enable(model, geometry, attention, self_check=self_check)
    except BaseException:
        take_out(model)
        put_back()
        raise
    return Enabled(model)


def _enable(model: Any, geometry: ModelGeometry, attention: AttentionChoice, *, self_check: bool) -> None:
    """Capture a stock step, install the hooks, compare."""
    stock = text_attention(model)
    if stock not in _STOCK:
        raise UnsupportedModelError(
            f"attention implementation {stock!r} is not supported: set one of {', '.join(_STOCK)} "
            "(model.set_attn_implementation) before enable"
        )
    is_compressed = any(layer.kind == "compressed" for layer in geometry.layers)
    modules = [] if is_compressed else _checked_modules(model, geometry)
    modes = {module: _mode_for(module, attention) for module in modules}
    captured = capture_stock_step(model, geometry) if self_check else None
    TrackPass().install(decoder_of(model))
    if is_compressed:
        from hisparse.integrations.transformers.compressed import hook_compressors  # noqa: PLC0415 - one model

        hook_compressors(model)
    else:
        _hook_attention(model, stock, modes)
    if captured is not None:
        check_captured(model, geometry, captured)


def _hook_attention(model: Any, stock: str, modes: Mapping[Any, AttentionMode]) -> None:
    """Switch the text model to this package's attention, with one hook for each module of `modes`."""
    name = _register(stock)
    set_text_attention(model, name)
    for module, mode in modes.items():
        module.register_forward_pre_hook(ArmLayer(name, stock, mode), with_kwargs=True, prepend=True)


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
    if has_plain_projection(module):
        return "absorbed"
    if attention == "absorbed":
        projection = module.kv_b_proj
        weight = getattr(projection, "weight", None)
        raise UnsupportedModelError(
            f"layer {module.layer_idx}: kv_b_proj is {type(projection).__name__} with weight {type(weight).__name__}, "
            'not a plain matrix; use attention="expand"'
        )
    return "expand"
