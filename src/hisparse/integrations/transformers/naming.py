"""What the pages of a model are called: everything that decides what is in their rows, by the tokens they hold."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hisparse.errors import SettingError
from hisparse.integrations.transformers.plan import TierPlan
from hisparse.layout import PageKey, page_keys

# What a config says about files, output and text, and not about what its layers compute.
_NO_ARCHITECTURE = frozenset(
    {
        *(
            "architectures",
            "dtype",
            "torch_dtype",
            "transformers_version",
            "attn_implementation",
            "experts_implementation",
        ),
        *("return_dict", "output_hidden_states", "output_attentions", "output_router_logits", "use_cache"),
        *("bos_token_id", "eos_token_id", "pad_token_id"),
    }
)


def config_digest(config: Any) -> str:
    """Return a digest of what a transformers config says about the text model's architecture."""
    said = config.get_text_config(decoder=True).to_dict()
    kept = {name: value for name, value in said.items() if name not in _NO_ARCHITECTURE and not name.startswith("_")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=repr).encode()).hexdigest()


def config_dtype(config: Any) -> torch.dtype:
    """Return the dtype that a config says its model has, float32 where it does not."""
    dtype = getattr(config.get_text_config(decoder=True), "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


@dataclass(frozen=True, slots=True)
class PageNaming:
    """Who may find whose pages.

    Attributes:
        model: Digest of the model's architecture.
        identity: Which weights, for example path and revision; None where only one loaded model has the pool.
        salt: Keeps apart those who may not share.
    """

    model: str
    identity: str | None
    salt: str | None

    def __post_init__(self) -> None:
        """Refuse what can't be part of a key.

        Raises:
            SettingError: `identity` or `salt` is no text.
        """
        for name, value in (("identity", self.identity), ("salt", self.salt)):
            if value is not None and not isinstance(value, str):
                raise SettingError(f"{name} must be text, got {value!r}")

    def keys(self, plan: TierPlan, tokens: NDArray[np.int64] | Sequence[int]) -> list[PageKey]:
        """Return the key of each full page of a request that begins with `tokens`."""
        return page_keys(
            tokens,
            plan.settings.page_rows,
            model=self.model,
            revision=self.identity,
            dtype=str(plan.dtype),
            row_format=plan.pool_formats,
            salt=self.salt,
        )
