"""The endpoint shows what the cache counted, to the selection and to the byte, however the cache is used."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import zoo
from prometheus_client import CollectorRegistry
from scraping import counted, expected, scrape

from hisparse.integrations.transformers import HiSparseCache
from hisparse.layout import pages_for
from hisparse.telemetry import TelemetryPipeline, start_metrics_server

STEPS = 12


@pytest.fixture
def pipeline() -> Iterator[TelemetryPipeline]:
    """A pipeline on a registry of its own."""
    with TelemetryPipeline(model_name="m", registry=CollectorRegistry()) as running:
        yield running


@pytest.fixture
def url(pipeline: TelemetryPipeline) -> Iterator[str]:
    """Where the pipeline's metrics are served."""
    with start_metrics_server(pipeline.registry) as server:
        yield server.url


def decode(shelf: Any, case: zoo.ModelCase, cache: HiSparseCache, batch: int) -> None:
    """Read a prompt and decode a few tokens."""
    zoo.generate(shelf.served(case), zoo.prompt(case, batch), cache=cache, max_new_tokens=STEPS + 1)


def test_a_scrape_equals_the_statistics(
    shelf: Any, make_cache: Any, case: zoo.ModelCase, *, pipeline: TelemetryPipeline, url: str
) -> None:
    """By outcome, group, layer and bytes the endpoint shows the statistics, and nothing was skipped on the way."""
    cache = make_cache(shelf.served(case), telemetry=pipeline)
    decode(shelf, case, cache, 3)
    stats = cache.stats()
    found = scrape(url)
    assert counted(found) == expected(stats)
    assert sum(stats["selections"].values()) == 3 * zoo.TOP_K * STEPS * len(case.groups)
    assert found["hisparse_hot_gather_seconds_count"] == STEPS * len(stats["layers"])
    assert found["hisparse_hot_request_misses_rows_count"] == 3 * STEPS * len(case.groups)
    assert found["hisparse_hot_request_misses_rows_sum"] == stats["selections"]["miss"]
    assert found["hisparse_telemetry_samples_total,outcome=read"] >= 1
    assert found["hisparse_telemetry_sample_age_seconds"] == 0
    assert found["hisparse_host_link_bytes_per_second"] > 0
    assert found["hisparse_host_used_bytes"] > 0
    assert (
        found["hisparse_host_used_bytes"] + found["hisparse_host_reserved_bytes"]
        <= found["hisparse_host_capacity_bytes"]
    )
    assert not [key for key, value in found.items() if key.startswith("hisparse_telemetry_errors") and value]


def test_every_appended_row_counts_as_copied_to_the_host(
    shelf: Any, make_cache: Any, v32: zoo.ModelCase, *, pipeline: TelemetryPipeline, url: str
) -> None:
    """Each layer shows the bytes of the rows of prompt and answer, once, however long they have been held."""
    model = shelf.served(v32)
    cache = make_cache(model, telemetry=pipeline)
    decode(shelf, v32, cache, 3)
    appended = 3 * cache.get_seq_length()
    cache.crop(-1)
    row_bytes = (model.config.kv_lora_rank + model.config.qk_rope_head_dim) * model.dtype.itemsize
    layers = [entry["layer"] for entry in cache.stats()["layers"]]
    found = scrape(url)
    name = "hisparse_hot_copied_bytes_total,direction=device_to_host"
    assert {layer: found[f"{name},layer={layer}"] for layer in layers} == dict.fromkeys(layers, appended * row_bytes)


@pytest.mark.parametrize("name", ["glm_moe_dsa-FSSF", "deepseek_v4"])
def test_resets_and_closing_lose_and_repeat_nothing(
    shelf: Any, name: str, *, pipeline: TelemetryPipeline, url: str
) -> None:
    """Over resets, batches of other sizes, repeated reading and closing, the endpoint goes on from where it was."""
    case = zoo.BY_NAME[name]
    cache = HiSparseCache(shelf.served(case).config, telemetry=pipeline)
    totals = []
    for batch in (1, 3, 1):
        decode(shelf, case, cache, batch)
        cache.reset()
        found = scrape(url)
        totals.append(cache.stats()["selections"])
        assert counted(found) == expected(cache.stats()) == counted(scrape(url))
        assert found["hisparse_host_used_bytes"] == 0
    decode(shelf, case, cache, 1)
    cache.close()
    found = counted(scrape(url))
    cache.close()
    cache.check()
    assert found == expected(cache.stats()) == counted(scrape(url))
    assert [sum(total.values()) for total in totals] == [
        batches * zoo.TOP_K * STEPS * len(case.groups) for batches in (1, 4, 5)
    ]


def test_a_run_shorter_than_a_sample_is_shown_when_it_ends(
    shelf: Any, v32: zoo.ModelCase, *, pipeline: TelemetryPipeline, url: str
) -> None:
    """A cache that lived for a fraction of a second has published everything once it is closed."""
    cache = HiSparseCache(shelf.served(v32).config, telemetry=pipeline)
    decode(shelf, v32, cache, 1)
    cache.close()
    found = counted(scrape(url))
    assert found == expected(cache.stats())
    assert sum(value for key, value in found.items() if "selections" in key) == 3 * zoo.TOP_K * STEPS


def test_levels_fall_to_the_truth_without_a_forward_pass(
    shelf: Any, make_cache: Any, v32: zoo.ModelCase, *, pipeline: TelemetryPipeline, url: str
) -> None:
    """When requests are dropped, cut, aborted or all ended, and no pass follows, the gauges say what is held."""
    cache = make_cache(shelf.served(v32), telemetry=pipeline, page_rows=4)
    decode(shelf, v32, cache, 3)
    held = cache.get_seq_length()
    page_bytes = scrape(url)["hisparse_host_used_bytes"] / (3 * pages_for(held, 4))

    def used_pages() -> float:
        return scrape(url)["hisparse_host_used_bytes"] / page_bytes

    cache.batch_select_indices(torch.tensor([0, 2]))
    assert used_pages() == 2 * pages_for(held, 4)
    cache.crop(-8)
    assert used_pages() == 2 * pages_for(held - 8, 4)
    cache.begin_pass(2, 9)
    cache.stats()
    assert used_pages() == 2 * pages_for(held + 1, 4)
    cache.fail_pass()
    assert used_pages() == 2 * pages_for(held - 8, 4)
    cache.reset()
    found = scrape(url)
    assert (used_pages(), found["hisparse_host_capacity_bytes"], found["vllm:hisparse_host_cache_usage_perc"]) == (
        0,
    ) * 3


def test_ended_requests_leave_the_log_line(
    shelf: Any, make_cache: Any, v32: zoo.ModelCase, *, pipeline: TelemetryPipeline, caplog: pytest.LogCaptureFixture
) -> None:
    """The line after all requests ended shows nothing used; later ones are silent and never repeat what was."""
    cache = make_cache(shelf.served(v32), telemetry=pipeline)
    decode(shelf, v32, cache, 3)
    lines = []
    for _ in range(4):
        cache.reset()
        with caplog.at_level(logging.INFO, logger="hisparse"):
            pipeline.flush()
        lines.append([record.getMessage() for record in caplog.records])
        caplog.clear()
    assert "HiSparse host KV cache usage %=0.0" in lines[0][0]
    assert "HiSparse host pool used GiB=0," in lines[0][0]
    assert lines[1:] == [[], [], []]


def test_two_caches_share_an_endpoint(
    shelf: Any, make_cache: Any, v32: zoo.ModelCase, *, pipeline: TelemetryPipeline, url: str
) -> None:
    """Caches that publish to one pipeline add up."""
    caches = [make_cache(shelf.served(v32), telemetry=pipeline) for _ in range(2)]
    decode(shelf, v32, caches[0], 1)
    decode(shelf, v32, caches[1], 3)
    stats = [cache.stats() for cache in caches]
    assert counted(scrape(url)) == expected(*stats)


def test_a_cache_without_telemetry_publishes_nothing(
    shelf: Any, make_cache: Any, v32: zoo.ModelCase, *, url: str
) -> None:
    """Telemetry is where the cache was told, and nowhere by default."""
    decode(shelf, v32, make_cache(shelf.served(v32)), 1)
    assert counted(scrape(url)) == {}
