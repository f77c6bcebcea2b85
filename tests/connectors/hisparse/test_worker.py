"""The worker side hands out exactly what was counted, and never blocks a step."""

import numpy as np
import pytest
from faking import GROUPS, Clock, Device, Ledger

from hisparse.connectors import GroupCounterSource, HiSparseConnectorWorker
from hisparse.errors import SettingError
from hisparse.hot import GroupCounters


def worker_of(device: Device, clock: Clock | None = None, *, every_calls: int = 2000) -> HiSparseConnectorWorker:
    """Return a worker with a clock that stands still unless it is moved or waited for."""
    clock = Clock() if clock is None else clock
    return HiSparseConnectorWorker(device, every_calls=every_calls, clock=clock, wait=clock.wait)


def run(worker: HiSparseConnectorWorker, device: Device, ledger: Ledger, steps: int) -> None:
    """Count 12 hits and 4 misses of 16 bytes a step, and ask for statistics after each."""
    for _ in range(steps):
        device.count(12, 4)
        ledger.take(worker.get_kv_connector_stats())


@pytest.mark.parametrize("looks", [0, 1, 700])
@pytest.mark.parametrize("steps", [1, 1999, 2000, 2001, 4001])
def test_totals_are_exact_after_any_run(steps: int, looks: int) -> None:
    """However short the run and however late the device, everything is handed out once, in the end."""
    device, ledger = Device(looks), Ledger()
    worker = worker_of(device)
    run(worker, device, ledger, steps)
    worker.shutdown()
    ledger.take(worker.get_kv_connector_stats())
    assert ledger.selections == (12 * steps, 4 * steps)
    assert ledger.loaded_bytes == 64 * steps
    assert ledger["hisparse_hot_selections_total", "hit", "0"] == 12 * steps
    assert ledger["hisparse_hot_gather_seconds",].count == steps
    assert ledger["hisparse_hot_request_misses_rows",].sum == 4 * steps


def test_the_first_step_is_visible_at_once() -> None:
    """Nobody waits 2001 steps for a first number: the first call samples, the second at the latest shows it."""
    device, ledger = Device(), Ledger()
    run(worker_of(device), device, ledger, 1)
    assert ledger.selections == (12, 4)
    late, ledger = Device(looks=1), Ledger()
    run(worker_of(late), late, ledger, 2)
    assert ledger.selections == (12, 4)


def test_a_shut_down_worker_touches_its_source_no_more() -> None:
    """After the last statistics there are none, and the device is left alone."""
    device, ledger = Device(), Ledger()
    worker = worker_of(device)
    run(worker, device, ledger, 3)
    worker.shutdown()
    ledger.take(worker.get_kv_connector_stats())
    asked = device.requests
    device.count(1, 1)
    worker.shutdown()
    assert [worker.get_kv_connector_stats() for _ in range(2)] == [None, None]
    assert (device.requests, ledger.selections) == (asked, (36, 12))


def test_samples_are_due_by_time_or_by_calls() -> None:
    """Whichever comes first makes a sample due, and both periods begin again with it."""
    device, clock = Device(), Clock()
    worker = worker_of(device, clock, every_calls=4)
    asked = []
    for elapsed in (0, 0.9, 0.05, 0.1, 0, 0.9, 0, 0, 0):
        clock.now += elapsed
        worker.get_kv_connector_stats()
        asked.append(device.requests)
    assert asked == [1, 1, 1, 2, 2, 2, 2, 3, 3]


def test_a_sample_that_cannot_start_is_tried_at_the_next_call() -> None:
    """A capture at the moment a sample is due delays it by the capture, not by a period; each refusal is counted."""
    device, ledger = Device(), Ledger()
    worker = worker_of(device)
    run(worker, device, ledger, 2000)
    device.is_capturing = True
    run(worker, device, ledger, 5)
    assert ledger.selections == (12, 4)
    device.is_capturing = False
    run(worker, device, ledger, 1)
    assert ledger.selections == (12 * 2006, 4 * 2006)
    assert (ledger.samples("refused"), ledger.samples("read")) == (5, 2)


def test_a_sample_due_while_one_is_on_its_way_is_asked_for_when_that_is_read() -> None:
    """Two copies are never on their way; the second begins in the call that reads the first."""
    device, clock, ledger = Device(looks=3), Clock(), Ledger()
    worker = worker_of(device, clock)
    asked = []
    for _ in range(7):
        run(worker, device, ledger, 1)
        clock.now += 1
        asked.append((device.requests, ledger.selections[0]))
    assert asked == [(1, 0), (1, 0), (1, 0), (2, 12), (2, 12), (2, 12), (3, 48)]


def test_an_event_that_never_completes_stops_nothing() -> None:
    """Steps go on, the age grows, looks are counted, and the numbers that are out stay what they were."""
    device, clock, ledger = Device(), Clock(), Ledger()
    worker = worker_of(device, clock)
    run(worker, device, ledger, 1)
    device.looks = 10**9
    ages = []
    for _ in range(50):
        clock.now += 0.5
        run(worker, device, ledger, 1)
        ages.append(ledger.age)
    assert device.requests == 2
    assert ages[-1] == pytest.approx(24, abs=1)
    assert ages == sorted(ages)
    assert ledger.samples("pending") == pytest.approx(48, abs=2)
    assert ledger.selections == (12, 4)


def test_the_age_falls_when_a_late_sample_arrives() -> None:
    """The gauge says 0 again as soon as nothing is waited for."""
    device, clock, ledger = Device(looks=3), Clock(), Ledger()
    worker = worker_of(device, clock)
    ages = []
    for _ in range(5):
        run(worker, device, ledger, 1)
        ages.append(ledger.age)
        clock.now += 2
        device.looks = 0
    assert ages == [0, 2, 4, 0, 0]


def test_a_flush_waits_no_longer_than_it_may() -> None:
    """A flush returns at its deadline; what it could not get is counted, and handed out when it arrives."""
    device, clock, ledger = Device(looks=10**9), Clock(), Ledger()
    worker = HiSparseConnectorWorker(device, flush_seconds=0.25, clock=clock, wait=clock.wait)
    run(worker, device, ledger, 1)
    before = clock.now
    worker.flush()
    assert clock.now - before == pytest.approx(0.25, abs=0.002)
    ledger.take(worker.get_kv_connector_stats())
    assert (ledger.selections, ledger.samples("pending")) == ((0, 0), 2)
    assert ledger.age == pytest.approx(0.25, abs=0.002)


def test_a_reset_keeps_every_count() -> None:
    """Counts from before a reset, also those nobody has sampled, stay, and totals go on from there."""
    device, ledger = Device(looks=2), Ledger()
    worker = worker_of(device)
    for steps in (1, 7, 2003):
        run(worker, device, ledger, steps)
        worker.flush()
        device.reset()
    run(worker, device, ledger, 3)
    worker.shutdown()
    ledger.take(worker.get_kv_connector_stats())
    assert ledger.selections == (12 * 2014, 4 * 2014)
    assert ledger.loaded_bytes == 64 * 2014


def test_a_sample_of_before_a_reset_counts_for_before() -> None:
    """A copy that arrives after the counters were set to zero adds to what was handed out before it."""
    device, clock, ledger = Device(looks=0), Clock(), Ledger()
    worker = worker_of(device, clock)
    run(worker, device, ledger, 1)
    device.looks = 3
    clock.now += 1
    run(worker, device, ledger, 1)
    device.reset()
    device.looks = 0
    for _ in range(3):
        clock.now += 1
        run(worker, device, ledger, 1)
    assert ledger.selections == (12 * 5, 4 * 5)


def test_a_device_that_fails_ends_no_step() -> None:
    """An error while sampling is counted, not passed on, and the next sample contains what this one would have."""
    device, clock, ledger = Device(error=OSError("no device")), Clock(), Ledger()
    worker = worker_of(device, clock)
    run(worker, device, ledger, 3)
    device.error = None
    clock.now += 1
    run(worker, device, ledger, 1)
    assert ledger.selections == (48, 16)
    assert ledger.errors == {"internal": 1}


def test_nothing_is_said_twice_and_idling_says_only_that_samples_are_read() -> None:
    """Samples of a worker that selects nothing carry no selections, so that an idle engine logs nothing."""
    device, clock, ledger = Device(), Clock(), Ledger()
    worker = worker_of(device, clock)
    run(worker, device, ledger, 1)
    for _ in range(5):
        clock.now += 1
        stats = worker.get_kv_connector_stats()
        assert stats is not None
        assert stats.reduce() == {}
        ledger.take(stats)
    assert ledger.selections == (12, 4)
    assert ledger.samples("read") == 6


def test_two_readers_share_what_there_is() -> None:
    """Whoever asks gets what nobody had before: two collectors of one idle worker do not double it."""
    device, clock, ledger = Device(), Clock(), Ledger()
    worker = worker_of(device, clock)
    device.count(5, 0)
    for _ in range(5):
        for _collector in range(2):
            ledger.take(worker.get_kv_connector_stats())
            worker.flush()
        clock.now += 1
    assert ledger.selections == (5, 0)


def test_counters_of_this_process_are_read_at_once() -> None:
    """Index groups on the host need no second phase, and counts from before the source are somebody else's."""
    counters = [GroupCounters(requests=1, layers=len(members)) for members in GROUPS]
    count(counters[0], 1, 2)
    source = GroupCounterSource(GROUPS, counters, link_bytes_per_second=lambda: 5e9)
    worker, ledger = HiSparseConnectorWorker(source, clock=Clock()), Ledger()
    count(counters[0], 12, 4)
    count(counters[1], 3, 1)
    counters[1].record_store(0, 96)
    ledger.take(worker.get_kv_connector_stats())
    assert ledger.selections == (15, 5)
    assert ledger["hisparse_hot_selections_total", "miss", "1"] == 1
    assert ledger["hisparse_hot_copied_bytes_total", "host_to_device", "2"] == 10
    assert ledger["hisparse_hot_copied_bytes_total", "device_to_host", "2"] == 96
    assert ledger["hisparse_hot_request_misses_rows",].count == 2
    assert ledger["hisparse_host_link_bytes_per_second",] == 5e9


def test_a_link_that_cannot_be_measured_costs_no_counts() -> None:
    """Where the speed of the link raises, it is not told, and everything else is."""

    def refuse() -> float:
        raise OSError("no memory to measure with")

    counters = [GroupCounters(requests=1, layers=len(members)) for members in GROUPS]
    source = GroupCounterSource(GROUPS, counters, link_bytes_per_second=refuse)
    worker, ledger = HiSparseConnectorWorker(source, clock=Clock()), Ledger()
    count(counters[0], 12, 4)
    ledger.take(worker.get_kv_connector_stats())
    assert ledger.selections == (12, 4)
    assert ("hisparse_host_link_bytes_per_second",) not in ledger.totals


def count(counters: GroupCounters, hits: int, misses: int) -> None:
    """Count one step of one request, and a gather of 10 bytes a miss in the group's first layer."""
    counters.record_selection(np.array([0], np.int32), np.array([[hits, misses, 0, 0]], np.int64), hits + misses)
    counters.record_load(0, 10 * misses, 0.001)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"every_seconds": 0}, "every_seconds must be > 0, got 0"),
        ({"every_seconds": float("nan")}, "every_seconds must be > 0, got nan"),
        ({"every_calls": 0}, "every_calls must be at least 1, got 0"),
        ({"flush_seconds": -1}, "flush_seconds must be >= 0, got -1"),
    ],
)
def test_periods_without_meaning_are_refused(setting: dict[str, float], said: str) -> None:
    """A period that can't be is refused with its name and value."""
    with pytest.raises(SettingError, match=said):
        HiSparseConnectorWorker(Device(), **setting)  # type: ignore[arg-type] # one of several settings
