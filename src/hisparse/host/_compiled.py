"""Compiling a loop without losing its type."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(loop: Loop) -> Loop:
    """Compile a loop over plain arrays: no interpreter lock, indices not checked, kept on disk between runs."""
    compile_loop = numba.njit(nogil=True, boundscheck=False, error_model="numpy", cache=True)
    return cast(Loop, compile_loop(loop))
