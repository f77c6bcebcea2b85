"""Statistics of the workers and of the scheduler of one step, joined."""

from collections.abc import Mapping, Sequence
from typing import Any

from hisparse.telemetry.building import build_kv_connector_stats
from hisparse.telemetry.catalogue import CATALOGUE, Catalogue
from hisparse.telemetry.hisparse_stats import HiSparseKVConnectorStats
from hisparse.telemetry.offload_stats import OffloadingConnectorStats
from hisparse.telemetry.stats import KVConnectorStats
from hisparse.telemetry.values import SkipReason, show
from hisparse.telemetry.wire import decode_stats

Said = KVConnectorStats | Mapping[str, Any] | bytes | None


def merge_ranks(stats_per_rank: Sequence[Said], *, catalogue: Catalogue = CATALOGUE) -> KVConnectorStats:
    """Return what the workers of one engine said in a step, as new statistics. Reads only; never raises on data.

    Args:
        stats_per_rank: Containers, plain forms or bytes; None for a worker that has nothing to say. The position
            is the rank of those that carry none.
        catalogue: Merge rules and buckets for what is not a container yet.

    Returns:
        A container of the class of the first that said something. What each rank did for itself adds up; what all
        did alike is counted once where it is read, whatever came first.
    """
    read = [read_stats(said, catalogue) for said in stats_per_rank]
    alike = {rank: stats for rank, stats in enumerate(read) if type(stats) is OffloadingConnectorStats}
    if alike and len(alike) == len(read):
        together = OffloadingConnectorStats.of_ranks(alike)
        if together is not None:
            return together
    merged: KVConnectorStats | None = None
    for position, (said, stats) in enumerate(zip(stats_per_rank, read, strict=True)):
        if stats is None:
            if said is not None:
                merged = merged or HiSparseKVConnectorStats()
                merged.skip(SkipReason.UNKNOWN_CONNECTOR, f"rank {position} sent {show(said)}")
            continue
        if merged is None or (type(merged) is not type(stats) and merged.is_empty()):
            merged = stats.fresh()
        merged.aggregate_as(stats, position)
    return HiSparseKVConnectorStats() if merged is None else merged


def merge_step(worker: Said, scheduler: Said, *, catalogue: Catalogue = CATALOGUE) -> KVConnectorStats | None:
    """Return what the workers and the scheduler said in one step, as new statistics; None where nobody did.

    Args:
        worker: What `merge_ranks` returned, its plain form or bytes; None where no worker said anything.
        scheduler: The same of the scheduler side.
        catalogue: Merge rules and buckets for what is not a container yet.
    """
    present = [stats for said in (worker, scheduler) if (stats := _said(said, catalogue)) is not None]
    if not present:
        return None
    merged = present[0].fresh().aggregate(present[0])
    for stats in present[1:]:
        merged.aggregate(stats)
    return merged


def _said(said: Said, catalogue: Catalogue) -> KVConnectorStats | None:
    stats = read_stats(said, catalogue)
    if stats is None and said is not None:
        stats = OffloadingConnectorStats(catalogue=catalogue)
        stats.skip(SkipReason.UNKNOWN_CONNECTOR, f"nobody builds statistics from {show(said)}")
    return None if stats is None or stats.is_empty() else stats


def read_stats(said: Any, catalogue: Catalogue = CATALOGUE) -> KVConnectorStats | None:
    """Return a container as it is, or that of a plain form or bytes; None where there is nothing or nobody knows it."""
    # The exact type first: asking an abstract base class takes as long as merging a counter.
    if said is None or type(said) is OffloadingConnectorStats or isinstance(said, KVConnectorStats):
        return said
    if isinstance(said, bytes | bytearray | memoryview):
        return decode_stats(said, catalogue)
    return build_kv_connector_stats(said, catalogue)
