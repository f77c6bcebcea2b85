"""How every loop is compiled, and the machine instructions numba has no word for."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_Loop = TypeVar("_Loop", bound=Callable[..., Any])

CACHE_LINE_BYTES = 64

_OPTIONS = {"nogil": True, "boundscheck": False, "error_model": "numpy"}

# numba's stubs name neither the wrapper options of njit nor what an intrinsic returns, and take its number
# types for numpy's; inside a loop they are machine integers
int64: Any = types.int64
uint64: Any = types.uint64
carray: Any = numba.carray  # type: ignore[attr-defined] # numba lists it nowhere
_njit: Any = njit
_intrinsic: Any = intrinsic


def kernel(function: _Loop) -> _Loop:
    """Compile a loop that Python calls, on its first call; keep the machine code on disk where possible.

    numba looks for a writable cache next to the file, then under the user's cache directory, and refuses
    to decorate when there is neither (a read-only install run without a home): then nothing is kept.
    It compiles anew when this function's own file changes, not when a file with `part`s does.
    """
    try:
        return cast("_Loop", _njit(cache=True, **_OPTIONS)(function))
    except RuntimeError:
        return cast("_Loop", _njit(**_OPTIONS)(function))


def part(function: _Loop) -> _Loop:
    """Compile a loop that only kernels call: an entry from Python would take longer than the loop."""
    return cast("_Loop", _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(function))


def _prefetch(typingctx: Any, address: Any) -> Any:  # noqa: ARG001 # numba passes the typing context first
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


def _pointer(typingctx: Any, address: Any) -> Any:  # noqa: ARG001 # numba passes the typing context first
    """Turn an address (int64) into what `numba.carray` takes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001 # numba's form
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


def _copy_bytes(typingctx: Any, target: Any, source: Any, nbytes: Any) -> Any:  # noqa: ARG001 # as above
    """Copy `nbytes` bytes between two addresses (int64 each) that do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001 # numba's form
        byte_pointer = ir.IntType(8).as_pointer()
        to, source_pointer = (builder.inttoptr(value, byte_pointer) for value in args[:2])
        function = builder.module.declare_intrinsic("llvm.memcpy", [byte_pointer, byte_pointer, ir.IntType(64)])
        builder.call(function, [to, source_pointer, args[2], ir.IntType(1)(0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _line_copy(vector_bytes: int, *, is_streaming: bool) -> Callable[..., Any]:
    """Return the intrinsic that copies one cache line between two addresses in vectors of `vector_bytes`.

    Streaming stores pass the caches by; their target must be a multiple of `vector_bytes`.
    """

    def copy_line(typingctx: Any, target: Any, source: Any) -> Any:  # noqa: ARG001 # numba passes the typing context first
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001 # numba's form
            vector = ir.VectorType(ir.IntType(8), vector_bytes).as_pointer()
            for offset in range(0, CACHE_LINE_BYTES, vector_bytes):
                to, start = (builder.inttoptr(builder.add(at, at.type(offset)), vector) for at in args)
                store = builder.store(builder.load(start, align=1), to, align=vector_bytes if is_streaming else 1)
                if is_streaming:
                    store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return copy_line


def _settle(typingctx: Any) -> Any:  # noqa: ARG001 # numba passes the typing context first
    """Make streamed stores visible before anything that follows."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001 # numba's form
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


prefetch: Callable[[int], None] = _intrinsic(_prefetch)
pointer: Callable[[int], Any] = _intrinsic(_pointer)
copy_line: Callable[[int, int], None] = _intrinsic(_line_copy(32, is_streaming=False))
stream_line: Callable[[int, int], None] = _intrinsic(_line_copy(32, is_streaming=True))
settle: Callable[[], None] = _intrinsic(_settle)
copy_bytes: Callable[[int, int, int], None] = _intrinsic(_copy_bytes)
