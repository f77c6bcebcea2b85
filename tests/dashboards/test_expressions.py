"""Every expression of a panel or an alert, held to the catalogue."""

import re
from typing import NamedTuple

import pytest

from hisparse.dashboards import Panel, Scope, alerts, sections
from hisparse.dashboards.panels import MATCHERS
from hisparse.dashboards.queries import IDENTITY, quantile, share, total
from hisparse.errors import MetricError
from hisparse.telemetry import CATALOGUE

PANELS = [panel for section in sections() for panel in section.panels]
SCOPE = Scope("", "5m")
SELECTOR = re.compile(r"(?P<name>[a-z_:]*)\{(?P<matchers>[^}]*)\}|(?P<bare>hisparse_\w+)")
# Grafana's unit for a value that is a level, and for one that is a growth a second.
UNITS = {
    "bytes": ("bytes", "Bps"),
    "bytes_per_second": ("Bps", None),
    "seconds": ("s", None),
    "rows": ("none", "none"),
    "transfers": ("none", "ops"),
    "selections": (None, "cps"),
    "errors": (None, "cps"),
    "samples": (None, "cps"),
    "info": ("none", None),
}


class Read(NamedTuple):
    """One selector of an expression: the metric and the labels it is chosen by."""

    metric: str
    labels: dict[str, str]


def reads(expression: str) -> list[Read]:
    """Return the selectors of an expression, by the metrics' names in the catalogue."""
    found = []
    without_grouping = re.sub(r"by \([^)]*\)", "", expression)
    for selector in SELECTOR.finditer(without_grouping):
        labels = dict(re.findall(r'(\w+)=~?"([^"]*)"', selector["matchers"] or ""))
        exported = labels.pop("__name__", "").replace("vllm.", "vllm:") or selector["name"] or selector["bare"]
        stem = re.sub(r"_(bucket|sum|count)$", "", exported)
        names = [n for n in CATALOGUE if n in {exported, stem} or f"{n}_total" == exported]
        assert len(names) == 1, f"{exported} is not in the catalogue"
        found.append(Read(names[0], labels))
    return found


def check_labels(expression: str) -> None:
    """Check that each label that an expression chooses or groups by is one of the metrics it reads."""
    read = reads(expression)
    for metric, labels in read:
        metadata = CATALOGUE[metric]
        own = labels.keys() - set(IDENTITY)
        assert own <= set(metadata.labelnames), f"{metric} has no {own}"
        for label in own & metadata.labelvalues.keys():
            assert set(labels[label].split("|")) <= set(metadata.labelvalues[label])
    known = {"le", *IDENTITY, *(label for metric, _ in read for label in CATALOGUE[metric].labelnames)}
    for labels in re.findall(r"by \(([^)]*)\)", expression):
        assert set(labels.split(", ")) <= known


def panel_expressions() -> list[str]:
    """Return the expressions of all panels."""
    return [query.expression for panel in PANELS for query in panel.queries]


@pytest.mark.parametrize("expression", [*panel_expressions(), *(alert.expression for alert in alerts())])
def test_an_expression_reads_what_is_exported(expression: str) -> None:
    """Its metrics are in the catalogue, under the exported name, and have the labels that it uses."""
    assert reads(expression)
    check_labels(expression)


@pytest.mark.parametrize("expression", [*panel_expressions(), *(alert.expression for alert in alerts())])
def test_no_expression_divides_by_zero(expression: str) -> None:
    """What is divided by is greater than zero, or there is no value."""
    divided = expression.count(" / ")
    guarded = re.findall(r" / \(sum.*? > 0\)", expression)
    assert len(guarded) == divided


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_names_what_it_reads(panel: Panel) -> None:
    """The description has the name and meaning of each metric of the expressions, and of no other."""
    read = {metric for query in panel.queries for metric, _ in reads(query.expression)}
    assert set(panel.metrics) == read
    assert all(f"`{name}`: {CATALOGUE[name].documentation}" in panel.description for name in read)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_reads_the_chosen_engines(panel: Panel) -> None:
    """Each selector is narrowed by all variables of the dashboard."""
    for query in panel.queries:
        selectors = len(reads(query.expression))
        assert query.expression.count(MATCHERS) == selectors


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_has_the_unit_of_its_metrics(panel: Panel) -> None:
    """A quotient is bytes over busy seconds or a ratio; anything else has the catalogue's unit, a second for a rate."""
    for query in panel.queries:
        units = {CATALOGUE[metric].unit for metric, _ in reads(query.expression)}
        if " / " in query.expression:
            expected = "Bps" if units == {"bytes", "seconds"} else "percentunit"
        else:
            unit = CATALOGUE[reads(query.expression)[0].metric].unit
            is_growth = "rate(" in query.expression and "histogram_quantile" not in query.expression
            expected = str(UNITS[unit][is_growth])
        assert panel.unit == expected


def test_alerts_name_what_they_read() -> None:
    """Each alert lists the metrics of its expression."""
    for alert in alerts():
        assert {metric for metric, _ in reads(alert.expression)} == set(alert.metrics)


def test_what_is_not_in_the_catalogue_cannot_be_read() -> None:
    """A name, a label or a label value that does not exist is refused when the expression is written."""
    with pytest.raises(MetricError, match="'hisparse_hot_selection_total' is not in the catalogue"):
        SCOPE.rate("hisparse_hot_selection_total")
    with pytest.raises(MetricError, match="has no label 'layer'"):
        SCOPE.rate("hisparse_hot_selections_total", layer="0")
    with pytest.raises(MetricError, match=r"'outcome' of 'hisparse_hot_selections_total' is never \['hits'\]"):
        SCOPE.rate("hisparse_hot_selections_total", outcome="hits|miss")


def test_expressions_are_written_as_promql() -> None:
    """Selectors, rates, sums, shares and quantiles have Prometheus's form, operator names in both spellings."""
    wide = Scope('job="a"', "1m")
    assert wide.level("hisparse_host_used_bytes") == 'hisparse_host_used_bytes{job="a"}'
    assert SCOPE.level("hisparse_host_used_bytes") == "hisparse_host_used_bytes"
    hits = 'rate(hisparse_hot_selections_total{outcome="hit", job="a"}[1m])'
    assert wide.rate("hisparse_hot_selections_total", outcome="hit") == hits
    assert SCOPE.increase("hisparse_hot_gather_seconds") == "increase(hisparse_hot_gather_seconds_bucket[5m])"
    assert SCOPE.last("hisparse_host_used_bytes") == "last_over_time(hisparse_host_used_bytes[5m])"
    assert SCOPE.level("vllm:hisparse_cache_hits") == '{__name__=~"vllm.hisparse_cache_hits_total"}'
    assert total("x") == "sum(x)"
    assert total("x", "a", "b") == "sum by (a, b) (x)"
    assert share("a", "b") == "a / (b > 0)"
    assert quantile(0.99, "b") == "histogram_quantile(0.99, b)"
