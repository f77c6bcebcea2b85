"""What the telemetry tests share: a registry of their own and a reader of an endpoint."""

import urllib.request
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def registry() -> CollectorRegistry:
    """Return an empty registry, so that no test sees another one's series."""
    return CollectorRegistry()


@pytest.fixture
def parse() -> Callable[[str], Series]:
    """Return a reader of exposition text that refuses a series or a family given twice."""

    def read(text: str) -> Series:
        families = list(text_string_to_metric_families(text))
        assert len({family.name for family in families}) == len(families)
        samples = [sample for family in families for sample in family.samples]
        series = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
        assert len(series) == len(samples)
        return series

    return read


@pytest.fixture
def scrape() -> Callable[[str], str]:
    """Return a client that gets an address as Prometheus 2.42 does, preferring OpenMetrics."""
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"

    def get(url: str) -> str:
        request = urllib.request.Request(url, headers={"Accept": accept})  # noqa: S310 - a loopback address
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 - a loopback address
            body: bytes = response.read()
            return body.decode()

    return get
