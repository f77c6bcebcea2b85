"""Requests whose rows say their tokens, over pools with pages of 4 rows."""

import numpy as np

from hisparse.host import HostPool, RequestPages
from hisparse.layout import page_keys

ROW_BYTES = 8


def keys_of(tokens: str, salt: str | None = None) -> list[bytes]:
    """Return the keys of the full pages of 4 tokens, a letter a token."""
    return page_keys(list(tokens.encode()), 4, model="m", revision=None, dtype="u1", row_format="test", salt=salt)


def data_of(tokens: str) -> np.ndarray:
    """Return rows that say their token and their position."""
    letters = np.frombuffer(tokens.encode(), np.uint8)
    return np.stack([letters, np.arange(len(tokens), dtype=np.uint8), *[letters] * (ROW_BYTES - 2)], axis=1)


def run(pool: HostPool, tokens: str, *, max_positions: int = 24, publish: bool = True) -> RequestPages:
    """Admit a request, compute what is not found, and publish all full pages."""
    request = pool.admit(max_positions, keys=keys_of(tokens))
    first = request.length
    request.extend(len(tokens))
    pool.write(0, request.rows(np.arange(first, len(tokens))), data_of(tokens)[first:])
    if publish:
        request.publish(keys_of(tokens))
    return request


def read(pool: HostPool, request: RequestPages) -> str:
    """Return the tokens of a request by its rows, which must be in their places."""
    out = np.empty((request.length, ROW_BYTES), np.uint8)
    pool.read(0, request.rows(np.arange(request.length)), out)
    np.testing.assert_array_equal(out, data_of(bytes(out[:, 0]).decode()))
    return bytes(out[:, 0]).decode()


def counts(pool: HostPool) -> tuple[int, int, int, int]:
    """Return free, used, reserved and cached pages after a recount."""
    pool.check()
    return pool.free_pages, pool.used_pages, pool.reserved_pages, pool.cached_pages
