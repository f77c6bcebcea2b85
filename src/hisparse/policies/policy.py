"""What an eviction policy does."""

from collections.abc import Hashable
from typing import Protocol


class EvictionPolicy(Protocol):
    """Orders keys by how soon they may go.

    A policy holds keys, never data, and only those that may go at once: whoever owns the data removes a key
    while it is in use and inserts it again afterwards.  Evicting is the owner's: it asks for the victim,
    frees what belongs to it, and removes it.
    """

    def insert(self, key: Hashable) -> None:
        """Take in a key that may go from now on, as one that has just been used.

        Raises:
            StateError: The policy has it already; nothing was changed.
        """

    def touch(self, key: Hashable) -> None:
        """Note that a key was used.

        Raises:
            StateError: The policy does not have it; nothing was changed.
        """

    def remove(self, key: Hashable) -> None:
        """Forget a key that is in use again or gone.

        Raises:
            StateError: The policy does not have it; nothing was changed.
        """

    def victim(self) -> Hashable | None:
        """Return the key to go first, or None where there is none.  Reads only."""

    def __len__(self) -> int:
        """Return how many keys may go."""
