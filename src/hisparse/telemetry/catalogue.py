"""The one catalogue of what this version exports."""

from typing import Any, NamedTuple

from hisparse.telemetry.declarations import Catalogue as Catalogue  # noqa: PLC0414  marks what others import from here
from hisparse.telemetry.host_metrics import host_tier_metrics
from hisparse.telemetry.metadata import (
    CounterMetadata,
    Deprecation,
    GaugeMetadata,
    HistogramMetadata,
    MetricMetadata,
)
from hisparse.telemetry.values import SkipReason

OUTCOMES = ("hit", "miss", "resident", "padding")
DIRECTIONS = ("host_to_device", "device_to_host")
TRANSFERS = ("load", "store")
TRANSFER_OUTCOMES = ("success", "failure")
TRANSFER_TYPES = ("CPU_to_GPU", "GPU_to_CPU")
SAMPLE_OUTCOMES = ("read", "pending", "refused")

# One gather of a step copies from a few rows (some microseconds) to a cold disk plan (seconds).
GATHER_BUCKETS = (
    1e-5,
    2e-5,
    5e-5,
    1e-4,
    2e-4,
    5e-4,
    1e-3,
    2e-3,
    5e-3,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
)
RESIDENCY_BUCKETS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800),
)

# One transfer of blocks: from a page in memory to gigabytes from an object store.
TRANSFER_BUCKETS = (1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
# One transfer of blocks: from a row of an index to tens of gigabytes, so that no size in use falls off the end.
TRANSFER_SIZE_BUCKETS = tuple(2.0**power for power in range(8, 38, 2))
# The bounds operators know for the size of one offload transfer; larger copies are in the open bucket.
SIZE_BUCKETS = (1e6, 5e6, 10e6, 20e6, 40e6, 60e6, 80e6, 100e6, 150e6, 200e6)
MISS_BUCKETS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class Ratio(NamedTuple):
    """A share in the log line: the growth of the first part over the growth of all parts.

    Attributes:
        log: Text in the log line.
        parts: Names of unlabelled counters.
    """

    log: str
    parts: tuple[str, ...]


RATIOS = (Ratio("HiSparse hot-buffer hit ratio", ("vllm:hisparse_cache_hits", "vllm:hisparse_cache_misses")),)


def _residency(documentation: str) -> HistogramMetadata:
    return HistogramMetadata(
        documentation, unit="seconds", buckets=RESIDENCY_BUCKETS, gate="kv_cache_metrics", log=None
    )


def _operator_metrics() -> dict[str, MetricMetadata]:
    return {
        "vllm:hisparse_cache_hits": CounterMetadata(
            "Selected rows that needed no copy because they were in the hot buffer.",
            unit="selections",
            across_ranks="once",
            log="HiSparse hot-buffer hits",
        ),
        "vllm:hisparse_cache_misses": CounterMetadata(
            "Selected rows that had to be copied from the host into the hot buffer.",
            unit="selections",
            across_ranks="once",
            log="HiSparse hot-buffer misses",
        ),
        "vllm:hisparse_host_to_device_bytes": CounterMetadata(
            "Bytes copied from the host into hot buffers, counted where they are copied.",
            unit="bytes",
            log="HiSparse host-to-device bytes",
        ),
        "vllm:hisparse_host_cache_usage_perc": GaugeMetadata(
            "Used part of the host pool, 0 to 1.", unit="ratio", log="HiSparse host KV cache usage %"
        ),
        "vllm:hisparse_pending_page_transfers": GaugeMetadata(
            "Page transfers between device and host that have not completed.",
            unit="transfers",
            log="HiSparse pending page transfers",
        ),
        "vllm:hisparse_host_block_lifetime_seconds": _residency("Time a host page was held before it was freed."),
        "vllm:hisparse_host_block_idle_before_evict_seconds": _residency(
            "Time between a host page's last use and its eviction."
        ),
        "vllm:hisparse_host_block_reuse_gap_seconds": _residency("Time between two uses of a host page."),
    }


def _hot_metrics() -> dict[str, MetricMetadata]:
    return {
        "hisparse_hot_selections_total": CounterMetadata(
            "Selected positions by outcome and index group; the four outcomes add up to all selections.",
            unit="selections",
            labelnames=("outcome", "group"),
            labelvalues={"outcome": OUTCOMES},
            across_ranks="once",
            log=None,
        ),
        "hisparse_hot_copied_bytes_total": CounterMetadata(
            "Bytes of rows copied by direction and layer, counted at the copy: to the device is into a hot buffer, "
            "to the host is what was appended.",
            unit="bytes",
            labelnames=("direction", "layer"),
            labelvalues={"direction": DIRECTIONS},
            log=None,
        ),
        "hisparse_hot_gather_seconds": HistogramMetadata(
            "Time to copy the missing rows of one layer and step from the host into its hot buffer.",
            unit="seconds",
            buckets=GATHER_BUCKETS,
            log="HiSparse gather",
        ),
        "hisparse_hot_request_misses_rows": HistogramMetadata(
            "Rows that one request had to fetch in one step for one index group.",
            unit="rows",
            buckets=MISS_BUCKETS,
            across_ranks="once",
            log=None,
        ),
        "hisparse_hot_config_info": GaugeMetadata(
            "Configuration of the hot buffers as labels; always 1.",
            unit="info",
            labelnames=("top_k", "hot_slots", "page_rows", "order", "backend", "host_pool", "row_format"),
            log=None,
        ),
    }


def _host_metrics() -> dict[str, MetricMetadata]:
    return {
        "hisparse_host_used_bytes": GaugeMetadata(
            "Bytes of host pool pages that hold rows.",
            unit="bytes",
            across_ranks="sum",
            log="HiSparse host pool used",
        ),
        "hisparse_host_reserved_bytes": GaugeMetadata(
            "Bytes of host pool pages promised to admitted requests and not yet used.",
            unit="bytes",
            across_ranks="sum",
            log=None,
        ),
        "hisparse_host_capacity_bytes": GaugeMetadata(
            "Size of the host pool that is open now; 0 between batches where a pool is opened for each.",
            unit="bytes",
            across_ranks="sum",
            log="HiSparse host pool capacity",
        ),
        "hisparse_host_prefix_queried_tokens_total": CounterMetadata(
            "Tokens of full pages that requests looked up in the host pool, each request once, when it starts.",
            unit="tokens",
            log="HiSparse prefix tokens queried",
        ),
        "hisparse_host_prefix_hit_tokens_total": CounterMetadata(
            "Tokens of those that the host pool had, which were not computed again.",
            unit="tokens",
            log="HiSparse prefix tokens found",
        ),
        "hisparse_host_link_bytes_per_second": GaugeMetadata(
            "Speed at which this machine copies from the open host pool to the device, measured once for a pool in "
            "memory, as set for one on disk; 0 where neither, and while no pool is open.",
            unit="bytes_per_second",
            across_ranks="sum",
            log=None,
        ),
    }


def _operator_offload_metrics() -> dict[str, MetricMetadata]:
    metrics: dict[str, MetricMetadata] = {}
    for direction, way in (("load", "from a tier to the device"), ("store", "from the device to a tier")):
        metrics |= {
            f"vllm:kv_offload_{direction}_bytes": CounterMetadata(
                f"Bytes copied {way}.", unit="bytes", log=f"Offload {direction} bytes"
            ),
            f"vllm:kv_offload_{direction}_time": CounterMetadata(
                f"Seconds spent in copies {way}; copies that overlap add up.",
                unit="seconds",
                log=f"Offload {direction} seconds",
            ),
            f"vllm:kv_offload_{direction}_size": HistogramMetadata(
                f"Bytes of one copy {way}.", unit="bytes", buckets=SIZE_BUCKETS, log=None
            ),
        }
    return metrics


def _deprecated_offload_metrics() -> dict[str, MetricMetadata]:
    def old(what: str) -> Deprecation:
        sources = {way: f"vllm:kv_offload_{name}_{what}" for way, name in zip(TRANSFER_TYPES, TRANSFERS, strict=True)}
        return Deprecation(since="0.1", replacement=sources, label="transfer_type")

    labels: dict[str, Any] = {"labelnames": ("transfer_type",), "labelvalues": {"transfer_type": TRANSFER_TYPES}}
    return {
        "vllm:kv_offload_total_bytes": CounterMetadata(
            "Bytes copied between tiers and the device.", unit="bytes", log=None, deprecation=old("bytes"), **labels
        ),
        "vllm:kv_offload_total_time": CounterMetadata(
            "Seconds spent in copies between tiers and the device.",
            unit="seconds",
            log=None,
            deprecation=old("time"),
            **labels,
        ),
        "vllm:kv_offload_size": HistogramMetadata(
            "Bytes of one copy between a tier and the device.",
            unit="bytes",
            buckets=SIZE_BUCKETS,
            log=None,
            deprecation=old("size"),
            **labels,
        ),
    }


def _offload_metrics() -> dict[str, MetricMetadata]:
    return {
        "vllm:kv_offload_stores_skipped": CounterMetadata(
            "Blocks that were not stored because they had not been offered often enough.",
            unit="blocks",
            across_ranks="once",
            log="Offload stores skipped",
        ),
        "hisparse_offload_transfers_total": CounterMetadata(
            "Transfers of blocks between device and tiers that ended, by direction and outcome.",
            unit="transfers",
            labelnames=("direction", "outcome"),
            labelvalues={"direction": TRANSFERS, "outcome": TRANSFER_OUTCOMES},
            log="Offload transfers",
        ),
        "hisparse_offload_transfer_seconds": HistogramMetadata(
            "Time of one transfer of blocks from its start to its completion.",
            unit="seconds",
            buckets=TRANSFER_BUCKETS,
            labelnames=("direction",),
            labelvalues={"direction": TRANSFERS},
            log=None,
        ),
        "hisparse_offload_queue_seconds": HistogramMetadata(
            "Time one transfer of blocks waited from its submission to its start.",
            unit="seconds",
            buckets=TRANSFER_BUCKETS,
            labelnames=("direction",),
            labelvalues={"direction": TRANSFERS},
            log=None,
        ),
        "hisparse_offload_transfer_bytes": HistogramMetadata(
            "Bytes of one transfer of blocks, from 256 bytes to 64 GiB.",
            unit="bytes",
            buckets=TRANSFER_SIZE_BUCKETS,
            labelnames=("direction",),
            labelvalues={"direction": TRANSFERS},
            log=None,
        ),
        "hisparse_offload_busy_seconds_total": CounterMetadata(
            "Seconds of a worker in which at least one transfer was under way, each second once; "
            "bytes over these seconds is the speed of one worker.",
            unit="seconds",
            labelnames=("direction",),
            labelvalues={"direction": TRANSFERS},
            log="Offload busy seconds",
        ),
        "hisparse_offload_failed_transfers_total": CounterMetadata(
            "Transfers of blocks that failed, by reason; the reasons of a direction add up to its failures.",
            unit="transfers",
            labelnames=("direction", "reason"),
            labelvalues={"direction": TRANSFERS},
            log=None,
        ),
    }


def _telemetry_metrics() -> dict[str, MetricMetadata]:
    return {
        "hisparse_telemetry_last_sample_timestamp_seconds": GaugeMetadata(
            "Unix time at which statistics last arrived; 0 before the first.",
            unit="seconds",
            across_ranks="min",
            log=None,
        ),
        "hisparse_telemetry_sample_age_seconds": GaugeMetadata(
            "Age of the oldest sample of device counters that was asked for and not read yet; 0 where none waits.",
            unit="seconds",
            log=None,
        ),
        "hisparse_telemetry_samples_total": CounterMetadata(
            "Attempts to sample device counters: read, still pending when looked at, or refused by the device.",
            unit="samples",
            labelnames=("outcome",),
            labelvalues={"outcome": SAMPLE_OUTCOMES},
            log=None,
        ),
        "hisparse_telemetry_errors_total": CounterMetadata(
            "Items of statistics payloads that were skipped, by reason.",
            unit="errors",
            labelnames=("reason",),
            labelvalues={"reason": tuple(SkipReason)},
            log="telemetry errors",
        ),
    }


# What the pipeline needs to speak of itself; every exporter has it.
TELEMETRY = Catalogue(_telemetry_metrics())
CATALOGUE = Catalogue(
    {
        **_operator_metrics(),
        **_hot_metrics(),
        **_host_metrics(),
        **host_tier_metrics(),
        **_operator_offload_metrics(),
        **_deprecated_offload_metrics(),
        **_offload_metrics(),
        **TELEMETRY,
    }
)
