"""Resolve and gather: the compiled part, with a plain numpy definition of correct beside it."""

from hisparse.kernels.gather import gather_rows
from hisparse.kernels.memory import map_memory
from hisparse.kernels.residency import BACKENDS, Residency
from hisparse.kernels.resolution import COUNT_FIELDS, Resolution

__all__ = ["BACKENDS", "COUNT_FIELDS", "Residency", "Resolution", "gather_rows", "map_memory"]
