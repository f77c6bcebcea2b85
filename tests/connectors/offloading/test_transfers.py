"""What a worker measures of its transfers."""

import json
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.connectors import DirectionalTransferStats, TransferStats
from hisparse.connectors.offloading.direction import MAX_FAILURE_REASONS, OTHER_REASON

WIRES: dict[str, Callable[[Any], Any]] = {
    "msgpack": lambda plain: msgspec.msgpack.decode(msgspec.msgpack.encode(plain)),
    "json": lambda plain: json.loads(json.dumps(plain)),
    "pickle": lambda plain: pickle.loads(pickle.dumps(plain)),  # noqa: S301 - the test's own bytes
}


@st.composite
def transfers(draw: st.DrawFn) -> TransferStats:
    """Return statistics of some transfers; times are quarters, which add up exactly in any order."""
    stats = TransferStats()
    for _ in range(draw(st.integers(0, 4))):
        submitted, waited, took = (draw(st.integers(0, 400)) / 4 for _ in range(3))
        stats.record(
            draw(st.sampled_from(["load", "store"])),
            size_bytes=draw(st.integers(0, 2**40)),
            started=submitted + waited,
            ended=submitted + waited + took,
            submitted=submitted if draw(st.booleans()) else None,
            failure=draw(st.sampled_from([None, None, "timeout", "checksum"])),
        )
    return stats


def values(stats: TransferStats) -> dict[tuple[str, tuple[str, ...]], Any]:
    """Return the samples by name and labels, a histogram as count and sum."""
    return {
        (name, labels): value if isinstance(value, int | float) else (value.count, value.sum)
        for name, _, labels, value in stats.samples()
    }


def test_a_transfer_is_counted_under_every_name_of_its_direction() -> None:
    """One load of 100 bytes that took 2 seconds shows in each metric of loads, and in none of stores."""
    stats = TransferStats()
    stats.record("load", size_bytes=100, started=5, ended=7, submitted=4.5)
    assert values(stats) == {
        ("vllm:kv_offload_load_bytes", ()): 100,
        ("vllm:kv_offload_load_time", ()): 2,
        ("vllm:kv_offload_load_size", ()): (1, 100),
        ("hisparse_offload_transfers_total", ("load", "success")): 1,
        ("hisparse_offload_transfer_seconds", ("load",)): (1, 2),
        ("hisparse_offload_transfer_bytes", ("load",)): (1, 100),
        ("hisparse_offload_busy_seconds_total", ("load",)): 2,
        ("hisparse_offload_queue_seconds", ("load",)): (1, 0.5),
    }


def test_both_directions_count() -> None:
    """Storing 8 blocks, loading 5 and storing 2 more gives 10 stores and 5 loads."""
    stats = TransferStats()
    for direction, blocks in (("store", 8), ("load", 5), ("store", 2)):
        for block in range(blocks):
            stats.record(direction, size_bytes=64, started=block, ended=block + 1)
    assert stats.data["store"].transfers == 10
    assert stats.data["load"].transfers == 5
    assert stats.data["store"].moved_bytes == 640


def test_overlapping_transfers_give_the_true_bandwidth() -> None:
    """Four transfers of 100 MB in the same second make 400 MB a busy second, while their times add up to 4."""
    stats = TransferStats()
    for _ in range(4):
        stats.record("store", size_bytes=100_000_000, started=0, ended=1)
    one = stats.data["store"]
    assert one.moved_bytes / one.busy_seconds == 400e6
    assert one.moving_seconds == 4
    other = TransferStats(stats.to_dict())
    assert other.aggregate(stats).data["store"].moved_bytes / other.data["store"].busy_seconds == 400e6


def test_the_wait_in_a_queue_is_no_part_of_the_transfer() -> None:
    """50 ms in the queue and 5 ms of copy are two numbers."""
    stats = TransferStats()
    stats.record("load", size_bytes=1, submitted=1.0, started=1.05, ended=1.055)
    one = stats.data["load"]
    assert one.waits.sum == pytest.approx(0.050)
    assert one.durations.sum == pytest.approx(0.005)


def test_busy_time_is_exact_across_drains() -> None:
    """A transfer that began before a drain and ended after it adds only what the drained ones had not covered."""
    stats = TransferStats()
    stats.record("load", size_bytes=1, started=2, ended=3)
    drained = TransferStats(stats.take())
    assert stats.is_empty()
    stats.record("load", size_bytes=1, started=0, ended=10)
    assert drained.aggregate(stats).data["load"].busy_seconds == 10


@pytest.mark.parametrize("reason", ["not_found", "short_read", "io_error", "timeout", "pool_full", "checksum"])
def test_a_failure_is_counted_once_by_reason(reason: str) -> None:
    """A failed transfer moves no bytes, counts under one reason, and the reasons add up to the failures."""
    stats = TransferStats()
    stats.record("load", size_bytes=100, started=0, ended=1, failure=reason)
    assert values(stats) == {
        ("hisparse_offload_busy_seconds_total", ("load",)): 1,
        ("hisparse_offload_transfers_total", ("load", "failure")): 1,
        ("hisparse_offload_failed_transfers_total", ("load", reason)): 1,
    }


def test_reasons_are_bounded() -> None:
    """Ever new reasons end in one, and no failure is lost."""
    stats = TransferStats()
    for number in range(MAX_FAILURE_REASONS + 10):
        stats.record("load", size_bytes=0, started=0, ended=1, failure=f"errno {number}")
    failures = stats.data["load"].failures
    assert failures[OTHER_REASON] == 10
    assert sum(failures.values()) == MAX_FAILURE_REASONS + 10


def test_reasons_are_bounded_over_drains() -> None:
    """A worker that is drained after each of 200 new reasons names no more of them than one that never is."""
    stats, reasons = TransferStats(), set()
    for number in range(200):
        stats.record("load", size_bytes=0, started=0, ended=1, failure=f"errno {number}")
        reasons |= stats.take()["load"]["failures"].keys()
    assert len(reasons) == MAX_FAILURE_REASONS + 1


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_the_plain_form_travels(wire: Callable[[Any], Any]) -> None:
    """The plain form survives each wire, and a container built from it is equal and merges with a live one."""
    stats = TransferStats()
    stats.record("load", size_bytes=100, started=5, ended=7, submitted=4.5)
    stats.record("store", size_bytes=1, started=5, ended=7, failure="timeout")
    rebuilt = TransferStats(wire(stats.to_dict()))
    assert rebuilt == stats
    assert rebuilt.aggregate(stats).data["load"].moved_bytes == 200


def test_the_plain_form_of_a_step_is_small() -> None:
    """One transfer travels in few numbers: no empty bucket, no bound and no zero."""
    stats = TransferStats()
    stats.record("load", size_bytes=4096, started=5.0, ended=7.0)
    assert stats.to_dict() == {
        "load": {
            "transfers": 1,
            "moved_bytes": 4096,
            "moving_seconds": 2,
            "busy_seconds": 2,
            "sizes": [4096, 2, 1],
            "known_sizes": [4096, 0, 1],
            "durations": [2, 13, 1],
        }
    }


def test_nothing_ended_is_empty() -> None:
    """Statistics without a transfer are empty, also when they are built from nothing."""
    assert TransferStats().is_empty()
    assert TransferStats({}).to_dict() == {}
    assert TransferStats().reduce() == {}


def test_a_summary_names_each_direction_that_moved() -> None:
    """The reduced form has bytes, both times and failures of the directions in which something ended."""
    stats = TransferStats()
    stats.record("load", size_bytes=100, started=5, ended=7)
    assert stats.reduce() == {
        "Offload load bytes": 100,
        "Offload load seconds": 2,
        "Offload load busy seconds": 2,
        "Offload load failures": 0,
    }


@settings(deadline=None)
@given(st.tuples(*[transfers()] * 3))
def test_merging_is_associative_and_commutative(triple: tuple[TransferStats, ...]) -> None:
    """Any grouping and any order of a merge gives the same sums."""
    plain = [stats.to_dict() for stats in triple]
    left = TransferStats(plain[0]).aggregate(plain[1]).aggregate(plain[2])
    right = TransferStats(plain[2]).aggregate(TransferStats(plain[1]).aggregate(plain[0]))
    assert left == right


@pytest.mark.parametrize("direction", ["sideways", ["load"], None])
def test_a_transfer_of_no_direction_is_counted_as_skipped(direction: Any) -> None:
    """What belongs nowhere is left out as a whole."""
    stats = TransferStats()
    stats.record(direction, size_bytes=100, started=5, ended=7)
    assert stats.errors == {"unknown_key": 1}
    assert list(stats.samples()) == []


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"load": 3}, "wrong_type"),
        ({"sideways": {}}, "unknown_key"),
        ({"load": {"newer": 1}}, "unknown_key"),
        ({"load": {"transfers": -1}}, "negative"),
        ({"load": {"moved_bytes": 0.5}}, "wrong_type"),
        ({"load": {"busy_seconds": float("nan")}}, "not_finite"),
        ({"load": {"sizes": 3}}, "wrong_type"),
        ({"load": {"sizes": []}}, "wrong_type"),
        ({"load": {"sizes": [7, 99, 1]}}, "bucket_mismatch"),
        ({"load": {"sizes": [7, 0, -1]}}, "negative"),
        ({"load": {"sizes": [float("inf"), 0, 1]}}, "not_finite"),
        ({"load": {"failures": 3}}, "wrong_type"),
        ({"load": {"failures": {"timeout": -1}}}, "negative"),
        (3, "wrong_type"),
    ],
)
def test_a_foreign_payload_is_read_as_far_as_it_goes(payload: Any, reason: str) -> None:
    """What another version sends is skipped item by item and counted."""
    stats = TransferStats()
    stats.record("load", size_bytes=100, started=5, ended=7)
    assert stats.aggregate(payload).errors == {reason: 1}
    assert stats.data["load"].moved_bytes == 100


def test_memory_does_not_grow_with_transfers() -> None:
    """20,000 transfers that nobody drains, with gaps between them, take no more memory than 2,000."""
    stats = TransferStats()

    def record(count: int, start: int) -> int:
        for number in range(start, start + count):
            stats.record("load", size_bytes=number, started=2 * number, ended=2 * number + 1, submitted=2 * number)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    before = record(2_000, 0)
    after = record(18_000, 2_000)
    tracemalloc.stop()
    assert after - before < 64 * 1024
    assert stats.data["load"].transfers == 20_000
    assert stats.data["load"].busy_seconds == 20_000


def test_documented_sizes_stay_off_the_ends() -> None:
    """Sizes from a row to a big file fall into bounded buckets above the first one."""
    one = DirectionalTransferStats()
    for size_bytes in (656, 1000, 4 * 2**20, 600 * 10**6, 32 * 2**30):
        assert one.succeed(size_bytes, 1.0) == []
    assert one.sizes.counts[0] == one.sizes.counts[-1] == 0
