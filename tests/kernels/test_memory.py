"""Mapped memory is zero, writable, aligned and given back with its array."""

import gc
import mmap
import weakref

import numpy as np
import pytest

from hisparse.kernels import map_memory


@pytest.mark.parametrize("num_bytes", [1, mmap.PAGESIZE, mmap.PAGESIZE + 1, (2 << 20) + 3])
def test_memory_is_zero_and_begins_at_a_page(num_bytes: int) -> None:
    """Exactly the bytes asked for are there, all zero, from the beginning of a page on."""
    memory = map_memory(num_bytes)
    assert (memory.dtype, memory.shape) == (np.uint8, (num_bytes,))
    assert not memory.any()
    assert memory.ctypes.data % mmap.PAGESIZE == 0


def test_memory_keeps_what_is_written() -> None:
    """Writing to one mapping changes that one and no other."""
    one, other = map_memory(5000), map_memory(5000)
    one[:] = np.arange(5000) % 251
    np.testing.assert_array_equal(one, np.arange(5000) % 251)
    assert not other.any()


def test_memory_outlives_a_system_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where huge pages can't be asked for, small ones serve."""
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    assert not map_memory(100).any()


def test_memory_is_given_back_with_the_last_view() -> None:
    """A view keeps the mapping alive, and nothing else does."""
    memory = map_memory(1 << 16)
    view = memory[10:20]
    view[:] = 7
    mapping = weakref.ref(memory.base.obj if isinstance(memory.base, memoryview) else memory.base)
    del memory
    gc.collect()
    assert mapping() is not None
    assert (view == 7).all()
    del view
    gc.collect()
    assert mapping() is None
