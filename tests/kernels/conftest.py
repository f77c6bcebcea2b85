"""Fixtures that the kernel tests share."""

from collections.abc import Callable

import pytest

from hisparse.kernels import BACKENDS, Residency
from hisparse.kernels.backend import ORDERS


@pytest.fixture(params=ORDERS)
def order(request: pytest.FixtureRequest) -> str:
    """A recency order."""
    return str(request.param)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """A backend name."""
    return str(request.param)


@pytest.fixture
def make(backend: str, order: str) -> Callable[..., Residency]:
    """Build a residency of one backend and order: 3 requests, 8 slots, 64 positions, 4 selected, pages of 4."""

    def build(**sizes: int) -> Residency:
        defaults = {"max_requests": 3, "hot_slots": 8, "max_positions": 64, "top_k": 4, "page_rows": 4}
        return Residency(**{**defaults, **sizes}, order=order, backend=backend)

    return build
