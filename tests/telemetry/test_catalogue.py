"""The catalogue of this version."""

import pytest

from hisparse.telemetry import CATALOGUE, GaugeMetadata, Histogram, HistogramMetadata


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


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("hisparse_offload_transfer_bytes", (656, 1_000, 4 << 20, 600_000_000, 32 << 30)),
        ("hisparse_offload_transfer_seconds", (0.0002, 0.02, 3, 59)),
        ("hisparse_hot_gather_seconds", (2e-5, 1e-3, 0.4, 4)),
        ("hisparse_hot_request_misses_rows", (1, 64, 2048, 4096)),
    ],
)
def test_buckets_span_what_is_measured(name: str, values: tuple[float, ...]) -> None:
    """Values from the small end to the large end of what happens fall between the first and the open bucket."""
    metadata = CATALOGUE[name]
    assert isinstance(metadata, HistogramMetadata)
    histogram = Histogram.empty(metadata.buckets)
    for value in values:
        histogram.observe(value)
    assert (histogram.counts[0], histogram.counts[-1]) == (0, 0)
    assert max(histogram.counts) < len(values), "all in one bucket"
