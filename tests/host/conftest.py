"""Pools for the tests of the host level; each is recounted and closed at the end."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hisparse.host import HostPool
from hisparse.layout import RowFormat

MakePool = Callable[..., HostPool]
RandomRows = Callable[..., NDArray[np.uint8]]


@pytest.fixture(params=["ram", "disk"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the storage argument of a pool, for each kind of storage."""
    return "ram" if request.param == "ram" else f"disk:{tmp_path / 'pools'}"


@pytest.fixture
def make_pool(storage: str) -> Iterator[MakePool]:
    """Return a maker of pools; what it made is recounted and closed afterwards."""
    pools = []

    def make(
        pages: int, page_rows: int, row_bytes: tuple[int, ...] = (1152,), where: str = storage, **options: bool
    ) -> HostPool:
        layers = [RowFormat("test", num_bytes, num_bytes) for num_bytes in row_bytes]
        pools.append(HostPool(pages, page_rows, layers, where, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.check()
        pool.close()


@pytest.fixture
def random_rows() -> RandomRows:
    """Return a maker of seeded random rows."""

    def make(num_rows: int, row_bytes: int, seed: int = 0) -> NDArray[np.uint8]:
        return np.random.default_rng(seed).integers(0, 256, (num_rows, row_bytes), dtype=np.uint8)

    return make
