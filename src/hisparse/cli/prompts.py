"""What the commands are asked to continue."""

import errno
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hisparse.data import Document
from hisparse.errors import SettingError

STANDARD_INPUT = "-"
MAX_PROMPT_BYTES = 16 << 20
"""Of one prompt: some four million tokens, more than models have positions."""


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
    if prompt_file is not None:
        return _text_of(_read_file(prompt_file), f"{prompt_file} (--prompt-file)")
    try:
        # Bytes of a command line that are no text arrive as surrogates, and are the same bytes again here.
        data = (prompt or "").encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise SettingError(f"the prompt is not text: {error.reason} at character {error.start:,}: --prompt") from error
    return _text_of(data, "--prompt")


def _text_of(data: bytes, name: str) -> str:
    """The text of one prompt, wherever its bytes come from."""
    if not data:
        raise SettingError(f"the prompt is empty: {name}")
    if len(data) > MAX_PROMPT_BYTES:
        raise SettingError(f"the prompt is longer than {MAX_PROMPT_BYTES >> 20} MiB: {name}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise SettingError(f"the prompt is not UTF-8 text, byte {error.start:,} is {byte:#04x}: {name}") from error


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


def _read_file(path: Path) -> bytes:
    """The file's bytes, at most one more than `MAX_PROMPT_BYTES`: some files never end."""
    try:
        if str(path) != STANDARD_INPUT:
            with path.open("rb") as file:
                return file.read(MAX_PROMPT_BYTES + 1)
        if sys.stdin is None:
            raise OSError(errno.EBADF, "standard input is closed")  # noqa: TRY301  (said like any other reason)
        return sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingError(f"prompt file {path} cannot be read: {reason} (--prompt-file)") from error
