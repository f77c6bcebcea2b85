"""The catalogue of this version."""

from hisparse.telemetry import CATALOGUE, GaugeMetadata


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
