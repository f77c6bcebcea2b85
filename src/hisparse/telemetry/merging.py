"""Statistics of the workers and of the scheduler of one step, joined."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hisparse.telemetry.building import UNKNOWN_HELP, build_kv_connector_stats
from hisparse.telemetry.catalogue import CATALOGUE, Catalogue
from hisparse.telemetry.connector_stats import HiSparseConnectorStats
from hisparse.telemetry.hisparse_stats import HiSparseKVConnectorStats
from hisparse.telemetry.histogram import MAX_SUMMANDS
from hisparse.telemetry.metadata import MetricMetadata
from hisparse.telemetry.offload_stats import OffloadingConnectorStats
from hisparse.telemetry.series import SeriesTable, sum_tables
from hisparse.telemetry.stats import KVConnectorStats
from hisparse.telemetry.values import SkipReason, show
from hisparse.telemetry.wire import decode_stats

_OWN: frozenset[type[KVConnectorStats]] = frozenset(
    [OffloadingConnectorStats, HiSparseKVConnectorStats, HiSparseConnectorStats]
)

Said = KVConnectorStats | Mapping[str, Any] | bytes | None
Build = Callable[[Any, Catalogue], KVConnectorStats | None]


def merge_ranks(
    stats_per_rank: Sequence[Said], *, catalogue: Catalogue = CATALOGUE, build: Build = build_kv_connector_stats
) -> KVConnectorStats:
    """Return what the workers of one engine said in a step, as new statistics. Reads only; never raises on data.

    Args:
        stats_per_rank: Containers, plain forms or bytes; None for a worker that has nothing to say. The position
            is the rank of those that carry none.
        catalogue: Merge rules and buckets for what is not a container yet.
        build: Makes statistics of plain data; a `StatsBuilder` of `hisparse.connectors` where connectors of one's own,
            or several in one engine, send any.

    Returns:
        `OffloadingConnectorStats` where all that is said is such, another class where all is of that class, and
        else `HiSparseConnectorStats`, which holds what any container of this package says, whatever came first.
        What each rank did for itself adds up; what all did alike is counted once where it is read.
    """
    read = [read_stats(said, catalogue, build) for said in stats_per_rank]
    alike = {rank: stats for rank, stats in enumerate(read) if type(stats) is OffloadingConnectorStats}
    if alike and len(alike) == len(read):
        together = _sum_of_ranks(alike)
        if together is not None:
            return together
    merged = _accumulator([stats for stats in read if stats is not None], catalogue)
    for position, (said, stats) in enumerate(zip(stats_per_rank, read, strict=True)):
        if stats is not None:
            # One that says nothing has fields all the same, which another class would not know.
            if type(stats) is type(merged) or not _says_nothing(stats):
                merged.aggregate_as(stats, position)
                _keep_examples(merged, stats)
        elif said is not None:
            merged.skip(SkipReason.UNKNOWN_CONNECTOR, f"rank {position} sent {show(said)}: {UNKNOWN_HELP}")
    return merged


def _accumulator(said: Sequence[KVConnectorStats], catalogue: Catalogue) -> KVConnectorStats:
    """Return an empty container that holds what any of `said` does."""
    spoken = [stats for stats in said if not _says_nothing(stats)] or said
    # Another class knows its own data only, and so does the one that holds most; of several the first by name
    # stands, which does not hang on the order.
    others = sorted({type(stats) for stats in spoken} - _OWN, key=lambda cls: (cls.__module__, cls.__qualname__))
    whole = HiSparseConnectorStats(catalogue=next(filter(None, map(_catalogue_of, said)), catalogue))
    wanted = others[0] if others else OffloadingConnectorStats
    if not said or (not others and any(type(stats) is not wanted for stats in said)):
        return whole
    try:
        return next(stats for stats in said if type(stats) is wanted).fresh()
    except Exception:  # noqa: BLE001  somebody else's class; what it says is then skipped and counted
        return whole


def _catalogue_of(stats: KVConnectorStats) -> Mapping[str, MetricMetadata] | None:
    found = stats.metrics if isinstance(stats, HiSparseConnectorStats) else stats
    return found.catalogue if isinstance(found, OffloadingConnectorStats) else None


def _keep_examples(merged: KVConnectorStats, stats: KVConnectorStats) -> None:
    """Take over the sentences about what was skipped, which a plain form does not carry."""
    examples = getattr(stats, "examples", None)  # somebody else's class may have left them out
    if isinstance(examples, dict):
        merged.examples.update({reason: text for reason, text in examples.items() if reason in merged.errors})


def _says_nothing(stats: KVConnectorStats) -> bool:
    try:
        return stats.is_empty()
    except Exception:  # noqa: BLE001  somebody else's class may raise anything; merging it tells
        return False


def _sum_of_ranks(stats_by_rank: Mapping[int, OffloadingConnectorStats]) -> OffloadingConnectorStats | None:
    """Return what ranks that recorded the same series said together; None where they did not. Reads only."""
    tables: list[SeriesTable] = []
    first = next(iter(stats_by_rank.values()))
    for stats in stats_by_rank.values():
        if stats.catalogue is not first.catalogue or stats.errors or stats.has_ranks:
            return None
        tables.append(stats.own)
    # What is kept by rank may differ between ranks; what is summed has the same names on all.
    added = sum_tables(tables) if len(tables) <= MAX_SUMMANDS else None
    if added is None or first.old_names():
        return None
    merged = first.fresh()
    merged.own = added
    for position, stats in stats_by_rank.items():
        if stats.own.keeps():
            if stats.old_names():
                return None
            merged.keep(position if stats.rank is None else stats.rank, stats.own)
    return merged


def merge_step(
    worker: Said, scheduler: Said, *, catalogue: Catalogue = CATALOGUE, build: Build = build_kv_connector_stats
) -> KVConnectorStats | None:
    """Return what the workers and the scheduler said in one step, as new statistics; None where nobody did.

    Args:
        worker: What `merge_ranks` returned, its plain form or bytes; None where no worker said anything.
        scheduler: The same of the scheduler side.
        catalogue: Merge rules and buckets for what is not a container yet.
        build: Makes statistics of plain data, as for `merge_ranks`.
    """
    present = [stats for said in (worker, scheduler) if (stats := _said(said, catalogue, build)) is not None]
    if not present:
        return None
    merged = _accumulator(present, catalogue)
    for stats in present:
        merged.aggregate(stats)
        _keep_examples(merged, stats)
    return merged


def _said(said: Said, catalogue: Catalogue, build: Build) -> KVConnectorStats | None:
    stats = read_stats(said, catalogue, build)
    if stats is None and said is not None:
        stats = OffloadingConnectorStats(catalogue=catalogue)
        stats.skip(SkipReason.UNKNOWN_CONNECTOR, f"nobody knows {show(said)}: {UNKNOWN_HELP}")
    return None if stats is None or _says_nothing(stats) else stats


def read_stats(
    said: Any, catalogue: Catalogue = CATALOGUE, build: Build = build_kv_connector_stats
) -> KVConnectorStats | None:
    """Return a container as it is, or that of a plain form or bytes; None where there is nothing or nobody knows it."""
    # The exact type first: asking an abstract base class takes as long as merging a counter.
    if said is None or type(said) is OffloadingConnectorStats or isinstance(said, KVConnectorStats):
        return said
    if isinstance(said, bytes | bytearray | memoryview):
        return _built(lambda: decode_stats(said, catalogue, build))
    return _built(lambda: build(said, catalogue))


def _built(build: Callable[[], Any]) -> KVConnectorStats | None:
    try:
        built = build()
    except Exception:  # noqa: BLE001  somebody else's class must not end a step; its statistics are then unknown
        return None
    return built if isinstance(built, KVConnectorStats) else None
