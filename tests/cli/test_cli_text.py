"""Text that streams token by token."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.cli.text import TextStream


def decode_bytes(tokens: Sequence[int]) -> str:
    """One token a byte, unfinished characters replaced."""
    return bytes(tokens).decode("utf-8", errors="replace")


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="\N{REPLACEMENT CHARACTER}", codec="utf-8")))
def test_pieces_make_the_text(text: str) -> None:
    """Pieces put together are the whole text, and no piece holds half a character."""
    pieces: list[str] = []
    stream = TextStream(decode_bytes, pieces.append)
    for token in text.encode():
        stream.add(token)
    stream.finish()
    assert "".join(pieces) == text
    assert stream.text == text
    assert pieces == list(text)


def test_leading_spaces_survive() -> None:
    """A tokenizer that drops the space of the first word it decodes loses none in the stream."""
    words = ["def", "add", "left"]
    pieces: list[str] = []
    stream = TextStream(lambda tokens: " ".join(words[token] for token in tokens), pieces.append)
    for token in range(3):
        stream.add(token)
    assert pieces == ["def", " add", " left"]


def test_unfinished_end_is_shown_at_last() -> None:
    """Bytes that never become a character are shown as replaced when the stream ends."""
    pieces: list[str] = []
    stream = TextStream(decode_bytes, pieces.append)
    stream.add(ord("a"))
    stream.add(0xE2)
    assert pieces == ["a"]
    stream.finish()
    assert pieces == ["a", "\N{REPLACEMENT CHARACTER}"]
