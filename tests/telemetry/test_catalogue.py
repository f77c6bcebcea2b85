"""Names, clashes between metrics, and the catalogue of this version."""

from typing import Any

import pytest

from hisparse.errors import MetricError
from hisparse.telemetry import (
    CATALOGUE,
    Catalogue,
    CounterMetadata,
    Deprecation,
    GaugeMetadata,
    HistogramMetadata,
    MetricMetadata,
)

COUNTER = CounterMetadata("A count.", unit="bytes")
GAUGE = GaugeMetadata("A level.", unit="bytes")
HISTOGRAM = HistogramMetadata("A distribution.", unit="seconds", buckets=(1,))


@pytest.mark.parametrize(
    ("name", "metadata", "message"),
    [
        ("hisparse_hot_copied_bytes", COUNTER, "must end in _total"),
        ("hisparse_host_used_bytes_total", GAUGE, "must not end in _total"),
        ("hisparse_hot_gather_seconds_total", HISTOGRAM, "must not end in _total"),
        ("hisparse_hot_copied_total", COUNTER, "must end in its unit"),
        ("hisparse_host_used_gib", GAUGE, "must end in its unit"),
        ("hisparse_gpu_used_bytes", GAUGE, "must name its part"),
        ("hisparse_host_used_bytes", GaugeMetadata("x"), "needs a unit"),
        ("hisparse_bytes", GAUGE, "must name its part"),
        ("vllm:hisparse_hits", COUNTER, "no operator name"),
        ("Mine_bytes", GAUGE, "lower_case"),
        ("mine:used", GAUGE, "lower_case"),
        ("mine used", GAUGE, "lower_case"),
        ("1mine", GAUGE, "lower_case"),
        ("", GAUGE, "lower_case"),
        ("mine_count", GAUGE, "must not end in one of"),
        ("mine_created_total", COUNTER, "must not end in one of"),
    ],
)
def test_a_wrong_name_is_refused(name: str, metadata: MetricMetadata, message: str) -> None:
    """A name that does not say whose it is, its unit and its kind cannot be declared."""
    with pytest.raises(MetricError, match=message):
        Catalogue({name: metadata})


def test_clashing_sample_names_are_refused() -> None:
    """Two metrics that would export one sample name are refused, naming both."""
    counters: dict[str, Any] = {"vllm:kv_offload_size": COUNTER, "mine_size_total": COUNTER}
    assert len(Catalogue(counters)) == 2
    with pytest.raises(MetricError, match="'mine_size' and 'mine_size_total' would both export 'mine_size'"):
        Catalogue({"mine_size_total": COUNTER, "mine_size": GAUGE})


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


def test_every_gauge_says_how_processes_combine() -> None:
    """No gauge of the catalogue leaves a series per process behind."""
    gauges = [metadata for metadata in CATALOGUE.values() if isinstance(metadata, GaugeMetadata)]
    assert gauges
    assert {metadata.multiprocess_mode for metadata in gauges} == {"mostrecent"}


def test_selections_count_once_and_bytes_add_across_ranks() -> None:
    """What all ranks decide alike is counted once; what each rank copies adds up."""
    once = {name for name, metadata in CATALOGUE.items() if metadata.across_ranks == "once"}
    assert once == {
        "vllm:hisparse_cache_hits",
        "vllm:hisparse_cache_misses",
        "hisparse_hot_selections_total",
        "hisparse_hot_request_misses_rows",
        "vllm:kv_offload_stores_skipped",
    }
    assert CATALOGUE["vllm:hisparse_host_to_device_bytes"].across_ranks == "sum"


def test_host_block_histograms_need_their_option() -> None:
    """Without kv-cache metrics no host-block histogram is exported."""
    with_option = CATALOGUE.exported("0.1.0", gates=frozenset(["kv_cache_metrics"]))
    gated = set(with_option) - set(CATALOGUE.exported("0.1.0"))
    assert gated == {name for name in CATALOGUE if name.startswith("vllm:hisparse_host_block_")}
    assert len(gated) == 3
