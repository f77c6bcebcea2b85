"""An error that says nothing."""


class UnreadableError(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        """Raise."""
        raise RuntimeError("no text")
