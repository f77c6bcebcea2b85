"""Names of pages by their content: one digest for each full page of tokens, chained to the page before."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import ArrayError, SettingError
from hisparse.layout.rows import RowFormat

PageKey = bytes
KEY_BYTES = 32
# Changed whenever the same parts shall give other keys, so that old and new ones never meet.
_SCHEME = "hisparse page key 1"


def page_keys(  # noqa: PLR0913  each part of the key is named where the call is made
    tokens: Sequence[int] | NDArray[np.integer],
    page_rows: int,
    *,
    model: str,
    revision: str | None,
    dtype: str,
    row_format: RowFormat | str | Sequence[RowFormat | str],
    rank: int = 0,
    world_size: int = 1,
    lora: str | int | None = None,
    salt: str | bytes | int | None = None,
    parent: PageKey | None = None,
) -> list[PageKey]:
    """Return the key of each full page of `tokens`; a last page that is not full has none.

    A key stands for its page, for all pages before it, and for everything else that decides what is in the
    rows.  Two keys are equal exactly when all of that is: parts are typed and carry their length, so that
    ``None``, ``""``, ``1`` and ``"1"`` differ, and no text can run into the next.  Keys do not depend on the
    process, the machine or the hash seed.

    Args:
        tokens: Integers ``[N]`` of any integer type.
        page_rows: Tokens in a page; part of the key.
        model: Which weights, for example a repository or a fingerprint.
        revision: Which version of them.
        dtype: What the model computes in.
        row_format: What a row is; one format, or that of each layer.
        rank: Which part of the rows this is, of `world_size` parts.
        world_size: Parts that hold the rows together.
        lora: The adapter in use.
        salt: Keeps apart those who may not share pages.
        parent: The key before the first token's page, to go on from an earlier call with the same parts.

    Returns:
        ``N // page_rows`` digests of 32 bytes.

    Raises:
        ArrayError: The tokens are not a vector of integers that fit 64 bits.
        SettingError: A part has no meaning or a type that keys do not know.
    """
    identity = {
        "page_rows": page_rows,
        "model": model,
        "revision": revision,
        "dtype": dtype,
        "row_format": row_format,
        "rank": rank,
        "world_size": world_size,
        "lora": lora,
        "salt": salt,
    }
    if page_rows < 1:
        raise SettingError(f"page_rows must be at least 1, got {page_rows}")
    if not 0 <= rank < world_size:
        raise SettingError(f"rank {rank} is outside 0 to world_size {world_size} - 1")
    start = hashlib.sha256(b"".join(_part(name, value) for name, value in {"scheme": _SCHEME, **identity}.items()))
    words = _words(tokens)
    return _chain(start.digest(), parent, words[: words.size - words.size % page_rows].reshape(-1, page_rows))


def _chain(identity: bytes, parent: PageKey | None, pages: NDArray[np.int64]) -> list[PageKey]:
    """Return the digest of each page ``[P, page_rows]`` of little-endian words."""
    if parent is not None and (not isinstance(parent, bytes) or len(parent) != KEY_BYTES):
        raise SettingError(f"parent must be a page key of {KEY_BYTES} bytes, got {parent!r}")
    keys = []
    data = memoryview(pages.tobytes())
    num_bytes = pages.shape[1] * pages.itemsize
    # Pages of one identity have as many bytes, so the tokens need no length.
    after_page = identity + _part("parent", bytes(KEY_BYTES))[:-KEY_BYTES]
    link = identity + _part("parent", parent)
    for first in range(0, len(data), num_bytes):
        key = hashlib.sha256(link + data[first : first + num_bytes]).digest()
        keys.append(key)
        link = after_page + key
    return keys


def _words(tokens: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int64]:
    array = np.asarray(tokens)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, "<i8")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ArrayError(f"tokens must be int[N], got {array.dtype}{list(array.shape)}")
    if array.dtype.kind == "u" and int(array.max()) > np.iinfo(np.int64).max:
        raise ArrayError(f"tokens must fit int64, got {array.max()}")
    return array.astype("<i8")


def _part(name: str, value: Any) -> bytes:
    """Return a name and a value, each as its type, its length and its bytes."""
    kind, data = _encoded(name, value)
    text = name.encode()
    return b"".join((len(text).to_bytes(8, "little"), text, kind, len(data).to_bytes(8, "little"), data))


def _encoded(name: str, value: Any) -> tuple[bytes, bytes]:
    match value:
        case None:
            return b"n", b""
        case bool():
            raise SettingError(f"{name} must be text, bytes, a whole number or None, got {value!r}")
        case str():
            return b"s", value.encode("utf-8", "surrogatepass")
        case bytes():
            return b"b", value
        case int():
            return b"i", str(value).encode()
        case RowFormat():
            parts = {"name": value.name, "elements": value.elements, "row_bytes": value.row_bytes}
            return b"r", b"".join(_part(key, part) for key, part in parts.items())
        case list() | tuple():
            return b"l", b"".join(_part("item", item) for item in value)
    raise SettingError(f"{name} must be text, bytes, a whole number or None, got {value!r}")
