"""The key that was not used for the longest time goes first."""

from collections import OrderedDict
from collections.abc import Hashable

from hisparse.errors import StateError


class LRUPolicy:
    """Least recently used first; every call takes constant time."""

    def __init__(self) -> None:
        """Start without keys."""
        # The least recent key first.  A plain dict would step over its deleted entries at every victim.
        self._keys: OrderedDict[Hashable, None] = OrderedDict()

    def insert(self, key: Hashable) -> None:
        """Take in a key as the most recent one."""
        if key in self._keys:
            raise StateError(f"the policy has key {key!r} already; touch it instead")
        self._keys[key] = None

    def touch(self, key: Hashable) -> None:
        """Make a key the most recent one."""
        self._check_known(key)
        self._keys.move_to_end(key)

    def remove(self, key: Hashable) -> None:
        """Forget a key."""
        self._check_known(key)
        del self._keys[key]

    def victim(self) -> Hashable | None:
        """Return the least recent key.  Reads only."""
        return next(iter(self._keys), None)

    def __len__(self) -> int:
        """Return how many keys may go."""
        return len(self._keys)

    def _check_known(self, key: Hashable) -> None:
        if key not in self._keys:
            raise StateError(f"the policy has no key {key!r}; insert it first")
