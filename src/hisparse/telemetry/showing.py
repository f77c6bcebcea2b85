"""Values as short text for a message: no value is too large to be shown, and none can make a message fail."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from numbers import Number
from typing import Any

_LENGTH = 80
_ITEMS = 4
_DEPTH = 3
# More digits than are shown; the text of a longer number takes the square of its length.
_MAX_BITS = 1024
_BRACKETS = {(False, False): "[]", (True, False): "()", (False, True): "{}", (True, True): "()"}


def show(value: object) -> str:
    """Return `value` as text of at most 80 characters, whatever its own ``__repr__`` does. Never raises.

    The work is bounded as well: of a collection or a text only the beginning is looked at, and an object of a class
    that nothing is known about is shown by its class. An exception is its class and what it says.
    """
    try:
        text = _shown(value, _DEPTH)
    except Exception:  # noqa: BLE001  a foreign object's own methods may raise anything, and this is for a message
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LENGTH else f"{text[: _LENGTH - 3]}..."


def _shown(value: Any, depth: int) -> str:
    if isinstance(value, BaseException):
        said = str(value)[:_LENGTH].encode(errors="backslashreplace").decode()
        text = f"{type(value).__name__}: {said}" if said else type(value).__name__
    elif isinstance(value, str | bytes | bytearray):
        text = repr(value[:_LENGTH])
    elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
        text = f"<int of {value.bit_length()} bits>"
    elif value is None or isinstance(value, type | Number):
        text = repr(value)
    elif isinstance(value, Mapping | Sequence | AbstractSet):
        text = _collection(value, depth)
    else:
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        text = f"<{type(value).__name__}{shape}>"
    return text


def _collection(value: Any, depth: int) -> str:
    if isinstance(value, memoryview | range) or depth == 0:
        return f"<{type(value).__name__} of {len(value)}>"
    if isinstance(value, Mapping):
        parts = [f"{_shown(k, depth - 1)}: {_shown(v, depth - 1)}" for k, v in islice(value.items(), _ITEMS)]
        brackets = "{}"
    else:
        parts = [_shown(part, depth - 1) for part in islice(value, _ITEMS)]
        brackets = _BRACKETS[isinstance(value, tuple), isinstance(value, AbstractSet)]
    if len(value) > _ITEMS:
        parts.append(f"... {len(value)} in all")
    return f"{brackets[0]}{', '.join(parts)}{brackets[1]}"
