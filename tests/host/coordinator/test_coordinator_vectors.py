"""Cases that other implementations of the same idea assert, with pages of 16 rows."""

import pytest
from few_steps import PAGE_ROWS, answer, compute, fill, is_empty, make, make_keys, step

from hisparse.errors import HostPoolFullError
from hisparse.host.coordinator import ResidencyUpdate, split_rows, written_rows


def test_drafts_do_not_make_a_page_full() -> None:
    """Two pages of which the last three rows are drafts: one whole page is copied."""
    coordinator = make(spill="pressure")
    coordinator.admit("a", max_positions=320)
    coordinator.append("a", 2 * PAGE_ROWS - 3, lookahead=3)
    coordinator.plan_step()
    coordinator.finish("a")
    plan = coordinator.plan_step()
    assert [(transfer.first_row, transfer.rows) for transfer in plan.transfers] == [(0, PAGE_ROWS)]


def test_rejected_drafts_are_never_copied() -> None:
    """Rows behind the accepted length are in no copy; they are copied once they are accepted."""
    coordinator = make()
    coordinator.admit("a", max_positions=320)
    coordinator.append("a", 29, lookahead=3)
    copied = [(t.first_row, t.rows) for t in coordinator.plan_step().transfers]
    assert copied == [(0, 16), (0, 13)]
    coordinator.append("a", 31, lookahead=3)
    assert [(t.first_row, t.rows) for t in coordinator.plan_step().transfers] == [(13, 2)]


def test_rows_split_at_page_edges() -> None:
    """Four rows from row 14 are two in one page and two in the next."""
    assert list(split_rows(14, 4, PAGE_ROWS)) == [(0, 14, 2), (1, 0, 2)]


@pytest.mark.parametrize(("placeholders", "expected"), [(3, (100, 11)), (1, (102, 9))])
def test_unknown_tokens_are_written_again(placeholders: int, expected: tuple[int, int]) -> None:
    """A step writes from the first token that is not known yet to the last draft."""
    window = written_rows(computed=103, placeholders=placeholders, lookahead=4, scheduled=4)
    assert window == expected


def test_a_page_taken_for_others_is_told_as_a_change() -> None:
    """The update names the page that changed only; a request that begins again is told its whole row."""
    coordinator = make(device_pages=12, hot_pages=2, watermark_pages=3)
    coordinator.admit("a", max_positions=320)
    for length in range(PAGE_ROWS, 11 * PAGE_ROWS, PAGE_ROWS):
        compute(coordinator, "a", length)
    step(coordinator)
    before = coordinator.stats()
    assert (before.device_pages["loose"], before.device_pages["blank"]) == (8, 0)
    coordinator.admit("b", max_positions=PAGE_ROWS)
    coordinator.append("b", 1)
    told = {update.request: update for update in step(coordinator).residency}
    assert told["a"] == ResidencyUpdate("a", [0], [-1])
    assert told["b"].pages is None
    coordinator.preempt("a")
    assert coordinator.resume("a") == 10 * PAGE_ROWS
    (again,) = step(coordinator).residency
    assert again.pages is None
    assert len(again.device_pages) == 10


def test_the_budget_spreads_copies_over_steps() -> None:
    """With a budget of one page a step, two pages take two steps and two ids, the second without a new token."""
    coordinator = make(max_spill_pages=1)
    coordinator.admit("a", max_positions=320)
    coordinator.append("a", 2 * PAGE_ROWS)
    first, second, third = (coordinator.plan_step().transfers for _ in range(3))
    assert [len(first), len(second), len(third)] == [1, 1, 0]
    assert first[0].id != second[0].id


def test_a_long_prompt_does_not_hold_up_others() -> None:
    """While the pages of a prompt wait for the budget, single rows of others are copied and pages take turns."""
    coordinator = make(max_spill_pages=1)
    for name, length in (("prompt", 160), ("a", 20), ("b", 3)):
        coordinator.admit(name, max_positions=320)
        coordinator.append(name, length)
    copied = [[(t.request, t.rows) for t in step(coordinator).transfers] for _ in range(3)]
    assert copied == [[("prompt", 16), ("b", 3)], [("a", 16), ("a", 4)], [("prompt", 16)]]


def test_a_repeated_completion_is_harmless() -> None:
    """A transfer that was acknowledged is free of it, however often it is acknowledged again."""
    coordinator = make()
    coordinator.admit("a", max_positions=320)
    plan = compute(coordinator, "a", 40)
    before = coordinator.stats()
    for transfer in plan.transfers:
        coordinator.acknowledge(transfer.id)
        coordinator.acknowledge(transfer.id)
    after = coordinator.stats()
    assert after.totals.ignored == {"duplicate": 2 * len(plan.transfers), "unknown": 0}
    assert (after.device_pages, after.pages_by_state) == (before.device_pages, before.pages_by_state)
    coordinator.check()


def test_an_id_can_be_used_again_at_once() -> None:
    """A request takes the id of one whose copies are still on their way; both end clean."""
    coordinator = make()
    coordinator.admit("a", max_positions=320)
    coordinator.append("a", 40)
    plan = coordinator.plan_step()
    coordinator.finish("a")
    assert coordinator.admit("a", max_positions=64).prefix_positions == 0
    compute(coordinator, "a", 17)
    answer(coordinator, plan)
    assert coordinator.length_of("a") == 17
    coordinator.finish("a")
    assert is_empty(coordinator)


@pytest.mark.parametrize(("ending", "published"), [("finish", 2), ("abort", 2), (None, 0)])
def test_the_end_publishes_full_pages(ending: str | None, published: int) -> None:
    """Of 33 tokens, a finished or aborted request publishes two pages, a running one none."""
    coordinator = make(spill="pressure")
    keys = make_keys(2)
    coordinator.admit("a", max_positions=320, keys=keys)
    compute(coordinator, "a", 33)
    if ending:
        getattr(coordinator, ending)("a")
    step(coordinator)
    assert coordinator.admit("b", max_positions=320, keys=keys).prefix_positions == published * PAGE_ROWS


@pytest.mark.parametrize(("device_pages", "row"), [(7, [-1, -1]), (10, [0, 1])])
def test_copies_that_survive_are_adopted_after_allocation(device_pages: int, row: list[int]) -> None:
    """With 7 free pages a prefix's device copies are taken before they can be adopted, with 10 they are adopted."""
    coordinator = make(device_pages=device_pages, hot_pages=4)
    keys = make_keys(2)
    coordinator.admit("a", max_positions=33, keys=keys)
    compute(coordinator, "a", 32)
    coordinator.finish("a")
    step(coordinator)
    assert coordinator.admit("b", max_positions=320, keys=keys).prefix_positions == 32
    coordinator.append("b", 80)
    (told,) = step(coordinator).residency
    assert told.device_pages[:2] == row
    assert coordinator.stats().totals.adopted_pages == len([page for page in row if page >= 0])


def test_reused_copies_are_read_on_the_host() -> None:
    """A prefix of three pages whose device copies were all taken has no device page."""
    coordinator = make(device_pages=8, hot_pages=5)
    keys = make_keys(3)
    coordinator.admit("a", max_positions=48, keys=keys)
    compute(coordinator, "a", 48)
    coordinator.finish("a")
    coordinator.admit("b", max_positions=128)
    fill(coordinator, "b", 128)
    coordinator.abort("b")
    step(coordinator)
    coordinator.admit("c", max_positions=320, keys=keys)
    (told,) = step(coordinator).residency
    assert told.device_pages == [-1, -1, -1]


def test_a_failed_restore_leaves_nothing() -> None:
    """A request whose prefix cannot be restored fails, and everything is as if it had never come."""
    coordinator = make(device_pages=8, workers=2)
    keys = make_keys(2)
    coordinator.admit("a", max_positions=48, keys=keys)
    coordinator.append("a", 32)
    answer(coordinator, coordinator.plan_step(), workers=2)
    coordinator.finish("a")
    coordinator.admit("other", max_positions=128)
    fill(coordinator, "other", 128, workers=2)
    coordinator.finish("other")
    step(coordinator, workers=2)
    before = coordinator.stats()
    coordinator.admit("b", max_positions=33, keys=keys)
    plan = coordinator.plan_step()
    assert [transfer.kind for transfer in plan.transfers] == ["restore", "restore"]
    assert plan.waiting == ["b"]
    coordinator.acknowledge(plan.transfers[0].id, 0)
    for transfer in plan.transfers:
        coordinator.fail_transfer(transfer.id)
    coordinator.fail("b")
    after = coordinator.stats()
    assert is_empty(coordinator)
    assert after.host == before.host
    assert after.totals.failed_transfers == {"spill": 0, "restore": 2}


def test_a_prefix_needs_room_to_go_on() -> None:
    """A prefix of four pages and two pages more need six host pages; five are refused, with both numbers."""
    for host_pages in (5, 6):
        coordinator = make(host_pages=host_pages)
        keys = make_keys(4)
        coordinator.admit("a", max_positions=64, keys=keys)
        compute(coordinator, "a", 64)
        coordinator.finish("a")
        if host_pages == 6:
            assert coordinator.admit("b", max_positions=96, keys=keys).prefix_positions == 64
        else:
            with pytest.raises(HostPoolFullError, match="6 pages needed, 5 free of 5"):
                coordinator.admit("b", max_positions=96, keys=keys)
            assert is_empty(coordinator)


def test_a_preempted_prefill_resumes_behind_its_first_durable_chunk() -> None:
    """Of two chunks only the first is on the host when the request is preempted: it goes on behind that."""
    coordinator = make()
    coordinator.admit("a", max_positions=320)
    compute(coordinator, "a", 2 * PAGE_ROWS)
    coordinator.append("a", 4 * PAGE_ROWS)
    late = coordinator.plan_step()
    coordinator.preempt("a", flush=False)
    assert coordinator.resume("a") == 2 * PAGE_ROWS
    answer(coordinator, late)
    coordinator.check()
    assert coordinator.length_of("a") == 2 * PAGE_ROWS


def test_a_reset_drops_the_copies() -> None:
    """After a reset neither host pages nor device copies of before are found."""
    coordinator = make()
    keys = make_keys(2)
    coordinator.admit("a", max_positions=48, keys=keys)
    compute(coordinator, "a", 48)
    coordinator.finish("a")
    assert coordinator.stats().device_pages["loose"] == 2
    coordinator.reset()
    assert coordinator.stats().device_pages["loose"] == 0
    assert coordinator.admit("b", max_positions=48, keys=keys).prefix_positions == 0


def test_an_exhausted_host_pool_defers_and_never_falls_back() -> None:
    """A request that does not fit the host pool is refused although the device is empty; it fits later."""
    coordinator = make(host_pages=10)
    coordinator.admit("a", max_positions=128)
    with pytest.raises(HostPoolFullError, match=r"3 pages needed, 2 free of 10.*raise host_pool_bytes"):
        coordinator.admit("b", max_positions=48)
    coordinator.finish("a")
    assert coordinator.admit("b", max_positions=48).host_pages == 3
