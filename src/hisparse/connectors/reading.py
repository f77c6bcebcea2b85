"""What somebody else gave, read so that nothing about it can raise."""

from typing import Any

from hisparse.telemetry import SkipReason
from hisparse.telemetry.values import MAX_NUMBER, ItemError, read_increment, show


def explained(error: BaseException) -> str:
    """Return an error as text for a message, whatever its own ``__str__`` does: ``ValueError: no room``."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  a foreign error's text may raise anything, and this is only for a message
        text = show(error)
    return f"{type(error).__name__}: {text}"


def read_whole(value: Any, what: str) -> int:
    """Return `value` as a whole number >= 0.

    Raises:
        ItemError: It is none.
    """
    if type(value) is int and 0 <= value <= MAX_NUMBER:
        return value
    number = read_increment(value, what)
    if not isinstance(number, int):
        raise ItemError(SkipReason.WRONG_TYPE, f"{what} must be whole, got {number}")
    return number
