"""Self-describing statistics."""

from typing import Any

import pytest

from hisparse.telemetry import Catalogue, Histogram, HistogramMetadata, OffloadingConnectorStats
from hisparse.telemetry.values import MAX_SERIES


def payload(kind: str, value: Any, name: str = "x", key: Any = "") -> dict[str, Any]:
    """Return the plain form of one series."""
    return {"types": {name: kind}, "data": {name: {key: value}}}


@pytest.mark.parametrize("data", [None, {}])
def test_nothing_builds_an_empty_container(data: Any) -> None:
    """None and an empty mapping build an empty container."""
    stats = OffloadingConnectorStats(data)
    assert stats.is_empty()
    assert stats.reduce() == {}


def test_each_kind_merges_by_its_rule() -> None:
    """Counters sum, gauges keep the latest, histograms accumulate count and sum."""
    first = {"types": {"c": "counter", "f": "counter", "g": "gauge", "h": "histogram"}}
    stats = OffloadingConnectorStats(
        {**first, "data": {"c": {"": 16}, "f": {"": 1.1}, "g": {"": 4}, "h": {"": [16, 8]}}}
    )
    stats.aggregate({**first, "data": {"c": {"": 18}, "f": {"": 1.5}, "g": {"": 1}, "h": {"": [3, 7]}}})
    assert stats.reduce() == {"c": 34, "f": 2.6, "g": 1, "h_count": 4, "h_sum": 34}


def test_the_payload_describes_itself() -> None:
    """The plain form names each metric's type and keys its values by text."""
    stats = OffloadingConnectorStats()
    stats.increase_counter("hisparse_hot_selections_total", 12, ("hit", 0))
    stats.set_gauge("hisparse_host_used_bytes", 3)
    assert stats.to_dict() == {
        "types": {"hisparse_hot_selections_total": "counter", "hisparse_host_used_bytes": "gauge"},
        "data": {"hisparse_hot_selections_total": {'["hit","0"]': 12}, "hisparse_host_used_bytes": {"": 3}},
    }
    assert stats.reduce() == {"hisparse_hot_selections_total:('hit', '0')": 12, "hisparse_host_used_bytes": 3}


def test_one_label_reads_as_in_a_tuple_of_one() -> None:
    """A labelled series reduces under its name and the tuple of its label values."""
    stats = OffloadingConnectorStats(payload("counter", 3, key=("a",)))
    stats.increase_counter("x", 1, "a")
    assert stats.reduce() == {"x:('a',)": 4}


def test_observing_uses_the_declared_buckets() -> None:
    """Samples fall into the buckets of the catalogue that the container was given."""
    catalogue = Catalogue({"mine_wait": HistogramMetadata("x", buckets=(1, 2))})
    stats = OffloadingConnectorStats(catalogue=catalogue)
    stats.observe_histogram("mine_wait", [0.5, 1.5, 9])
    stats.observe_histogram("mine_wait", 1)
    assert stats.to_dict()["data"]["mine_wait"][""] == {
        "bounds": [1.0, 2.0],
        "counts": [2, 1, 1],
        "sum": 12.0,
        "count": 4,
    }


def test_a_histogram_counted_elsewhere_adds_to_the_samples() -> None:
    """Samples that arrive already counted join those observed, and the source is left alone."""
    catalogue = Catalogue({"mine_wait": HistogramMetadata("x", buckets=(1, 2))})
    stats, elsewhere = OffloadingConnectorStats(catalogue=catalogue), Histogram.empty((1.0, 2.0))
    elsewhere.observe(1.5)
    stats.merge_histogram("mine_wait", elsewhere)
    stats.observe_histogram("mine_wait", 0.5)
    stats.merge_histogram("mine_wait", elsewhere)
    assert stats.data["data"]["mine_wait"][()] == Histogram((1.0, 2.0), [1, 2, 0], 3.5)
    assert elsewhere.count == 1


def test_a_zero_increment_makes_the_series_exist() -> None:
    """An increment of 0 is recorded, so that a series can be announced before it counts."""
    stats = OffloadingConnectorStats()
    stats.increase_counter("x", 0)
    assert not stats.is_empty()
    assert stats.reduce() == {"x": 0}


def test_info_alone_is_kept_and_reduces_to_nothing() -> None:
    """An info-only payload is not empty, reduces to nothing, and later payloads do not clear it."""
    stats = OffloadingConnectorStats()
    stats.set_info("hisparse_hot_config_info", {"top_k": 128})
    assert not stats.is_empty()
    assert stats.reduce() == {}
    stats.aggregate(payload("counter", 1))
    assert OffloadingConnectorStats(stats.to_dict()).info() == {"hisparse_hot_config_info": [{"top_k": "128"}]}


@pytest.mark.parametrize(
    ("data", "errors"),
    [
        ([], {"wrong_type": 1}),
        ({"types": {}}, {"wrong_type": 1}),
        ({"types": 3, "data": {}}, {"wrong_type": 1}),
        ({"types": {}, "data": {"x": {"": 1}}}, {"wrong_type": 1}),
        (payload("summary", 1), {"wrong_type": 1}),
        (payload("counter", [1]), {"wrong_type": 1}),
        (payload("counter", -1), {"negative": 1}),
        (payload("gauge", float("nan")), {"not_finite": 1}),
        (payload("gauge", 10**300), {"out_of_range": 1}),
        (payload("histogram", 3), {"wrong_type": 1}),
        (payload("histogram", [1, float("inf")]), {"not_finite": 1}),
        (payload("counter", 1, key=7), {"label_mismatch": 1}),
        (payload("counter", 1, name="a b"), {"wrong_type": 1}),
        (payload("counter", 1, name=3), {"wrong_type": 1}),  # type: ignore[arg-type]  # the point
        (payload("gauge", 1, name="known"), {"type_conflict": 1}),
        ({"types": {"x": "counter"}, "data": {"x": 3}}, {"wrong_type": 1}),
        ({"info": 3}, {"wrong_type": 1}),
        ({"info": {"x": [3]}}, {"wrong_type": 1}),
        ({"info": {"x": {3: 4}}}, {"wrong_type": 1}),
        ({"newer": 3, "types": {}, "data": {}}, {"unknown_key": 1}),
    ],
)
def test_bad_items_are_counted_by_reason(data: object, errors: dict[str, int]) -> None:
    """What cannot be used is left out and counted, and what was there before stays."""
    stats = OffloadingConnectorStats(payload("counter", 5, name="known")).aggregate(data)
    assert stats.errors == errors
    assert stats.reduce()["known"] == 5


def test_recording_nonsense_is_counted() -> None:
    """A producer's own mistake is counted like a foreign one and never raised."""
    stats = OffloadingConnectorStats()
    stats.increase_counter("x", -1)
    stats.set_gauge("x", float("nan"))
    stats.observe_histogram("x", ["a"])  # type: ignore[list-item]  # the point
    stats.increase_counter("y", 1, 7)  # type: ignore[arg-type]  # the point
    assert stats.errors == {"negative": 1, "not_finite": 1, "wrong_type": 1, "label_mismatch": 1}


def test_other_buckets_do_not_mix() -> None:
    """A histogram over other bounds is skipped, and the one held stays as it was."""
    histogram = {"bounds": [1], "counts": [1, 0], "sum": 1.0, "count": 1}
    stats = OffloadingConnectorStats(payload("histogram", histogram))
    stats.aggregate(payload("histogram", {**histogram, "bounds": [2]}))
    assert stats.errors == {"bucket_mismatch": 1}
    assert stats.reduce() == {"x_count": 1, "x_sum": 1.0}


def test_series_of_one_metric_are_bounded() -> None:
    """A stream of ever new label values is cut off at the bound and counted."""
    stats = OffloadingConnectorStats()
    for request in range(MAX_SERIES + 10):
        stats.increase_counter("x", 1, (request,))
    assert len(stats.data["data"]["x"]) == MAX_SERIES
    assert stats.errors == {"too_many_series": 10}
