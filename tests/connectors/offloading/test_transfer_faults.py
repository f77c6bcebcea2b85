"""Measurements and payloads in which a part cannot be used."""

from typing import Any

import pytest
from unreadable import UnreadableError

from hisparse.connectors import DirectionalTransferStats, TransferStats

GOOD = {"size_bytes": 100, "submitted": 4.5, "started": 5, "ended": 7}


def recorded(**changed: Any) -> tuple[TransferStats, DirectionalTransferStats]:
    """Return statistics of one load, and those of their loads."""
    stats = TransferStats()
    stats.record("load", **{**GOOD, **changed})
    return stats, stats.data["load"]


@pytest.mark.parametrize(
    ("changed", "reason", "left"),
    [
        ({"size_bytes": -1}, "negative", (1, 0, 0, 2, 1, 2)),
        ({"size_bytes": 0.5}, "wrong_type", (1, 0, 0, 2, 1, 2)),
        ({"size_bytes": float("nan")}, "not_finite", (1, 0, 0, 2, 1, 2)),
        ({"ended": 4}, "negative", (1, 100, 1, 0, 1, 0)),
        ({"ended": float("inf")}, "not_finite", (1, 100, 1, 0, 1, 0)),
        ({"started": None}, "wrong_type", (1, 100, 1, 0, 0, 0)),
        ({"submitted": 6}, "negative", (1, 100, 1, 2, 0, 2)),
    ],
)
def test_a_bad_part_is_counted_and_costs_itself_alone(
    changed: dict[str, Any], reason: str, left: tuple[float, ...]
) -> None:
    """The transfer counts, with its bytes, time, wait and busy time as far as they are known."""
    stats, one = recorded(**changed)
    assert stats.errors == {reason: 1}
    found = (one.transfers, one.moved_bytes, one.sizes.count, one.moving_seconds, one.waits.count, one.busy_seconds)
    assert found == left


@pytest.mark.parametrize(
    ("failure", "reason", "errors"),
    [
        (ValueError("x"), "ValueError", {}),
        (UnreadableError(), "UnreadableError", {}),
        (TimeoutError, "TimeoutError", {}),
        (3, "other", {"wrong_type": 1}),
        ("x" * 1000, "other", {"out_of_range": 1}),
        ("\ud800", "other", {"wrong_type": 1}),
    ],
)
def test_whatever_says_why_a_failure_counts(failure: Any, reason: str, errors: dict[str, int]) -> None:
    """An error counts by its class; what is no usable word is a failure all the same."""
    stats, one = recorded(failure=failure)
    assert one.failures == {reason: 1}
    assert one.transfers == 0
    assert one.busy_seconds == 2
    assert stats.errors == errors


def test_sums_stay_what_a_receiver_takes() -> None:
    """Of three transfers of 2**52 bytes the third has no room for its bytes; all three arrive."""
    stats = TransferStats()
    for start in range(3):
        stats.record("load", size_bytes=2**52, started=start, ended=start + 1)
    arrived = TransferStats(stats.to_dict())
    assert arrived.data["load"].transfers == 3
    assert arrived.data["load"].moved_bytes == arrived.data["load"].sizes.sum == 2**53
    assert arrived.errors == {"out_of_range": 1}


@pytest.mark.parametrize(
    ("part", "twice"),
    [
        ("transfers", 2**52 + 1),
        ("moved_bytes", 2**52 + 1),
        ("moving_seconds", 2.0**52 + 1),
        ("busy_seconds", 2.0**52 + 1),
        ("sizes", [2.0**52 + 1, 0, 1]),
        ("durations", [1.0, 3, 2**52]),
        ("failures", {"timeout": 2**52 + 1}),
    ],
)
def test_a_merge_refuses_what_could_not_be_sent(part: str, twice: Any) -> None:
    """What twice would be beyond 2**53 is taken once, and the rest of the second payload arrives."""
    stats = TransferStats({"store": {part: twice}})
    stats.aggregate({"store": {part: twice, "waits": [1.0, 3, 1]}})
    assert stats.errors == {"out_of_range": 1}
    assert stats.to_dict()["store"] == {part: twice, "waits": [1.0, 3, 1]}


@pytest.mark.parametrize("buckets", [[18, 2**53] * 2048, [3, 1, 3, 1]])
def test_a_bucket_named_twice_is_refused(buckets: list[int]) -> None:
    """Counts of one bucket given in parts could run into the next one, so they are not read."""
    stats = TransferStats({"load": {"transfers": 1, "durations": [1.0, *buckets]}})
    assert stats.errors == {"bucket_mismatch": 1}
    assert stats.to_dict()["load"] == {"transfers": 1}


def test_an_unreadable_reason_of_a_payload_is_a_failure() -> None:
    """Its count is known, so it counts, as other."""
    stats = TransferStats({"load": {"failures": {3: 2, "timeout": 1}}})
    assert stats.data["load"].failures == {"other": 2, "timeout": 1}
    assert stats.errors == {"wrong_type": 1}
