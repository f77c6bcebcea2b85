"""The hot buffer: which rows of a request are on the device, and how the others get there.

An index group resolves one selection for all its layers; a runtime is one layer's view of it.
"""

from hisparse.hot.buffer import HotBuffer, MemoryHotBuffer, RowSource
from hisparse.hot.counters import FETCH_METRIC, MISSES_METRIC, GroupCounters
from hisparse.hot.group import HiSparseIndexGroup
from hisparse.hot.runtime import HiSparseRuntime
from hisparse.hot.step import Step

__all__ = [
    "FETCH_METRIC",
    "MISSES_METRIC",
    "GroupCounters",
    "HiSparseIndexGroup",
    "HiSparseRuntime",
    "HotBuffer",
    "MemoryHotBuffer",
    "RowSource",
    "Step",
]
