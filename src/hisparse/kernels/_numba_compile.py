"""How every kernel is compiled, and the two machine instructions numba has no word for."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a loop on its first call, without the GIL, and keep the machine code on disk where possible.

    numba looks for a writable cache next to the file, then under the user's cache directory, and refuses
    to decorate when there is neither (a read-only install run without a home): then nothing is kept.
    """
    options = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:
        return njit(**options)(function)


@intrinsic  # type: ignore[untyped-decorator] # numba's decorators carry no types
def prefetch(typingctx: Any, address: Any) -> Any:  # noqa: ARG001 # numba passes the typing context first
    """Ask for the cache line at an address (int64).  Never faults, whatever the address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001 # numba's form
        int32 = ir.IntType(32)
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        declared = ir.FunctionType(ir.VoidType(), [pointer.type, int32, int32, int32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], declared)
        # read, keep in all cache levels, data
        builder.call(function, [pointer, int32(0), int32(3), int32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator] # numba's decorators carry no types
def copy_bytes(typingctx: Any, target: Any, source: Any, nbytes: Any) -> Any:  # noqa: ARG001 # as above
    """Copy `nbytes` bytes between two addresses (int64 each) that do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001 # numba's form
        byte_pointer = ir.IntType(8).as_pointer()
        to, source_pointer = (builder.inttoptr(value, byte_pointer) for value in args[:2])
        function = builder.module.declare_intrinsic(
            "llvm.memcpy", [byte_pointer, byte_pointer, ir.IntType(64)]
        )
        builder.call(function, [to, source_pointer, args[2], ir.IntType(1)(0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate
