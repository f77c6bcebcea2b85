"""What a client of the metrics endpoint reads, and what a cache says that it should be."""

import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

OUTCOMES = ("hit", "miss", "resident", "padding")


def scrape(url: str) -> dict[str, float]:
    """Return every series of the endpoint by its name and its labels other than model and engine."""
    with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - a loopback address
        text = response.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            own = sorted(
                f"{key}={value}" for key, value in sample.labels.items() if key not in {"model_name", "engine"}
            )
            key = ",".join([sample.name, *own])
            assert key not in found
            found[key] = sample.value
    return found


def counted(found: dict[str, float]) -> dict[str, float]:
    """Return the series of selections and of bytes copied to the device that are not zero."""
    names = (
        "hisparse_hot_selections_total",
        "hisparse_hot_copied_bytes_total",
        "vllm:hisparse_cache_hits_total",
        "vllm:hisparse_cache_misses_total",
        "vllm:hisparse_host_to_device_bytes_total",
    )
    return {
        key: value
        for key, value in found.items()
        if key.split(",")[0] in names and value and "direction=device_to_host" not in key
    }


def expected(*caches: dict[str, Any]) -> dict[str, float]:
    """Return what `counted` must be after caches with these statistics published to one endpoint."""
    series: dict[str, float] = {}

    def add(key: str, value: int) -> None:
        if value:
            series[key] = series.get(key, 0) + value

    for stats in caches:
        groups = {entry["group"]: entry for entry in stats["layers"]}
        for group, entry in groups.items():
            for outcome in OUTCOMES:
                add(f"hisparse_hot_selections_total,group={group},outcome={outcome}", entry[outcome])
        for entry in stats["layers"]:
            add(f"hisparse_hot_copied_bytes_total,direction=host_to_device,layer={entry['layer']}", entry["bytes"])
        add("vllm:hisparse_cache_hits_total", stats["selections"]["hit"])
        add("vllm:hisparse_cache_misses_total", stats["selections"]["miss"])
        add("vllm:hisparse_host_to_device_bytes_total", stats["host_to_device_bytes"])
    return series
