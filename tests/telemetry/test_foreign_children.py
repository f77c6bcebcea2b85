"""A child whose class fails costs itself alone, whatever it raises, and its process goes on."""

import logging
from typing import Any

import numpy as np
import pytest
from authors import HITS, MOVED, Authors, Silent, UnspeakableError, errors, fails, pipe, total

from hisparse.telemetry import HiSparseKVConnectorStats, OffloadingConnectorStats, Sample, SkipReason
from hisparse.telemetry.stats import RankedSample
from hisparse.telemetry.values import MAX_RANKS, MAX_REASONS, MAX_TEXT


def half_a_payload() -> Any:
    """Yield one good sample, then raise."""
    yield Sample(MOVED, "counter", (), 100)
    raise UnspeakableError


def moved(count: int) -> dict[str, Any]:
    """Return a good child's payload."""
    return {"host_to_device_bytes": [count]}


def not_built(data: Any, _: object) -> Any:
    """Raise for one payload, and know the other."""
    if data == "raise":
        raise UnspeakableError
    return HiSparseKVConnectorStats(data)


@pytest.mark.parametrize("error", [ValueError("x"), UnspeakableError(), RecursionError()])
def test_a_child_that_raises_loses_no_sibling(error: Exception) -> None:
    """Children before and after one whose samples raise are added, and the fault is counted."""
    with pipe() as pipeline:
        pipeline.publish({"a": moved(1), "b": Authors(fails(error)), "c": moved(2)})
        assert total(pipeline, f"{MOVED}_total") == 3
        assert errors(pipeline) == {"internal": 1}


def test_a_child_is_added_whole_or_not_at_all() -> None:
    """What a child yields before it raises is not added: half a payload would be a wrong one."""
    with pipe() as pipeline:
        pipeline.publish({"a": Authors(half_a_payload), "b": moved(2)})
        assert total(pipeline, f"{MOVED}_total") == 2
        assert errors(pipeline) == {"internal": 1}


def test_a_class_that_never_called_its_parent_costs_itself_alone() -> None:
    """A container without a container's attributes is counted."""
    with pipe() as pipeline:
        pipeline.publish({"a": Silent(), "b": moved(2)})
        assert total(pipeline, f"{MOVED}_total") == 2
        assert errors(pipeline) == {"internal": 1}


def test_a_builder_that_raises_costs_its_child_alone() -> None:
    """Siblings of a payload that nobody can build are added."""
    with pipe(build=not_built) as pipeline:
        pipeline.publish({"a": "raise", "b": moved(2)})
        assert total(pipeline, f"{MOVED}_total") == 2
        assert errors(pipeline) == {"internal": 1}


@pytest.mark.parametrize("foreign", [False, True])
def test_one_rank_too_many_is_counted_alone(*, foreign: bool) -> None:
    """A count of one rank more than are kept is skipped in every round, and what else it says is added."""
    with pipe() as pipeline:
        for _ in range(2):
            for rank in range(MAX_RANKS + 1):
                stats = OffloadingConnectorStats(rank=rank)
                stats.increase_counter(HITS, 1)
                stats.increase_counter(MOVED, 1)
                said: Any = Authors(list(stats.samples())) if foreign else stats
                pipeline.publish({"a": said})
        assert total(pipeline, f"{MOVED}_total") == 2 * (MAX_RANKS + 1)
        assert total(pipeline, f"{HITS}_total") == 2
        assert errors(pipeline) == {"unknown_rank": 2}


def test_a_rank_of_a_foreign_sample_is_read() -> None:
    """A rank that is no rank is taken for nobody's: what adds up counts, and the rest is skipped."""
    odd: list[Any] = [RankedSample.of(Sample(name, "counter", (), 5), 0) for name in (HITS, MOVED)]
    for sample in odd:
        sample.rank = np.array([0, 1])
    with pipe() as pipeline:
        pipeline.publish({"a": Authors(odd)})
        assert total(pipeline, f"{MOVED}_total") == 5
        assert total(pipeline, f"{HITS}_total") == 0
        assert errors(pipeline) == {"unknown_rank": 1}


def test_made_up_reasons_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Reasons beyond a bound are counted under one, and are not named in warnings."""
    with pipe() as pipeline, caplog.at_level(logging.WARNING, "hisparse"):
        for number in range(1000):
            payload = {"types": {}, "data": {}, "telemetry_errors": {f"reason {number}": 1}}
            pipeline.publish({"a": payload})
        counted = errors(pipeline)
        assert sum(counted.values()) == 1000
        assert len(counted) == MAX_REASONS + 1
        assert counted["too_many_series"] == 1000 - MAX_REASONS
        assert len(caplog.records) <= MAX_REASONS + len(SkipReason)


@pytest.mark.parametrize("plain", [True, False])
def test_a_reason_is_no_longer_than_a_label(*, plain: bool) -> None:
    """A reason of any length is counted as out of range, in a payload and of a class alike."""
    said = {"types": {}, "data": {}, "telemetry_errors": {"x" * (MAX_TEXT + 1): 1}}
    stats = Authors()
    stats.errors = {"x" * (MAX_TEXT + 1): 1, "not_finite": True, 7: 1}  # type: ignore[dict-item]  # the point
    with pipe() as pipeline:
        pipeline.publish({"a": said if plain else stats})
        assert errors(pipeline) == ({"out_of_range": 1} if plain else {"out_of_range": 1, "wrong_type": 2})


def test_flush_and_close_never_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that fails, and totals that cannot be read, cost a log line; closing drops the series all the same."""
    seconds = iter([0.0])
    pipeline = pipe(clock=lambda: next(seconds))
    pipeline.publish({"a": moved(2)})
    assert total(pipeline, f"{MOVED}_total") == 2
    pipeline.flush()
    monkeypatch.setattr(pipeline, "_logging", None)
    pipeline.flush()
    assert errors(pipeline) == {"internal": 1}
    pipeline.close()
    pipeline.close()
    assert total(pipeline, f"{MOVED}_total") is None
