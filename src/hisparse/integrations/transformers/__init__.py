"""Hugging Face transformers (5.18 and newer) as a host: ``enable(model)``, then a `HiSparseCache` per batch.

Only public registries and module hooks are used; no forward is patched.
"""

from hisparse.integrations.transformers import requirements as _requirements

_requirements.check_requirements()

from hisparse.integrations.transformers.cache import HiSparseCache, ResidentCache  # noqa: E402 - needs what was checked
from hisparse.integrations.transformers.enabling import Enabled, enable  # noqa: E402 - same reason
from hisparse.integrations.transformers.requirements import OLDEST_TRANSFORMERS  # noqa: E402 - same reason

__all__ = ["OLDEST_TRANSFORMERS", "Enabled", "HiSparseCache", "ResidentCache", "enable"]
