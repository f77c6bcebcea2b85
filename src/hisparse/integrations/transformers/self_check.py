"""One decode step through both paths, module by module, before a model is trusted.

Every attention module of a stock decode step is recorded with its inputs.  The same inputs then go to the same
module with a `HiSparseCache` whose contents are the same: selections are identical by construction, so the
outputs must agree to rounding.  The whole model is never compared: a tie in the selection of a deeper layer
would say nothing about the contract.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache

from hisparse.errors import UnsupportedModelError
from hisparse.integrations.transformers.cache import HiSparseCache
from hisparse.integrations.transformers.geometry import ModelGeometry
from hisparse.integrations.transformers.hooks import has_rows

_PROMPT_TOKENS = 64
_TOP_K = 8
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of an attention module: its layer, inputs and output."""

    layer: int
    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: torch.Tensor


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """Prompt tokens ``[1, T]`` and the attention calls of the decode step after them."""

    prompt: torch.Tensor
    calls: tuple[RecordedCall, ...]


def capture_stock_step(model: Any, geometry: ModelGeometry) -> CapturedStep:
    """Run a short prompt and one token through the stock cache, and record the attention calls of the token.

    Args:
        model: The model, with its stock attention.
        geometry: Its layers.
    """
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    tokens = (torch.arange(_PROMPT_TOKENS + 1, device=model.device) * 7919 + 11) % vocabulary
    prompt, token = tokens[None, :-1], tokens[None, -1:]
    calls: list[RecordedCall] = []

    def record(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        calls.append(RecordedCall(module.layer_idx, module, args, dict(kwargs), output[0].clone()))

    cache = DynamicCache(config=model.config)
    with _small_selection(model), _evaluating(model):
        _forward(model, prompt, cache)
        hooks = [module.register_forward_hook(record, with_kwargs=True) for module in _row_modules(model, geometry)]
        try:
            _forward(model, token, cache)
        finally:
            for hook in hooks:
                hook.remove()
    return CapturedStep(prompt, tuple(calls))


def check_captured(model: Any, geometry: ModelGeometry, captured: CapturedStep) -> None:
    """Repeat the recorded calls on a `HiSparseCache` and compare.

    Args:
        model: The enabled model.
        geometry: Its layers.
        captured: From `capture_stock_step` of the same model.

    Raises:
        UnsupportedModelError: An output differs, or the model could not be run.
    """
    cache = HiSparseCache(model.config, hot_slots=geometry.top_k, max_positions=2 * _PROMPT_TOKENS)
    try:
        with _small_selection(model), _evaluating(model):
            _forward(model, captured.prompt, cache)
            for call in captured.calls:
                _compare(geometry.model_type, call, _replay(call, cache))
        _check_selected(geometry.model_type, cache)
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"{geometry.model_type}: the self-check could not decode a token: {type(error).__name__}: {error}"
        ) from error
    finally:
        cache.close()


def _check_selected(model_type: str, cache: HiSparseCache) -> None:
    """Raise UnsupportedModelError unless every layer read selected rows."""
    missed = [layer["layer"] for layer in cache.stats()["layers"] if layer["hit"] + layer["miss"] == 0]
    if missed:
        raise UnsupportedModelError(f"{model_type}: attention of layers {missed} never asked for selected rows")


def _compare(model_type: str, call: RecordedCall, output: torch.Tensor) -> None:
    """Raise UnsupportedModelError unless `output` is the recorded one up to rounding."""
    expected = call.output.float()
    scale = expected.norm().clamp(min=1e-6)
    error = float((output.float() - expected).norm() / scale)
    limit = _TOLERANCE.get(call.output.dtype, 1e-4)
    if not error <= limit:
        raise UnsupportedModelError(
            f"{model_type}: attention of layer {call.layer} over the hot buffer differs from the stock one by "
            f"{error:.2g} of its norm (limit {limit:g}); this model does not keep the contract its type promises"
        )


def _replay(call: RecordedCall, cache: HiSparseCache) -> torch.Tensor:
    """Call the recorded module with the recorded inputs and `cache`."""
    is_cache = {name: isinstance(value, Cache) for name, value in call.kwargs.items()}
    kwargs = {name: cache if is_cache[name] else value for name, value in call.kwargs.items()}
    with torch.no_grad():
        output: torch.Tensor = call.module(*call.args, **kwargs)[0]
    return output


def _forward(model: Any, tokens: torch.Tensor, cache: Cache) -> None:
    """Run `tokens` through the model, without gradients."""
    # transformers renamed the argument in 5.24.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with torch.no_grad():
        model(input_ids=tokens, use_cache=True, **{name: cache})


def _row_modules(model: Any, geometry: ModelGeometry) -> list[Any]:
    """Return the attention modules of the layers that have rows."""
    rows = set(geometry.row_layers)
    return [module for module in model.modules() if has_rows(module) and module.layer_idx in rows]


@contextmanager
def _small_selection(model: Any) -> Iterator[None]:
    """Let every indexer select few rows, so that a short prompt is more than it selects."""
    indexers = [module for module in model.modules() if isinstance(getattr(module, "index_topk", None), int)]
    former = [indexer.index_topk for indexer in indexers]
    for indexer, top_k in zip(indexers, former, strict=True):
        indexer.index_topk = min(_TOP_K, top_k)
    try:
        yield
    finally:
        for indexer, top_k in zip(indexers, former, strict=True):
            indexer.index_topk = top_k


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Switch the model to evaluation, and every module back to the mode it had."""
    former = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was_training in former.items():
            module.training = was_training
