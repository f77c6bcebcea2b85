"""Which model types are served is one list, and every other type is told why not."""

from types import SimpleNamespace

import pytest

from hisparse.errors import UnsupportedModelError
from hisparse.integrations.transformers.families import SUPPORTED, check_family


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_supported_types_pass(model_type: str) -> None:
    """A supported type is accepted by its name alone."""
    check_family(SimpleNamespace(model_type=model_type))


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("glm5_next_text", "pooled keys"),
        ("qwen4_exp_text", "blocks"),
        ("minimax_m3_vl_text", "blocks"),
        ("mistral_large4_text", "share keys and values"),
        ("hy_v4_vl_text", "has not"),
    ],
)
def test_known_types_are_told_their_reason(model_type: str, reason: str) -> None:
    """A type that was looked at is refused with what was found, even if it has an indexer."""
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        check_family(SimpleNamespace(model_type=model_type, index_topk=16))
    assert repr(model_type) in str(caught.value)
    assert ", ".join(SUPPORTED) in str(caught.value)


@pytest.mark.parametrize(
    ("index_topk", "reason"), [(None, "it has no indexer"), (16, "has an indexer, but .* has not been verified")]
)
def test_unknown_types_are_told_what_can_be_seen(index_topk: int | None, reason: str) -> None:
    """A type never seen is refused by whether its config promises an indexer."""
    with pytest.raises(UnsupportedModelError, match=f"'brand_new'.*{reason}"):
        check_family(SimpleNamespace(model_type="brand_new", index_topk=index_topk))
    if index_topk is None:
        with pytest.raises(UnsupportedModelError, match=reason):
            check_family(SimpleNamespace(model_type="brand_new"))
