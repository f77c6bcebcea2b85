"""Which names a metric may have: a name says whose it is, what it counts and in which unit."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from hisparse.errors import MetricError
from hisparse.telemetry.metadata import Kind, MetricMetadata

PARTS = frozenset(["hot", "host", "offload", "replay", "telemetry"])

# Names that operators know from vLLM, kept with their meaning, kind and unit; vLLM owns the rest of the prefix.
OPERATOR_NAMES: Mapping[str, tuple[Kind, str]] = MappingProxyType(
    {
        "vllm:hisparse_cache_hits": ("counter", "selections"),
        "vllm:hisparse_cache_misses": ("counter", "selections"),
        "vllm:hisparse_host_to_device_bytes": ("counter", "bytes"),
        "vllm:hisparse_host_cache_usage_perc": ("gauge", "ratio"),
        "vllm:hisparse_pending_page_transfers": ("gauge", "transfers"),
        "vllm:hisparse_host_block_lifetime_seconds": ("histogram", "seconds"),
        "vllm:hisparse_host_block_idle_before_evict_seconds": ("histogram", "seconds"),
        "vllm:hisparse_host_block_reuse_gap_seconds": ("histogram", "seconds"),
        "vllm:kv_offload_load_bytes": ("counter", "bytes"),
        "vllm:kv_offload_load_time": ("counter", "seconds"),
        "vllm:kv_offload_load_size": ("histogram", "bytes"),
        "vllm:kv_offload_store_bytes": ("counter", "bytes"),
        "vllm:kv_offload_store_time": ("counter", "seconds"),
        "vllm:kv_offload_store_size": ("histogram", "bytes"),
        "vllm:kv_offload_stores_skipped": ("counter", "blocks"),
        "vllm:kv_offload_total_bytes": ("counter", "bytes"),
        "vllm:kv_offload_total_time": ("counter", "seconds"),
        "vllm:kv_offload_size": ("histogram", "bytes"),
    }
)

_GRAMMAR = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# The exposition adds these to counters and histograms, so a name that ends in one clashes with a sibling.
_ADDED_SUFFIXES = ("_created", "_bucket", "_count", "_sum")


def check_name(name: str, metadata: MetricMetadata) -> None:
    """Refuse a name that does not say what `metadata` says.

    Own names read ``hisparse_<part>_<what>_<unit>[_total]``; names under ``vllm:`` are the closed list
    `OPERATOR_NAMES`, each with its kind and unit; any other prefix belongs to its author and needs only the
    grammar. Except under ``vllm:`` a name ends in ``_total`` exactly when it is a counter.

    Raises:
        MetricError: What is wrong with the name, and the form it should have.
    """
    if name.startswith("vllm:"):
        if name not in OPERATOR_NAMES:
            raise MetricError(f"{name!r} is no operator name: use another prefix, or one of {sorted(OPERATOR_NAMES)}")
        if (got := (metadata.kind, metadata.unit)) != (known := OPERATOR_NAMES[name]):
            raise MetricError(f"operators know {name!r} as a {known[0]} in {known[1]}, got a {got[0]} in {got[1]!r}")
        return
    if not _GRAMMAR.fullmatch(name):
        raise MetricError(f"metric name must be lower_case words joined by '_', got {name!r}")
    is_total = name.endswith("_total")
    if is_total != (metadata.kind == "counter"):
        wanted = "must" if metadata.kind == "counter" else "must not"
        raise MetricError(f"a {metadata.kind} {wanted} end in _total, got {name!r}")
    stem = name.removesuffix("_total")
    if stem.endswith(_ADDED_SUFFIXES):
        raise MetricError(f"metric name must not end in one of {_ADDED_SUFFIXES}, got {name!r}")
    if name.startswith("hisparse_"):
        _check_own_name(name, stem, metadata.unit)


def _check_own_name(name: str, stem: str, unit: str) -> None:
    words = stem.split("_")
    if words[1] not in PARTS:
        raise MetricError(f"{name!r} must name its part after hisparse_, one of {sorted(PARTS)}")
    if not unit:
        raise MetricError(f"{name!r} needs a unit, and its name must end in it")
    if len(words) < 3 or not stem.endswith(f"_{unit}"):  # noqa: PLR2004  hisparse, the part, and at least the unit
        raise MetricError(f"{name!r} must end in its unit: hisparse_<part>_<what>_{unit}[_total]")


def family_name(name: str) -> str:
    """Return the name of the metric family: a counter's without ``_total``."""
    return name.removesuffix("_total")


def sample_names(name: str, metadata: MetricMetadata) -> set[str]:
    """Return every name under which samples of the metric may appear in an exposition."""
    family = family_name(name)
    if metadata.kind == "counter":
        return {family, f"{family}_total", f"{family}_created"}
    if metadata.kind == "histogram":
        return {name} | {name + suffix for suffix in _ADDED_SUFFIXES}
    return {name}
