"""A record knows the tokens of every request as long as its rows follow from them alone."""

from typing import Any

import pytest
import torch

from hisparse.integrations.transformers.tokens import SeenTokens, TokenRecord

IDS = torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]])


def seen(ids: torch.Tensor = IDS, **given: Any) -> SeenTokens | None:
    """Return what the arguments of a forward pass say."""
    return SeenTokens.of({"input_ids": ids, **given}, training=False)


def known(record: TokenRecord) -> list[list[int]]:
    """Return the record's tokens as lists."""
    return [tokens.tolist() for tokens in record.known()]


@pytest.fixture
def record() -> TokenRecord:
    """A record of two requests of four tokens."""
    made = TokenRecord()
    made.append(0, seen(attention_mask=torch.ones(2, 4), position_ids=torch.arange(4)[None]))
    return made


def test_passes_follow_one_another(record: TokenRecord) -> None:
    """Prompt and steps are noted in order, for every request; a cleared record knows none."""
    record.append(4, seen(IDS[:, :1], position_ids=torch.tensor([[4], [4]])))
    assert known(record) == [[5, 6, 7, 8, 5], [1, 2, 3, 4, 1]]
    record.clear()
    assert (known(record), record.length) == ([], 0)


@pytest.mark.parametrize(
    "given",
    [
        {"inputs_embeds": torch.zeros(2, 4, 8)},
        {"input_ids": None, "inputs_embeds": torch.zeros(2, 4, 8)},
        {"attention_mask": torch.zeros(2, 1, 4, 4)},
        {"attention_mask": {"full": None}},
        {"position_ids": torch.zeros(3, 2, 4)},
    ],
)
def test_what_does_not_name_its_tokens_is_unknown(record: TokenRecord, given: dict[str, Any]) -> None:
    """Embeddings, masks and positions of other shapes stop the record, until the requests are cut back to there."""
    unknown = SeenTokens.of({"input_ids": IDS, **given}, training=False)
    assert unknown is None
    record.append(4, unknown)
    record.append(8, seen())
    assert record.length == 4
    record.append(4, seen(IDS[:, :1]))
    assert record.length == 5


def test_training_is_unknown() -> None:
    """With dropout the rows are not those of the tokens."""
    assert SeenTokens.of({"input_ids": IDS}, training=True) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"attention_mask": torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])},
        {"position_ids": torch.tensor([[4], [3]])},
    ],
)
def test_a_padded_or_moved_request_is_left_out(record: TokenRecord, odd: dict[str, Any]) -> None:
    """A request that is masked anywhere, or counted from elsewhere, has no tokens from then on; others keep theirs."""
    record.append(4, seen(IDS[:, :1], **odd))
    record.append(5, seen(IDS[:, 1:2]))
    assert known(record) == [[5, 6, 7, 8, 5, 6], []]
    record.reindex([1, 0, 0])
    assert known(record) == [[], [5, 6, 7, 8, 5, 6], [5, 6, 7, 8, 5, 6]]


def test_cuts_and_rearrangements_are_followed(record: TokenRecord) -> None:
    """Tokens follow their requests."""
    record.truncate(3)
    record.reindex([1, 1, 0])
    assert known(record) == [[1, 2, 3], [1, 2, 3], [5, 6, 7]]
    record.append(3, seen(torch.tensor([[9], [8], [7]])))
    assert known(record) == [[1, 2, 3, 9], [1, 2, 3, 8], [5, 6, 7, 7]]


def test_the_caller_may_change_its_tokens_afterwards() -> None:
    """The record has its own copy."""
    ids, record = IDS.clone(), TokenRecord()
    record.append(0, seen(ids))
    ids.zero_()
    assert known(record) == IDS.tolist()
