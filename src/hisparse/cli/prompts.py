"""What the commands are asked to continue."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hisparse.data import Document
from hisparse.errors import SettingError

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Prompt:
    """Token ids of one request, and the name of the text they come from."""

    name: str
    tokens: tuple[int, ...]


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """The text of exactly one of the two; a file named ``-`` is standard input.

    Raises:
        SettingError: both or none are given, or the file cannot be read or holds nothing.
    """
    if (prompt is None) == (prompt_file is None):
        given = "got both" if prompt is not None else "got none"
        raise SettingError(f"give exactly one of --prompt and --prompt-file, {given}")
    text = prompt if prompt_file is None else _read_file(prompt_file)
    if not text:
        raise SettingError(f"the prompt is empty ({'--prompt' if prompt_file is None else prompt_file})")
    return text


def cut_prompts(
    documents: Sequence[Document], tokenize: Callable[[str], Sequence[int]], context_tokens: int
) -> tuple[Prompt, ...]:
    """One prompt a document, `context_tokens` in all; the first is twice as long as each of the others.

    Raises:
        SettingError: there are too few tokens to share out, or a document is shorter than its share.
    """
    share, rest = divmod(context_tokens, len(documents) + 1)
    if share < 1:
        raise SettingError(
            f"{len(documents)} requests need a context of at least {len(documents) + 1} tokens, got {context_tokens}"
        )
    lengths = [2 * share + rest] + [share] * (len(documents) - 1)
    prompts = []
    for document, length in zip(documents, lengths, strict=True):
        tokens = tuple(tokenize(document.text))
        if len(tokens) < length:
            raise SettingError(
                f"document {document.name} has {len(tokens)} tokens and should give {length}: "
                "raise --requests or lower --context-tokens"
            )
        prompts.append(Prompt(document.name, tokens[:length]))
    return tuple(prompts)


def _read_file(path: Path) -> str:
    try:
        if str(path) == STANDARD_INPUT:
            return sys.stdin.read()
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingError(f"prompt file {path} cannot be read: {reason} (--prompt-file)") from error
