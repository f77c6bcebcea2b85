"""Settings: frozen, validated where they are made, named as users write them."""

from hisparse.config.cache import CacheSettings

__all__ = ["CacheSettings"]
