"""The byte-level tokenizer, and texts as one stream of its tokens."""

import random
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_TEXT = "<|end|>"
END_TOKEN = 0


def train_tokenizer(texts: Sequence[str], entries: int) -> PreTrainedTokenizerFast:
    """Byte-pair merges over bytes, so that any text has tokens; `END_TEXT` begins, ends and pads.

    Args:
        texts: what the merges are learned from.
        entries: size of the vocabulary, at least 257 (every byte and the end token).
    """
    bytes_alphabet = pre_tokenizers.ByteLevel.alphabet()
    if entries <= len(bytes_alphabet):
        raise ValueError(f"a vocabulary needs more than {len(bytes_alphabet)} entries, got {entries}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=entries, special_tokens=[END_TEXT], initial_alphabet=bytes_alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END_TEXT, eos_token=END_TEXT, pad_token=END_TEXT
    )


def token_stream(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], seed: int) -> torch.Tensor:
    """All texts in a seeded order, an end token after each: int32 ``[tokens]``."""
    shuffled = list(texts)
    random.Random(seed).shuffle(shuffled)  # noqa: S311  (an order for training, not a secret)
    ids: list[int] = []
    for text in shuffled:
        ids += tokenizer.encode(text)
        ids.append(END_TOKEN)
    return torch.tensor(ids, dtype=torch.int32)
