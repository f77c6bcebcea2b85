"""What tests of a coordinator write often."""

from contextlib import suppress
from typing import Any

from hisparse.errors import DevicePagesFullError
from hisparse.host.coordinator import HiSparseCoordinator, StepPlan
from hisparse.host.ledger import PageLedger

PAGE_ROWS = 16


def make(
    *, host_pages: int = 64, device_pages: int = 32, hot_pages: int = 4, page_rows: int = PAGE_ROWS, **settings: Any
) -> HiSparseCoordinator:
    """Return a coordinator with pages of 16 rows."""
    return HiSparseCoordinator(
        ledger=PageLedger(host_pages, page_rows),
        device_pages=device_pages,
        page_rows=page_rows,
        hot_pages=hot_pages,
        **settings,
    )


def make_keys(num_pages: int, name: str = "prompt") -> list[bytes]:
    """Return keys of a prompt's pages."""
    return [f"{name} {page}".encode().ljust(32, b".") for page in range(num_pages)]


def answer(coordinator: HiSparseCoordinator, plan: StepPlan, workers: int = 1) -> None:
    """Let all workers acknowledge a plan."""
    for transfer in plan.transfers:
        for worker in range(workers):
            coordinator.acknowledge(transfer.id, worker)


def step(coordinator: HiSparseCoordinator, workers: int = 1) -> StepPlan:
    """Plan, acknowledge all of it, recount; returns the plan."""
    plan = coordinator.plan_step()
    answer(coordinator, plan, workers)
    coordinator.check()
    return plan


def compute(coordinator: HiSparseCoordinator, request: str, length: int) -> StepPlan:
    """Let a request have a length and compute it."""
    coordinator.append(request, length)
    return step(coordinator)


def fill(
    coordinator: HiSparseCoordinator, request: str, length: int, *, rows: int = PAGE_ROWS, workers: int = 1
) -> None:
    """Compute a request up to a length, some rows a step; wait where the device is full."""
    steps = 0
    while (now := coordinator.length_of(request)) < length:
        steps += 1
        assert steps < 1000
        with suppress(DevicePagesFullError):
            coordinator.append(request, min(length, now + rows))
        step(coordinator, workers)


def is_empty(coordinator: HiSparseCoordinator) -> bool:
    """Whether nobody holds, promised or waits for anything."""
    coordinator.check()
    stats = coordinator.stats()
    uses = stats.device_pages
    return (
        not any([*stats.requests.values(), *stats.pages_by_state.values(), stats.pending_transfers])
        and (stats.host.pinned, stats.host.reserved) == (0, 0)
        and (uses["resident"], uses["hot"], uses["leaving"]) == (0, 0, 0)
    )
