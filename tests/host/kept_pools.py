"""What the tests of kept pools share: documents whose rows follow from their keys, written, read and spoiled."""

import os
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hisparse.host import HostPool, RequestPages
from hisparse.host.persist import KeptStorage
from hisparse.layout import PageKey, RowFormat, page_keys

PAGES, PAGE_ROWS = 16, 4
LAYERS = [RowFormat("latent", 97, 97), RowFormat("index", 48, 48)]
OpenPool = Callable[..., HostPool]


def keys_of(text: str) -> list[PageKey]:
    """Return the keys of a document, a page for each letter."""
    tokens = np.repeat(np.frombuffer(text.encode(), np.uint8), PAGE_ROWS)
    return page_keys(tokens, PAGE_ROWS, model="m", revision=None, dtype="u1", row_format=LAYERS)


def content(keys: Sequence[PageKey], layer: int) -> NDArray[np.uint8]:
    """Return the rows that pages must have; they follow from the keys."""
    shape = (PAGE_ROWS, LAYERS[layer].row_bytes)
    pages = [np.random.default_rng([layer, *key]).integers(0, 256, shape, np.uint8) for key in keys]
    return np.concatenate(pages) if pages else np.empty((0, shape[1]), np.uint8)


def write(pool: HostPool, text: str) -> RequestPages:
    """Admit a document, write what was not found, publish it; returns the open request."""
    keys = keys_of(text)
    request = pool.admit(len(keys) * PAGE_ROWS, keys=keys)
    first = request.length
    request.extend(len(keys) * PAGE_ROWS)
    for layer in range(len(LAYERS)):
        positions = np.arange(first, request.length)
        pool.write(layer, request.rows(positions), content(keys, layer)[first:])
    request.publish(keys)
    return request


def read(pool: HostPool, text: str) -> int:
    """Return how many pages of a document are found; all of their bytes are right."""
    keys = keys_of(text)
    request = pool.admit(len(keys) * PAGE_ROWS, keys=keys)
    found = request.length // PAGE_ROWS
    for layer, row_format in enumerate(LAYERS):
        out = np.empty((request.length, row_format.row_bytes), np.uint8)
        pool.read(layer, request.rows(np.arange(request.length)), out)
        np.testing.assert_array_equal(out, content(keys[:found], layer))
    request.close()
    return found


def kept(pool: HostPool) -> KeptStorage:
    """Return the storage of a pool, which is kept."""
    assert isinstance(pool._storage, KeptStorage)
    return pool._storage


def spoil(pool: HostPool, page: int, *, layer: int = 0, data: bytes = b"\0") -> None:
    """Write bytes into the last row of a page behind the pool's back."""
    storage = kept(pool)
    offset = storage._file.offsets[layer] + (page + 1) * PAGE_ROWS * LAYERS[layer].row_bytes - len(data)
    os.pwrite(storage._file.fd, data, offset)
