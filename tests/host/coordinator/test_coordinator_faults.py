"""Faults that were reported elsewhere: requests that end at a bad moment, pools that run full, copies that fail."""

import pytest
from few_steps import PAGE_ROWS, answer, compute, fill, is_empty, make, make_keys, step

from hisparse.errors import DevicePagesFullError, HostPoolFullError, PositionError, SettingError, StateError
from hisparse.host.coordinator import StepPlan


@pytest.mark.parametrize("is_acknowledged_first", [True, False])
def test_a_preempted_request_comes_back_while_its_copies_fly(is_acknowledged_first: bool) -> None:  # noqa: FBT001  a parameter
    """Preempted with copies in flight and resumed, before or after they land, a request ends with nothing held."""
    coordinator = make(host_pages=60, page_rows=4)
    keys = make_keys(3)
    coordinator.admit("a", max_positions=40, keys=keys)
    coordinator.append("a", 12)
    plan = coordinator.plan_step()
    coordinator.preempt("a")
    if is_acknowledged_first:
        answer(coordinator, plan)
    assert coordinator.resume("a") == (12 if is_acknowledged_first else 0)
    coordinator.append("a", 14)
    again = coordinator.plan_step()
    if not is_acknowledged_first:
        answer(coordinator, plan)
    coordinator.check()
    answer(coordinator, again)
    for _ in range(3):
        step(coordinator)
    coordinator.finish("a")
    assert is_empty(coordinator)
    assert coordinator.admit("b", max_positions=40, keys=keys).prefix_positions == 12


def test_a_request_that_was_never_admitted_can_be_aborted() -> None:
    """Aborting a queued request is harmless, and so is aborting it twice."""
    coordinator = make()
    coordinator.abort("never seen")
    coordinator.admit("a", max_positions=160, keys=make_keys(10))
    coordinator.abort("a")
    coordinator.abort("a")
    assert step(coordinator).transfers == []
    assert is_empty(coordinator)


def test_only_pages_that_have_rows_are_copied() -> None:
    """A request with ten keys and four pages of rows copies four."""
    coordinator = make(spill="pressure")
    coordinator.admit("a", max_positions=160, keys=make_keys(10))
    compute(coordinator, "a", 4 * PAGE_ROWS + 3)
    coordinator.finish("a")
    assert len(step(coordinator).transfers) == 4
    assert is_empty(coordinator)


def test_every_page_is_copied_once_across_a_preemption() -> None:
    """Six of ten pages are copied, the request is preempted and resumed: the other four follow, none twice."""
    coordinator = make(max_spill_pages=6)
    keys = make_keys(10)
    coordinator.admit("a", max_positions=160, keys=keys)
    coordinator.append("a", 160)
    first = step(coordinator).transfers
    coordinator.preempt("a", flush=False)
    assert coordinator.resume("a") == 96
    step(coordinator)
    coordinator.append("a", 160)
    second = step(coordinator).transfers
    assert [len(first), len(second)] == [6, 4]
    assert len({transfer.host_page for transfer in first + second}) == 10
    assert coordinator.durable_positions("a") == 160


def test_a_refused_request_does_not_hold_up_the_next() -> None:
    """Of three requests the second does not fit the host pool; the third does, and all stays consistent."""
    coordinator = make(host_pages=10)
    coordinator.admit("a", max_positions=80)
    with pytest.raises(HostPoolFullError):
        coordinator.admit("b", max_positions=160)
    coordinator.admit("c", max_positions=80)
    for request in ("a", "c"):
        coordinator.append(request, 80)
    step(coordinator)
    assert coordinator.stats().totals.spilled_pages["eager"] == 10


@pytest.mark.parametrize("spill", ["eager", "pressure"])
def test_all_pages_are_found_after_a_request_ends(spill: str) -> None:
    """Of 217 pages computed 16 a step, all 217 are found by the next request."""
    coordinator = make(host_pages=500, device_pages=100, max_spill_pages=16, spill=spill)
    keys = make_keys(217)
    coordinator.admit("a", max_positions=218 * PAGE_ROWS, keys=keys)
    fill(coordinator, "a", 217 * PAGE_ROWS, rows=16 * PAGE_ROWS)
    coordinator.finish("a")
    for _ in range(20):
        step(coordinator)
    assert coordinator.admit("b", max_positions=218 * PAGE_ROWS, keys=keys).prefix_positions == 217 * PAGE_ROWS


def test_a_reset_while_copies_fly_leaves_no_trace_of_before() -> None:
    """After a reset with copies in flight nothing of before is published, nor by the requests that go on."""
    coordinator = make(device_pages=20, hot_pages=2)
    keys, others = make_keys(4), make_keys(2, "other")
    coordinator.admit("a", max_positions=64, keys=keys)
    coordinator.append("a", 64)
    plan = coordinator.plan_step()
    coordinator.admit("b", max_positions=64, keys=others)
    coordinator.append("b", 32)
    late = coordinator.plan_step()
    coordinator.reset()
    coordinator.finish("b")
    answer(coordinator, plan)
    answer(coordinator, late)
    step(coordinator)
    coordinator.append("a", 64, keys=keys)
    coordinator.finish("a")
    assert is_empty(coordinator)
    for name, asked in (("c", keys), ("d", others)):
        assert coordinator.admit(name, max_positions=64, keys=asked).prefix_positions == 0


def test_waiting_requests_do_not_lock_each_other_out() -> None:
    """Many requests that each want more than their share all come to an end, one hot buffer's worth being spare."""
    coordinator = make(host_pages=400, device_pages=40, hot_pages=4)
    names = [f"request {number}" for number in range(5)]
    for name in names:
        coordinator.admit(name, max_positions=40 * PAGE_ROWS)
    lengths = dict.fromkeys(names, 0)
    for _ in range(400):
        for name in names:
            try:
                coordinator.append(name, min(lengths[name] + 2 * PAGE_ROWS, 40 * PAGE_ROWS))
                lengths[name] = coordinator.length_of(name)
            except DevicePagesFullError:
                continue
        step(coordinator)
    assert set(lengths.values()) == {40 * PAGE_ROWS}


def test_host_room_is_counted_before_a_request_begins() -> None:
    """Of requests of 63,000 tokens three fit a pool of 245,760; the fourth waits for one to end; nothing is lost."""
    coordinator = make(host_pages=3840, device_pages=400, hot_pages=64, page_rows=64)
    for name in "abc":
        coordinator.admit(name, max_positions=63_000)
    with pytest.raises(HostPoolFullError, match="985 pages needed, 885 free of 3840"):
        coordinator.admit("d", max_positions=63_000)
    coordinator.finish("a")
    coordinator.admit("d", max_positions=63_000)
    for name in "bcd":
        coordinator.finish(name)
    for number in range(100):
        coordinator.admit(f"request {number}", max_positions=63_000)
        compute(coordinator, f"request {number}", 640)
        coordinator.finish(f"request {number}")
    assert is_empty(coordinator)


def test_device_room_is_counted_before_a_request_begins() -> None:
    """A device with room for three floors refuses the fourth with the numbers, and takes it when one has ended."""
    coordinator = make(host_pages=400, device_pages=21, hot_pages=4)
    for name in "abc":
        assert coordinator.admit(name, max_positions=400).device_pages == 7
    with pytest.raises(DevicePagesFullError, match=r"7 pages needed.* 0 free of 21 .*raise device_pages"):
        coordinator.admit("d", max_positions=400)
    coordinator.finish("b")
    coordinator.admit("d", max_positions=400)


def test_a_long_request_is_measured_by_the_host_pool() -> None:
    """A device of 4096 rows and a host pool of a million take a request of 500,000."""
    coordinator = make(host_pages=15_625, device_pages=100, hot_pages=64, page_rows=64)
    assert coordinator.admit("a", max_positions=500_000).host_pages == 7813


def test_refusals_count_once_however_often_a_request_asks() -> None:
    """A refused request that asks again is one refusal, by its first reason; its prefix counts when it is admitted."""
    coordinator = make(host_pages=8)
    keys = make_keys(4)
    coordinator.admit("a", max_positions=64, keys=keys)
    compute(coordinator, "a", 64)
    coordinator.admit("b", max_positions=64)
    for _ in range(3):
        with pytest.raises(HostPoolFullError):
            coordinator.admit("c", max_positions=80, keys=keys)
    stats = coordinator.stats()
    assert stats.totals.refused == {"host": 1, "device": 0}
    assert (stats.prefix_queried_tokens, stats.prefix_hit_tokens) == (64, 0)
    coordinator.finish("b")
    coordinator.admit("d", max_positions=64, keys=keys, reuse_prefix=False)
    coordinator.finish("d")
    coordinator.finish("a")
    coordinator.admit("c", max_positions=80, keys=keys)
    stats = coordinator.stats()
    assert (stats.prefix_queried_tokens, stats.prefix_hit_tokens) == (128, 64)
    assert stats.totals.refused == {"host": 1, "device": 0}


def test_a_transfer_lands_when_the_last_worker_says_so() -> None:
    """With three workers a page is on the host after three acknowledgements; one worker's repeats do not count."""
    coordinator = make(workers=3)
    coordinator.admit("a", max_positions=64)
    coordinator.append("a", 16)
    (transfer,) = coordinator.plan_step().transfers
    for worker in (0, 0, 2, 2):
        coordinator.acknowledge(transfer.id, worker)
        assert coordinator.durable_positions("a") == 0
    coordinator.acknowledge(transfer.id, 1)
    assert coordinator.durable_positions("a") == 16
    coordinator.acknowledge(999)
    assert coordinator.stats().totals.ignored == {"duplicate": 2, "unknown": 1}
    with pytest.raises(PositionError, match="worker 3 is outside 0 to 2"):
        coordinator.acknowledge(0, 3)


def test_a_failed_copy_is_made_again() -> None:
    """A page whose copy failed stays on the device and is copied whole in the next step."""
    coordinator = make(workers=2)
    coordinator.admit("a", max_positions=64)
    coordinator.append("a", 10)
    (first,) = coordinator.plan_step().transfers
    coordinator.append("a", 16)
    (second,) = coordinator.plan_step().transfers
    coordinator.fail_transfer(first.id, 0)
    for worker in (0, 1):
        coordinator.acknowledge(second.id, worker)
    assert coordinator.plan_step().transfers == []
    coordinator.acknowledge(first.id, 1)
    (again,) = step(coordinator, workers=2).transfers
    assert (again.first_row, again.rows, again.host_page) == (0, 16, first.host_page)
    assert coordinator.durable_positions("a") == 16
    assert coordinator.stats().totals.failed_transfers == {"spill": 1, "restore": 0}


def test_a_failing_request_keeps_what_was_durable() -> None:
    """A request that fails copies nothing more; the pages that were on the host are found."""
    coordinator = make()
    keys = make_keys(4)
    coordinator.admit("a", max_positions=64, keys=keys)
    compute(coordinator, "a", 32)
    coordinator.append("a", 64)
    plan = coordinator.plan_step()
    for transfer in plan.transfers:
        coordinator.fail_transfer(transfer.id)
    coordinator.fail("a")
    assert step(coordinator).transfers == []
    assert is_empty(coordinator)
    assert coordinator.admit("b", max_positions=64, keys=keys).prefix_positions == 32


def test_a_device_that_holds_all_keeps_all() -> None:
    """A request whose pages all fit is resident until others come, and makes room for them."""
    coordinator = make(device_pages=24, hot_pages=4)
    coordinator.admit("a", max_positions=20 * PAGE_ROWS)
    fill(coordinator, "a", 16 * PAGE_ROWS, rows=PAGE_ROWS)
    assert coordinator.stats().totals.activations == 0
    before = coordinator.stats().device_pages
    with pytest.raises(DevicePagesFullError, match="7 pages needed"):
        coordinator.admit("b", max_positions=20 * PAGE_ROWS)
    assert coordinator.stats().device_pages == before
    step(coordinator)
    coordinator.admit("b", max_positions=20 * PAGE_ROWS)
    for name in "ab":
        fill(coordinator, name, 20 * PAGE_ROWS, rows=PAGE_ROWS)
    assert coordinator.stats().totals.activations == 2


def test_a_device_of_all_pages_needs_no_hot_buffer() -> None:
    """With as many device pages as a request may have, and hot buffers elsewhere, it never gets one."""
    coordinator = make(device_pages=20, hot_pages=0)
    coordinator.admit("a", max_positions=20 * PAGE_ROWS)
    fill(coordinator, "a", 20 * PAGE_ROWS, rows=3 * PAGE_ROWS)
    stats = coordinator.stats()
    assert (stats.totals.activations, stats.device_pages["resident"]) == (0, 20)


def test_a_full_step_survives_its_bytes() -> None:
    """A plan reads back as it was written; other bytes and other versions are refused."""
    coordinator = make(device_pages=12, hot_pages=2, watermark_pages=6)
    coordinator.admit("a", max_positions=320)
    coordinator.append("a", 100)
    plan = coordinator.plan_step()
    assert plan.transfers
    assert plan.residency
    assert StepPlan.decode(plan.encode()) == plan
    with pytest.raises(ValueError, match="3 bytes are not a step plan"):
        StepPlan.decode(b"abc")
    old = StepPlan(step=1, released=[], activations=[], residency=[], transfers=[], waiting=[], version=7)
    with pytest.raises(ValueError, match="version 7 arrived, this side reads version 1"):
        StepPlan.decode(old.encode())


def test_calls_that_do_not_fit_change_nothing() -> None:
    """Unknown names, shorter lengths, longer ones than promised and wrong settings are told in a sentence."""
    coordinator = make()
    coordinator.admit("a", max_positions=64)
    coordinator.append("a", 20)
    with pytest.raises(StateError, match="'a' is admitted already"):
        coordinator.admit("a", max_positions=64)
    with pytest.raises(StateError, match="'b' is not admitted"):
        coordinator.finish("b")
    with pytest.raises(StateError, match="'a' runs; only a preempted request"):
        coordinator.resume("a")
    with pytest.raises(PositionError, match="below the 20 that"):
        coordinator.append("a", 19)
    with pytest.raises(HostPoolFullError, match=r"append to 65 positions exceeds the 64 .4 pages."):
        coordinator.append("a", 65)
    coordinator.preempt("a")
    with pytest.raises(StateError, match="'a' was preempted; resume it first"):
        coordinator.append("a", 21)
    coordinator.abort("a")
    assert is_empty(coordinator)
    with pytest.raises(SettingError, match=r"device_pages must be at least 7 .*got 6"):
        make(device_pages=6)
    with pytest.raises(SettingError, match="spill must be 'eager' or 'pressure', got 'never'"):
        make(spill="never")


def test_new_rows_wait_for_the_copies_of_old_ones() -> None:
    """A row computed again after a preemption is copied only when the copy of its first life has landed."""
    coordinator = make()
    coordinator.admit("a", max_positions=64)
    coordinator.append("a", 10)
    (old,) = coordinator.plan_step().transfers
    coordinator.preempt("a")
    assert coordinator.resume("a") == 0
    coordinator.append("a", 16)
    assert coordinator.plan_step().transfers == []
    coordinator.acknowledge(old.id)
    (new,) = step(coordinator).transfers
    assert (new.host_page, new.rows) == (old.host_page, 16)
    assert new.device_page != old.device_page


def test_a_waiting_request_gives_up_what_cannot_be_copied() -> None:
    """Of three pages spilled at a preemption the second fails: the first is kept, and no device page is held."""
    coordinator = make(spill="pressure")
    coordinator.admit("a", max_positions=64)
    compute(coordinator, "a", 50)
    coordinator.preempt("a")
    first, second, third = coordinator.plan_step().transfers
    for transfer in (first, third):
        coordinator.acknowledge(transfer.id)
    coordinator.fail_transfer(second.id)
    coordinator.check()
    stats = coordinator.stats()
    assert (stats.device_pages["leaving"], stats.device_pages["resident"]) == (0, 0)
    assert stats.totals.spilled_pages["preempt"] == 2
    assert step(coordinator).transfers == []
    assert coordinator.resume("a") == 16


def test_a_page_is_not_found_on_the_device_before_it_is_restored() -> None:
    """A page that is published while it is being restored is found on the host only, until the restore has landed."""
    coordinator = make(device_pages=12)
    keys = make_keys(2)
    coordinator.admit("a", max_positions=64)
    compute(coordinator, "a", 40)
    coordinator.preempt("a")
    coordinator.admit("other", max_positions=320)
    fill(coordinator, "other", 320)
    coordinator.finish("other")
    step(coordinator)
    assert coordinator.resume("a") == 32
    plan = coordinator.plan_step()
    coordinator.append("a", 33, keys=keys)
    assert (plan.waiting, [transfer.kind for transfer in plan.transfers]) == (["a"], ["restore", "restore"])
    assert coordinator.admit("b", max_positions=320, keys=keys).prefix_positions == 32
    later = coordinator.plan_step()
    assert [activation.request for activation in later.activations] == ["b"]
    assert [update.device_pages for update in later.residency if update.request == "b"] == [[-1, -1]]
    answer(coordinator, plan)
    assert step(coordinator).waiting == []
    coordinator.abort("b")
    coordinator.admit("c", max_positions=320, keys=keys)
    told = {update.request: update.device_pages for update in step(coordinator).residency}
    assert told["c"] == [transfer.device_page for transfer in plan.transfers]
