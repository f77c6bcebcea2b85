"""Loops compile with and without a place for machine code."""

from types import FunctionType
from typing import Any

import numba
import pytest

from hisparse.kernels import _numba_gather, _numba_stack, _numba_vllm
from hisparse.kernels._numba_compile import kernel


@pytest.mark.parametrize("loop", [_numba_stack.resolve, _numba_vllm.resolve, _numba_gather.gather])
def test_kernels_keep_their_machine_code(loop: Any) -> None:
    """Every kernel asks for a cache on disk, so that only the first process compiles."""
    assert isinstance(loop._cache, numba.core.caching.FunctionCache)


def test_a_kernel_without_a_cache_still_runs() -> None:
    """Where numba finds no place to write, as in a read-only install without a home, the loop just compiles."""
    code = (lambda x: 2 * x).__code__.replace(co_filename="/nowhere/at/all.py")
    double = FunctionType(code, {}, "double")
    with pytest.raises(RuntimeError, match="no locator available"):
        numba.njit(cache=True)(double)
    assert kernel(double)(21) == 42
