"""Where the layers of one cache find the store of the batch they serve."""

from collections.abc import Callable

import torch

from hisparse.errors import StateError
from hisparse.integrations.transformers.store import RowStore

OpenStore = Callable[[int, torch.dtype, torch.device], RowStore]
"""``open_store(batch, dtype, device)`` admits a batch and returns its rows, or raises with nothing changed."""


class StoreSlot:
    """Empty until a forward pass tells batch, dtype and device; empty again after a reset."""

    def __init__(self, open_store: OpenStore) -> None:
        """Start empty; `open_store` is called by the first `ensure`."""
        self._open_store = open_store
        self._store: RowStore | None = None
        self._is_closed = False

    @property
    def store(self) -> RowStore | None:
        """The open store, or None."""
        return self._store

    def check_open(self) -> None:
        """Raise StateError if the cache was closed."""
        if self._is_closed:
            raise StateError("this cache was closed; make a new one")

    def ensure(self, batch: int, dtype: torch.dtype, device: torch.device) -> RowStore:
        """Return the open store, opening one if there is none.

        Raises:
            StateError: The cache was closed.
        """
        self.check_open()
        if self._store is None:
            self._store = self._open_store(batch, dtype, device)
        return self._store

    def fill(self, store: RowStore) -> None:
        """Hold a store that was opened elsewhere; the slot is empty and not closed."""
        self._store = store

    def length(self, layer: int) -> int:
        """Return the rows held for each request of `layer`, 0 while empty."""
        return 0 if self._store is None else self._store.length(layer)

    def empty(self) -> None:
        """Close the open store, if there is one."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def close(self) -> None:
        """Empty the slot for good."""
        self.empty()
        self._is_closed = True
