"""Compiling the loops of this package."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Loop = TypeVar("Loop", bound=Callable[..., object])


class Region(NamedTuple):
    """The rows of one layer in a mapped file, as compiled loops take them.

    Attributes:
        address: Where the first row is mapped.
        row_bytes: Bytes of one row.
        fd: The mapped file.
        offset: Where the first row is in it.
    """

    address: int
    row_bytes: int
    fd: int
    offset: int


def compiled(loop: Loop) -> Loop:
    """Compile a loop on its first call: without the GIL, indices unchecked, kept on disk where possible.

    numba refuses to keep code where neither the package's folder nor a cache folder of the user is writable.
    """
    options: Any = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
    try:
        return cast("Loop", numba.njit(cache=True, **options)(loop))
    except RuntimeError:
        return cast("Loop", numba.njit(**options)(loop))


def _load_word(typing_context: Any, address: Any) -> Any:  # noqa: ARG001  numba passes its context first
    """Load 64 bits from any address: rows of odd lengths leave no alignment."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001  numba's form
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), align=1)

    return types.uint64(types.int64), emit


def _load_byte(typing_context: Any, address: Any) -> Any:  # noqa: ARG001  numba passes its context first
    """Load 8 bits from an address."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001  numba's form
        return builder.load(builder.inttoptr(args[0], ir.IntType(8).as_pointer()), align=1)

    return types.uint8(types.int64), emit


load_word: Any = intrinsic(_load_word)
load_byte: Any = intrinsic(_load_byte)
