"""What workers tell the scheduler of one step."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.connectors import OffloadingWorkerMetadata


@st.composite
def reports(draw: st.DrawFn) -> OffloadingWorkerMetadata:
    """Return what one worker says of some jobs."""
    metadata = OffloadingWorkerMetadata()
    for job in draw(st.lists(st.integers(0, 5), max_size=4)):
        size_bytes = draw(st.integers(0, 2**30))
        metadata.transfers.record("load", size_bytes=size_bytes, started=job, ended=job + 1)
        if draw(st.booleans()):
            metadata.complete(job)
        else:
            metadata.fail(job, draw(st.sampled_from(["timeout", "checksum"])))
    return metadata


def test_bytes_add_up_over_workers_and_jobs_count_them() -> None:
    """Two workers that move 64 bytes each for one job moved 128, and the job ended on two."""
    merged = OffloadingWorkerMetadata()
    for _ in range(2):
        worker = OffloadingWorkerMetadata()
        worker.transfers.record("store", size_bytes=64, started=0, ended=1)
        worker.complete(7)
        merged.aggregate(worker)
    assert merged.transfers.data["store"].moved_bytes == 128
    assert merged.completed_jobs == {7: 2}


def test_a_job_that_failed_on_one_worker_is_known_to_have_failed() -> None:
    """A job that succeeded on one worker and failed on another is in both lists, with the reason."""
    merged, other = OffloadingWorkerMetadata(), OffloadingWorkerMetadata()
    merged.complete(7)
    other.fail(7, "timeout")
    merged.aggregate(other)
    assert merged.completed_jobs == {7: 1}
    assert merged.failed_jobs == {7: {"timeout": 1}}


def test_taking_hands_over_everything_once() -> None:
    """What was taken is gone here and complete there, through JSON."""
    metadata = OffloadingWorkerMetadata()
    metadata.complete(1)
    metadata.fail(2, "timeout")
    metadata.transfers.record("load", size_bytes=5, started=0, ended=1)
    there = OffloadingWorkerMetadata().aggregate(json.loads(json.dumps(metadata.take())))
    assert metadata.is_empty()
    assert there.completed_jobs == {1: 1}
    assert there.failed_jobs == {2: {"timeout": 1}}
    assert there.transfers.data["load"].moved_bytes == 5


@settings(deadline=None)
@given(st.tuples(*[reports()] * 3))
def test_workers_merge_in_any_order_and_grouping(triple: tuple[OffloadingWorkerMetadata, ...]) -> None:
    """It does not matter which worker's report comes first, or which were merged before."""
    plain = [metadata.to_dict() for metadata in triple]

    def merged(*parts: Any) -> OffloadingWorkerMetadata:
        total = OffloadingWorkerMetadata()
        for part in parts:
            total.aggregate(part)
        return total

    left = merged(merged(plain[0], plain[1]), plain[2])
    right = merged(plain[2], merged(plain[1], plain[0]))
    assert left == right


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (3, "wrong_type"),
        ({"newer": 1}, "unknown_key"),
        ({"completed_jobs": 3}, "wrong_type"),
        ({"completed_jobs": [[-1, 1]]}, "negative"),
        ({"failed_jobs": [[None, "timeout", 1]]}, "wrong_type"),
        ({"transfers": {"load": {"transfers": -1}}}, "negative"),
    ],
)
def test_a_foreign_report_is_read_as_far_as_it_goes(payload: Any, reason: str) -> None:
    """What another version sends is skipped item by item and counted, and nothing here is lost."""
    metadata = OffloadingWorkerMetadata()
    metadata.complete(1)
    assert metadata.aggregate(payload).transfers.errors == {reason: 1}
    assert metadata.completed_jobs == {1: 1}
    assert metadata.aggregate(None).completed_jobs == {1: 1}


@pytest.mark.parametrize(
    ("completed", "jobs", "errors"),
    [
        ({1: 2, 3: 4}, {1: 2, 3: 4}, {}),
        ({"1": 2}, {1: 2}, {}),
        (None, {}, {}),
        ([[2**63, 1]], {2**63: 1}, {}),
        ([[1]], {1: 1}, {"wrong_type": 1}),
        ([[1, 2, 3]], {1: 1}, {"wrong_type": 1}),
        ([[1, None], [2, 1]], {1: 1, 2: 1}, {"wrong_type": 1}),
    ],
)
def test_a_completed_job_is_not_lost(completed: Any, jobs: dict[int, int], errors: dict[str, int]) -> None:
    """A job holds blocks until it has ended, so its number counts whatever else of the entry is wrong."""
    metadata = OffloadingWorkerMetadata().aggregate({"completed_jobs": completed})
    assert metadata.completed_jobs == jobs
    assert metadata.transfers.errors == errors


@pytest.mark.parametrize(
    ("failed", "jobs", "errors"),
    [
        ({1: {"timeout": 2}}, {1: {"timeout": 2}}, {}),
        ({1: "timeout"}, {1: {"timeout": 1}}, {}),
        ({1: {}}, {1: {"other": 1}}, {"wrong_type": 1}),
        (None, {}, {}),
        ([[1, 2, 1]], {1: {"other": 1}}, {"wrong_type": 1}),
        ([[1]], {1: {"other": 1}}, {"wrong_type": 1}),
        ([[1, "timeout", -1]], {1: {"timeout": 1}}, {"negative": 1}),
    ],
)
def test_a_failed_job_is_not_lost(failed: Any, jobs: dict[int, dict[str, int]], errors: dict[str, int]) -> None:
    """A job that failed failed, whatever is said of the reason and the workers."""
    metadata = OffloadingWorkerMetadata().aggregate({"failed_jobs": failed})
    assert metadata.failed_jobs == jobs
    assert metadata.transfers.errors == errors


def test_a_worker_may_give_the_error_itself() -> None:
    """A job's reason is the class of the error, and what is no job's number is counted."""
    metadata = OffloadingWorkerMetadata()
    metadata.fail(1, TimeoutError("after 3 s"))
    unknown: Any = "job"
    metadata.complete(unknown)
    assert metadata.to_dict()["failed_jobs"] == [[1, "TimeoutError", 1]]
    assert metadata.transfers.errors == {"wrong_type": 1}
