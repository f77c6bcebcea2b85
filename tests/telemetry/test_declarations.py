"""A catalogue as a whole: clashes, deprecations, what is exported and what is merged."""

from typing import Any

import pytest

from hisparse.errors import MetricError
from hisparse.telemetry import Catalogue, CounterMetadata, Deprecation, GaugeMetadata, HistogramMetadata

COUNTER = CounterMetadata("A count.", unit="bytes")
GAUGE = GaugeMetadata("A level.", unit="bytes")
HISTOGRAM = HistogramMetadata("A distribution.", unit="seconds", buckets=(1,))


def test_clashing_sample_names_are_refused() -> None:
    """Two metrics that would export one sample name are refused, naming both."""
    counters: dict[str, Any] = {"your_size_total": COUNTER, "mine_size_total": COUNTER}
    assert len(Catalogue(counters)) == 2
    with pytest.raises(MetricError, match="'mine_size' and 'mine_size_total' would both export 'mine_size'"):
        Catalogue({"mine_size_total": COUNTER, "mine_size": GAUGE})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"mine": GAUGE}, {"mine_total": COUNTER}),
        ({"mine_total": COUNTER}, {"mine": HISTOGRAM}),
        ({"mine_seconds": HISTOGRAM}, {"mine_seconds_total": COUNTER}),
    ],
)
def test_names_that_differ_only_in_what_the_exposition_adds_clash(one: dict[str, Any], other: dict[str, Any]) -> None:
    """A gauge, a counter and a histogram whose series would meet in one exposition are refused at definition."""
    with pytest.raises(MetricError, match="would both export"):
        Catalogue(one | other)
    with pytest.raises(MetricError, match="would both export"):
        Catalogue(one).merged(other)


def test_a_replacement_must_exist() -> None:
    """A name cannot be deprecated for one that nobody declares."""
    old = CounterMetadata("x", unit="bytes", deprecation=Deprecation(since="0.4", replacement="new_total"))
    with pytest.raises(MetricError, match="which is not declared"):
        Catalogue({"old_total": old})
    assert len(Catalogue({"old_total": old, "new_total": COUNTER})) == 2


def test_deprecated_and_gated_metrics_leave_and_are_remembered() -> None:
    """An exported catalogue lacks what has run out or is switched off, and knows that it does."""
    old = CounterMetadata("x", unit="bytes", deprecation=Deprecation(since="0.4", replacement="new_total"))
    gated = CounterMetadata("x", gate="extra")
    catalogue = Catalogue({"old_total": old, "new_total": COUNTER, "gated_total": gated})
    assert set(catalogue.exported("0.4")) == {"old_total", "new_total"}
    assert set(catalogue.exported("0.5", gates=frozenset(["extra"]))) == {"new_total", "gated_total"}
    assert catalogue.exported("0.5").hidden == {"gated_total"}
    assert set(catalogue.exported("0.5").deprecated) == {"old_total"}
    assert "old_total" in catalogue.exported("0.5", show_hidden_metrics_for_version="0.4")


def test_merging_catalogues_names_both_sides_of_a_conflict() -> None:
    """Equal definitions merge; different ones of a name are refused, showing both."""
    first = Catalogue({"mine_total": COUNTER})
    assert set(first.merged({"mine_total": COUNTER, "yours": GAUGE})) == {"mine_total", "yours"}
    with pytest.raises(MetricError, match=r"A count\..*Another count\."):
        first.merged({"mine_total": CounterMetadata("Another count.", unit="bytes")})
