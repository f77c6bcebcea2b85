"""What the connectors' tests share: a registry of their own."""

import pytest
from prometheus_client import CollectorRegistry


@pytest.fixture
def registry() -> CollectorRegistry:
    """Return an empty registry, so that no test sees another one's series."""
    return CollectorRegistry()
