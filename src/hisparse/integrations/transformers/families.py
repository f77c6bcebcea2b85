"""Which model types are served, and why the others are not."""

from typing import Any

from hisparse.errors import UnsupportedModelError

SUPPORTED = ("deepseek_v32", "glm_moe_dsa", "axk2", "hy_v4", "dots3_note_text", "deepseek_v4")
"""Model types (of the text config) whose selections reach the cache."""

_REASONS = {
    "glm5_next_text": "its attention turns the selection into a mask over pooled keys and never passes the indices on",
    "qwen4_exp_text": "it selects blocks inside a per-query mask and never passes indices to attention",
    "minimax_m3_vl_text": "it selects blocks of keys per head (block_indices), not rows",
    "mistral_large4_text": "its layers share keys and values (kv_sharing_modes), so a row has no single owner",
    "hy_v4_vl_text": "only the text model hy_v4 has been verified; the vision model has not",
}


def check_family(text_config: Any) -> None:
    """Refuse a model type that is not served; reads only.

    Args:
        text_config: The text (decoder) config of a transformers model.

    Raises:
        UnsupportedModelError: One sentence with the model type and the reason.
    """
    model_type = text_config.model_type
    if model_type in SUPPORTED:
        return
    if model_type in _REASONS:
        reason = _REASONS[model_type]
    elif getattr(text_config, "index_topk", None) is None:
        reason = "it has no indexer, so every step reads every row and nothing can stay on the host"
    else:
        reason = "it has an indexer, but its way of passing the selection on has not been verified"
    raise UnsupportedModelError(
        f"model type {model_type!r} can't be served from a hot buffer: {reason}; supported: {', '.join(SUPPORTED)}"
    )
