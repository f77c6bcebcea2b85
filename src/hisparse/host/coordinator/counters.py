"""What a coordinator counts, and the statistics it tells."""

from collections.abc import Callable

import msgspec

from hisparse.telemetry.host_metrics import IGNORED, PAGE_TRANSFERS, REFUSALS, SPILL_REASONS


def _zeros(names: tuple[str, ...]) -> Callable[[], dict[str, int]]:
    return lambda: dict.fromkeys(names, 0)


class Counters(msgspec.Struct, kw_only=True):
    """Totals since the coordinator was made.

    Attributes:
        spilled_pages: Pages that became durable, by reason.
        spilled_bytes: Bytes of their copies, and of copies of parts of pages, by reason.
        restored_pages: Pages copied back to the device.
        restored_bytes: Bytes of those.
        failed_transfers: Transfers that failed, by kind.
        ignored: Acknowledgements without effect, by reason.
        refused: Requests that were refused at least once, by the reason of the first time.
        preemptions: Requests that were preempted.
        activations: Hot buffers given.
        reused_pages: Device pages taken from requests that could still read them.
        adopted_pages: Pages found on the device when their request came.
    """

    spilled_pages: dict[str, int] = msgspec.field(default_factory=_zeros(SPILL_REASONS))
    spilled_bytes: dict[str, int] = msgspec.field(default_factory=_zeros(SPILL_REASONS))
    restored_pages: int = 0
    restored_bytes: int = 0
    failed_transfers: dict[str, int] = msgspec.field(default_factory=_zeros(PAGE_TRANSFERS))
    ignored: dict[str, int] = msgspec.field(default_factory=_zeros(IGNORED))
    refused: dict[str, int] = msgspec.field(default_factory=_zeros(REFUSALS))
    preemptions: int = 0
    activations: int = 0
    reused_pages: int = 0
    adopted_pages: int = 0

    def copy(self) -> "Counters":
        """Return the totals now.  Reads only."""
        return msgspec.convert(msgspec.to_builtins(self), Counters)


class HostLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Pages of the host pool: occupied are `pinned` and `cached`, and only the former cannot give way."""

    pages: int
    pinned: int
    cached: int
    reserved: int


class CoordinatorStats(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator at one moment; plain values, the same in every process.

    Attributes:
        requests: Requests that run, wait and end.
        pages_by_state: Pages of all requests, by state.
        device_pages: Pages of the device, by use; they add up to all of them.
        host: Pages of the host pool.
        pending_transfers: Transfers under way.
        page_bytes: Bytes of one page over all layers, 0 where not told.
        prefix_queried_tokens: Tokens that admitted requests asked the prefix index for.
        prefix_hit_tokens: Tokens of those that it had.
        totals: What was counted.
    """

    requests: dict[str, int]
    pages_by_state: dict[str, int]
    device_pages: dict[str, int]
    host: HostLevel
    pending_transfers: int
    page_bytes: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    totals: Counters
