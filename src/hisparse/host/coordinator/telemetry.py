"""What a coordinator knows, under the names of the catalogue."""

from collections.abc import Iterator

from hisparse.host.coordinator.counters import CoordinatorStats, Counters
from hisparse.telemetry import HiSparseConnectorStats

Labels = tuple[str, ...]


def record_coordinator(
    stats: HiSparseConnectorStats, now: CoordinatorStats, before: CoordinatorStats | None = None
) -> None:
    """Record levels as they are now, and what was counted since `before`, or at all where there is none.

    Every series exists afterwards, those at 0 included.
    """
    host = now.host
    stats.record_host_usage(host.pinned / host.pages if host.pages else 0.0, now.pending_transfers)
    for state, pages in now.pages_by_state.items():
        stats.set_gauge("hisparse_host_state_pages", pages, (state,))
    for use, pages in now.device_pages.items():
        stats.set_gauge("hisparse_host_device_pages", pages, (use,))
    for phase, requests in now.requests.items():
        stats.set_gauge("hisparse_host_admitted_requests", requests, (phase,))
    for what, pages in (("used", host.pinned), ("reserved", host.reserved), ("cached", host.cached)):
        stats.set_gauge(f"hisparse_host_{what}_bytes", pages * now.page_bytes)
    stats.set_gauge("hisparse_host_capacity_bytes", host.pages * now.page_bytes)
    told = {} if before is None else {(name, labels): value for name, labels, value in _totals(before)}
    for name, labels, value in _totals(now):
        stats.increase_counter(name, value - told.get((name, labels), 0), labels)


def _totals(stats: CoordinatorStats) -> Iterator[tuple[str, Labels, int]]:
    """Yield every counter: its name, label values and total."""
    yield "hisparse_host_prefix_queried_tokens_total", (), stats.prefix_queried_tokens
    yield "hisparse_host_prefix_hit_tokens_total", (), stats.prefix_hit_tokens
    for name, value in _plain_totals(stats.totals):
        yield f"hisparse_host_{name}_total", (), value
    for name, values in _labelled_totals(stats.totals):
        for label, value in values.items():
            yield f"hisparse_host_{name}_total", (label,), value


def _plain_totals(totals: Counters) -> Iterator[tuple[str, int]]:
    yield "restored_pages", totals.restored_pages
    yield "restored_bytes", totals.restored_bytes
    yield "reused_pages", totals.reused_pages
    yield "adopted_pages", totals.adopted_pages
    yield "preempted_requests", totals.preemptions
    yield "activated_requests", totals.activations


def _labelled_totals(totals: Counters) -> Iterator[tuple[str, dict[str, int]]]:
    yield "spilled_pages", totals.spilled_pages
    yield "spilled_bytes", totals.spilled_bytes
    yield "failed_transfers", totals.failed_transfers
    yield "acknowledgement_errors", totals.ignored
    yield "refused_requests", totals.refused
