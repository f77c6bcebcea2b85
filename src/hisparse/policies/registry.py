"""The policies by name: the name in a setting, the class behind it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hisparse.errors import SettingError
from hisparse.policies.lru import LRUPolicy
from hisparse.policies.policy import EvictionPolicy

POLICIES: Mapping[str, Callable[[], EvictionPolicy]] = MappingProxyType({"lru": LRUPolicy})


def make_policy(name: str) -> EvictionPolicy:
    """Return a new policy without keys.

    Raises:
        SettingError: No policy has that name.
    """
    if name not in POLICIES:
        raise SettingError(f"policy must be one of {', '.join(sorted(POLICIES))}, got {name!r}")
    return POLICIES[name]()
