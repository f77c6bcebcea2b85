"""The group most tests of the hot level use."""

import pytest
from hot_bench import Bench


@pytest.fixture
def bench() -> Bench:
    """Two layers, 3 (leader) and 4, over two requests with six slots and four selections each."""
    return Bench((3, 4), requests=2, hot_slots=6, top_k=4)
