"""Keys of pages say everything that decides what is in them, and nothing else."""

from typing import Any

import pytest
import torch
import zoo
from tiering import plan_for

from hisparse.errors import SettingError
from hisparse.integrations.transformers.naming import PageNaming, config_digest, config_dtype

TOKENS = list(range(10))


def keys(model: str = "m", identity: str | None = None, salt: str | None = None, **plan: Any) -> list[bytes]:
    """Return the keys of ten tokens under a naming."""
    return PageNaming(model, identity, salt).keys(plan_for(1, **plan), TOKENS)


def test_full_pages_have_keys() -> None:
    """Of ten tokens in pages of four, two pages are full; equal namings give equal keys."""
    assert len(keys()) == 2
    assert keys() == keys(max_positions=20, hot_slots=16)


@pytest.mark.parametrize(
    "other",
    [
        {"model": "n"},
        {"identity": ""},
        {"salt": ""},
        {"salt": "m"},
        {"dtype": torch.bfloat16},
        {"page_rows": 5},
    ],
)
def test_every_part_counts(other: dict[str, Any]) -> None:
    """Another model, identity, salt, dtype or page size shares no key."""
    assert not set(keys()) & set(keys(**other))


@pytest.mark.parametrize("name", ["identity", "salt"])
def test_parts_are_text(name: str) -> None:
    """A part that is no text is refused with its name."""
    with pytest.raises(SettingError, match=f"{name} must be text, got 3"):
        keys(**{name: 3})


def test_the_digest_is_of_the_architecture(v32: zoo.ModelCase) -> None:
    """Widths, depths and rotary parameters change it; generation, output and where the files lie do not."""
    digest = config_digest(zoo.build(v32).config)
    same = zoo.build(v32).config
    same.use_cache, same.eos_token_id, same._name_or_path = False, 7, "elsewhere"
    same._attn_implementation = "eager"
    same.dtype = torch.bfloat16
    assert config_digest(same) == digest
    for settings in ({"num_hidden_layers": 4}, {"index_topk": 8}, {"rms_norm_eps": 1e-3}, {"rope_theta": 5.0}):
        assert config_digest(zoo.build(v32, **settings).config) != digest


def test_the_dtype_is_the_configs(v32: zoo.ModelCase) -> None:
    """A config that says none stands for float32."""
    config = zoo.build(v32).config
    config.dtype = None
    assert config_dtype(config) == torch.float32
    config.dtype = torch.bfloat16
    assert config_dtype(config) == torch.bfloat16
