"""Resolve and gather: the compiled part, with a plain numpy definition of correct beside it."""

from hisparse.kernels.addressing import PageTable, StepAddresses, address_step
from hisparse.kernels.gather import gather_rows
from hisparse.kernels.memory import map_memory
from hisparse.kernels.residency import BACKENDS, Residency
from hisparse.kernels.resolution import COUNT_FIELDS, Resolution

__all__ = [
    "BACKENDS",
    "COUNT_FIELDS",
    "PageTable",
    "Residency",
    "Resolution",
    "StepAddresses",
    "address_step",
    "gather_rows",
    "map_memory",
]
