"""What a cache counted, as plain numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse.hot import GroupCounters
from hisparse.integrations.transformers.geometry import ModelGeometry
from hisparse.kernels import COUNT_FIELDS


@dataclass(slots=True)
class PrefixCounts:
    """Tokens of full pages that requests asked the host pool for, each request once, and those that it had."""

    queried_tokens: int = 0
    hit_tokens: int = 0


def cache_stats(
    geometry: ModelGeometry, counters: Sequence[GroupCounters], *, device_kv_bytes: int, prefixes: PrefixCounts
) -> dict[str, Any]:
    """Return the statistics of one cache; reads only.

    Selections are counted once per index group; every layer of a group reports its group's.

    Args:
        geometry: Layers and groups.
        counters: One per group.
        device_kv_bytes: Device bytes the cache holds now.
        prefixes: Tokens asked of the host pool, and found.
    """
    total = sum((c.selections for c in counters), np.zeros(len(COUNT_FIELDS), np.int64))
    layers = [
        {"layer": layer, "group": group, **_named(c.selections), "bytes": int(c.loaded_bytes[i])}
        for group, (members, c) in enumerate(zip(geometry.groups, counters, strict=True))
        for i, layer in enumerate(members)
    ]
    slots = max((len(c.by_request) for c in counters), default=0)
    by_request = np.zeros((slots, len(COUNT_FIELDS)), np.int64)
    for c in counters:
        by_request[: len(c.by_request)] += c.by_request
    return {
        "selections": _named(total),
        "host_to_device_bytes": sum(entry["bytes"] for entry in layers),
        "device_kv_bytes": int(device_kv_bytes),
        "prefix_queried_tokens": prefixes.queried_tokens,
        "prefix_hit_tokens": prefixes.hit_tokens,
        "spilled_pages": 0,
        "requests": [_named(counts) for counts in by_request],
        "layers": sorted(layers, key=lambda entry: entry["layer"]),
    }


def _named(counts: NDArray[np.int64]) -> dict[str, int]:
    """Return counts by their field names."""
    return {name: int(count) for name, count in zip(COUNT_FIELDS, counts, strict=True)}
