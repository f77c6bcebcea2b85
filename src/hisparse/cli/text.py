"""Tokens to text while they come."""

from collections.abc import Callable, Sequence

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Shows text as soon as the tokens so far settle it.

    A token can end in the middle of a character, and some tokenizers drop the space before a token that is decoded
    alone. So the new tokens are always decoded together with the ones before them, and a piece that ends in an
    unfinished character waits for the next token.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], show: Callable[[str], None]) -> None:
        """Start with nothing shown; `decode` turns tokens into text."""
        self._decode = decode
        self._show = show
        self._tokens: list[int] = []
        self._context_at = 0
        self._shown_to = 0
        self.text = ""

    def add(self, token: int) -> None:
        """Take one more token."""
        self._tokens.append(token)
        piece = self._pending()
        if piece and not piece.endswith(UNFINISHED):
            self._emit(piece)

    def finish(self) -> None:
        """Show what still waits."""
        piece = self._pending()
        if piece:
            self._emit(piece)

    def _pending(self) -> str:
        shown = self._decode(self._tokens[self._context_at : self._shown_to])
        return self._decode(self._tokens[self._context_at :])[len(shown) :]

    def _emit(self, piece: str) -> None:
        self._context_at, self._shown_to = self._shown_to, len(self._tokens)
        self.text += piece
        self._show(piece)
