"""A second question about a document whose rows are in the host pool, and the same question recomputed."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from transformers import DynamicCache

from hisparse.cli.decoding import Decoded, decode_greedily
from hisparse.cli.prompts import Prompt
from hisparse.errors import UnsupportedModelError
from hisparse.integrations.transformers import HiSparseCache

QUESTION = "\n\n# How is this used? For example:\n"


@dataclass(frozen=True)
class SecondQuestion:
    """One question answered from stored rows and from none.

    Attributes:
        name: Of the document.
        context_tokens: Document and question.
        restored_tokens: Tokens that were not computed again.
        expected_tokens: Tokens that should not have been: whole pages of what both prompts begin with.
        recomputed: With the stock cache, from the first token on.
        restored: From the stored rows; its first step has the time to restore them in it.
    """

    name: str
    context_tokens: int
    restored_tokens: int
    expected_tokens: int
    recomputed: Decoded
    restored: Decoded

    @property
    def is_identical(self) -> bool:
        """Whether both gave the same tokens."""
        return self.recomputed.tokens == self.restored.tokens

    @property
    def failures(self) -> tuple[str, ...]:
        """What should hold and does not, one sentence each."""
        found = [] if self.is_identical else [f"tokens of the second question about {self.name} differ"]
        if self.restored_tokens != self.expected_tokens:
            found.append(f"{self.restored_tokens:,} tokens were restored, expected {self.expected_tokens:,}")
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Flat, with the field names of the JSON output."""
        return {
            "document": self.name,
            "context_tokens": self.context_tokens,
            "restored_tokens": self.restored_tokens,
            "tokens_identical": self.is_identical,
            "first_token_seconds": {
                "recomputed": self.recomputed.prefill_seconds,
                "restored": self.restored.prefill_seconds,
            },
        }


def second_prompt(document: Prompt, question: Sequence[int], *, prefill_chunk: int, room: int) -> tuple[int, ...]:
    """Return the tokens of the document, at most `room`, and of the question.

    The document is cut to whole chunks where it has one, so that the stored rows and those computed anew come from
    the same forward passes: rounding depends on how many tokens a pass has.
    """
    length = max(1, min(len(document.tokens), room))
    whole = length // prefill_chunk * prefill_chunk
    return (*document.tokens[: whole or length], *question)


def ask_again(
    model: Any, cache: HiSparseCache, asked: Prompt, *, held: Sequence[int], new_tokens: int, prefill_chunk: int
) -> SecondQuestion | None:
    """End the request in `cache` and ask about the same document again; None where the model can't restore rows.

    Args:
        model: The enabled model.
        cache: A cache that holds all of `held` but its last token.
        asked: The second question, document included.
        held: Tokens of the first question and its answer.
        new_tokens: Tokens to decode.
        prefill_chunk: Prompt tokens in one forward pass.
    """
    settings = {"new_tokens": new_tokens, "prefill_chunk": prefill_chunk}
    cache.reset()
    started_at = time.perf_counter()
    try:
        restored_tokens = cache.adopt_prefix(torch.tensor([asked.tokens], device=model.device))
    except UnsupportedModelError:
        return None
    restoring_seconds = time.perf_counter() - started_at
    restored = decode_greedily(model, cache, asked.tokens, **settings)
    restored = Decoded(restored.tokens, restoring_seconds + restored.prefill_seconds, restored.step_seconds)
    recomputed = decode_greedily(model, DynamicCache(config=model.config), asked.tokens, **settings)
    pairs = zip(held[:-1], asked.tokens[:-1], strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    page_rows = cache.host_pool.settings.page_rows
    return SecondQuestion(
        asked.name, len(asked.tokens), restored_tokens, common // page_rows * page_rows, recomputed, restored
    )
