"""Prompts: exactly one source, and documents cut to length."""

import io
from pathlib import Path

import pytest

from hisparse.cli.prompts import cut_prompts, read_prompt
from hisparse.data import Document
from hisparse.errors import SettingError

DOCUMENTS = (Document("one", "a" * 90), Document("two", "b" * 50), Document("three", "c" * 50))


def tokenize(text: str) -> list[int]:
    """One token a character."""
    return [ord(character) for character in text]


def test_first_prompt_gets_two_shares() -> None:
    """The context is shared out exactly; the first prompt is twice as long, and takes the remainder."""
    prompts = cut_prompts(DOCUMENTS, tokenize, 103)
    assert [(prompt.name, len(prompt.tokens)) for prompt in prompts] == [("one", 53), ("two", 25), ("three", 25)]
    assert set(prompts[2].tokens) == {ord("c")}


def test_default_context_has_a_long_prompt() -> None:
    """Seven requests over 16,384 tokens give one prompt of 4,096 and six of 2,048."""
    documents = [Document(str(i), "x" * 5000) for i in range(7)]
    assert [len(prompt.tokens) for prompt in cut_prompts(documents, tokenize, 16_384)] == [4096] + [2048] * 6


def test_short_document_is_named() -> None:
    """A document shorter than its share is refused with both lengths and the knobs."""
    with pytest.raises(SettingError, match=r"document two has 50 tokens and should give 60: raise --requests"):
        cut_prompts((Document("one", "a" * 200), *DOCUMENTS[1:]), tokenize, 240)


def test_context_too_small_to_share_is_refused() -> None:
    """Fewer tokens than shares are refused with the smallest context."""
    with pytest.raises(SettingError, match="3 requests need a context of at least 4 tokens, got 3"):
        cut_prompts(DOCUMENTS, tokenize, 3)


def test_prompt_comes_from_one_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, a file and standard input are each read as they are."""
    file = tmp_path / "prompt.txt"
    file.write_text("from a file\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    assert read_prompt("given", None) == "given"
    assert read_prompt(None, file) == "from a file\n"
    assert read_prompt(None, Path("-")) == "from a pipe"


@pytest.mark.parametrize(
    ("prompt", "file", "sentence"),
    [
        ("text", Path("file"), "exactly one of --prompt and --prompt-file, got both"),
        (None, None, "exactly one of --prompt and --prompt-file, got none"),
        ("", None, r"the prompt is empty: --prompt"),
        (None, Path("/nonexistent"), r"prompt file /nonexistent cannot be read: No such file or directory"),
        (None, Path("/"), r"prompt file / cannot be read: Is a directory"),
        (None, Path("a\0b"), r"prompt file a\x00b cannot be read: embedded null byte"),
        (None, Path("/dev/zero"), r"the prompt is longer than 16 MiB: /dev/zero \(--prompt-file\)"),
        ("caf\udce9", None, r"the prompt is not UTF-8 text, byte 3 is 0xe9: --prompt"),
        ("caf\ud800", None, r"the prompt is not text: surrogates not allowed at character 3: --prompt"),
    ],
)
def test_bad_source_is_said(prompt: str | None, file: Path | None, sentence: str) -> None:
    """Both, none, nothing in it, or unreadable: each has its sentence."""
    with pytest.raises(SettingError, match=sentence):
        read_prompt(prompt, file)


def test_file_that_is_no_text_is_said(tmp_path: Path) -> None:
    """A binary file is refused by name."""
    file = tmp_path / "prompt.bin"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match=r"not UTF-8 text, byte 0 is 0xff: .*prompt\.bin \(--prompt-file\)"):
        read_prompt(None, file)


@pytest.mark.parametrize(
    ("stdin", "sentence"),
    [
        (None, r"prompt file - cannot be read: standard input is closed"),
        (io.TextIOWrapper(io.BytesIO(b"\xff\x00")), r"not UTF-8 text, byte 0 is 0xff: - \(--prompt-file\)"),
        (io.TextIOWrapper(io.BytesIO(b"")), r"the prompt is empty: - \(--prompt-file\)"),
    ],
)
def test_bad_standard_input_is_said(
    monkeypatch: pytest.MonkeyPatch, stdin: io.TextIOWrapper | None, sentence: str
) -> None:
    """Standard input that is closed, empty or binary is refused like a file."""
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(SettingError, match=sentence):
        read_prompt(None, Path("-"))
