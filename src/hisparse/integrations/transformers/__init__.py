"""Hugging Face transformers (5.18 and newer) as a host: ``enable(model)``, then a `HiSparseCache` per batch.

Only public registries and module hooks are used; no forward is patched.
"""

from hisparse.integrations.transformers.cache import HiSparseCache, ResidentCache
from hisparse.integrations.transformers.enabling import Enabled, enable

__all__ = ["Enabled", "HiSparseCache", "ResidentCache", "enable"]
