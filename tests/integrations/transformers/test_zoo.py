"""The zoo is a fair judge: its references hang on the selection and do not hang on rounding."""

from typing import Any

import pytest
import torch
import zoo


def test_reference_does_not_hang_on_rounding(shelf: Any, case: zoo.ModelCase, batch: int) -> None:
    """Noise of ten roundings in every weight leaves the tokens as they are, and no two are nearly tied."""
    disturbed = zoo.generate(
        zoo.disturb(shelf.stock(case), 1e-6),
        zoo.prompt(case, batch),
        output_logits=True,
        return_dict_in_generate=True,
    )
    assert torch.equal(disturbed.sequences, shelf.reference(case, batch))
    best = torch.stack(disturbed.logits).topk(2, dim=-1).values
    assert (best[..., 0] - best[..., 1]).min() > 5e-4


def test_reference_is_no_loop(shelf: Any, case: zoo.ModelCase, batch: int) -> None:
    """Every row of a reference has at least a quarter of its tokens distinct."""
    tokens = zoo.new_tokens(zoo.prompt(case, batch), shelf.reference(case, batch))
    assert tokens.shape == (batch, zoo.NEW_TOKENS)
    for row in tokens.tolist():
        assert len(set(row)) >= zoo.NEW_TOKENS // 4


@pytest.mark.parametrize("top_k", [zoo.TOP_K - 1, 4096])
def test_reference_hangs_on_the_selection(shelf: Any, case: zoo.ModelCase, top_k: int) -> None:
    """One selected row less, or all rows, gives other tokens: a wrong row could not go unnoticed."""
    given = zoo.prompt(case, 1)
    tokens = zoo.generate(zoo.build(case, index_topk=top_k), given, max_new_tokens=100)
    assert not torch.equal(tokens, shelf.reference(case, 1, max_new_tokens=100))
