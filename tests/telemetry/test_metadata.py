"""What may be declared as a metric, and for how long a name lives."""

from collections.abc import Callable
from typing import Any

import pytest

from hisparse.errors import MetricError
from hisparse.telemetry import CounterMetadata, Deprecation, GaugeMetadata, HistogramMetadata


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda: CounterMetadata("  "), "documentation"),
        (lambda: CounterMetadata("x", unit="gigabytes"), "unit must be one of"),
        (lambda: CounterMetadata("x", labelnames=("engine",)), "label must match"),
        (lambda: CounterMetadata("x", labelnames=("le",)), "label must match"),
        (lambda: CounterMetadata("x", labelnames=("a:b",)), "label must match"),
        (lambda: CounterMetadata("x", labelnames=("__x",)), "label must match"),
        (lambda: CounterMetadata("x", labelnames=("a", "a")), "labelnames must differ"),
        (lambda: CounterMetadata("x", labelnames="tier"), "tuple of names"),
        (lambda: CounterMetadata("x", labelvalues={"tier": ("a",)}), "labelvalues names"),
        (lambda: CounterMetadata("x", across_ranks="mean"), "across_ranks must be"),  # type: ignore[arg-type]  # the point
        (lambda: GaugeMetadata("x", multiprocess_mode="mean"), "multiprocess_mode must be"),
        (lambda: Deprecation(since="soon", replacement="x"), "version must read"),
        (lambda: Deprecation(since="0.4", replacement=""), "name its replacement"),
    ],
)
def test_a_wrong_definition_is_a_sentence(define: Callable[[], Any], message: str) -> None:
    """Metadata that means nothing cannot be made, and the error says why."""
    with pytest.raises(MetricError, match=message):
        define()


@pytest.mark.parametrize(
    "buckets",
    [(), (100, 10, 50), (1, 1), (1, float("nan")), (float("inf"),), (1, float("inf")), ("a",), None],
)
def test_wrong_buckets_are_refused(buckets: Any) -> None:
    """Bounds that are empty, unsorted, repeated or not finite numbers are refused at definition."""
    with pytest.raises(MetricError, match="buckets must be"):
        HistogramMetadata("x", buckets=buckets)


def test_metadata_does_not_change() -> None:
    """Metadata is frozen, and a list of labels is kept as a tuple."""
    metadata = HistogramMetadata("x", labelnames=["tier"], buckets=(1, 2))
    assert metadata.labelnames == ("tier",)
    assert metadata.buckets == (1.0, 2.0)
    with pytest.raises(AttributeError):
        metadata.unit = "bytes"  # type: ignore[misc]  # the point


@pytest.mark.parametrize(
    ("since", "version", "shown", "exported"),
    [
        ("0.4", "0.3.9", None, True),
        ("0.4", "0.4", None, True),
        ("0.4", "0.4.7", None, True),
        ("0.4", "0.5", None, False),
        ("0.4", "0.5.1", "0.4", True),
        ("0.4", "0.5", "0.3", False),
        ("0.4", "0.6", "0.4", False),
        ("0.9", "0.10", None, False),
        ("0.9", "0.10", "0.9", True),
        ("0.10", "0.9", None, True),
        ("0.10", "0.11", "0.10", True),
        ("0.9", "1.0", "0.9", False),
        ("1.0", "1.0.1", None, True),
    ],
)
def test_a_deprecated_name_lives_one_minor_version(
    since: str, version: str, shown: str | None, *, exported: bool
) -> None:
    """A name is shown in the version that deprecates it, on request in the next minor one, then never."""
    assert Deprecation(since=since, replacement="x").is_exported(version, shown) is exported
