"""Sources of levels and counters that raise, or tell what cannot be."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from faking import GROUPS, Clock, Copy, Device, Ledger
from unreadable import UnreadableError

from hisparse.connectors import (
    CounterTotals,
    GroupCounterSource,
    HiSparseConnector,
    HiSparseConnectorWorker,
    HostLevels,
)
from hisparse.errors import MetricError
from hisparse.hot import GroupCounters
from hisparse.telemetry import Histogram


@dataclass
class Source:
    """A source of levels that does as it is told."""

    answer: Callable[[], Any]

    def levels(self) -> Any:
        return self.answer()


def raising() -> HostLevels:
    """Raise an error that says nothing."""
    raise UnreadableError


def levels(**given: Any) -> Callable[[], HostLevels]:
    """Return what makes levels of a pool of 8 pages, whatever the others are."""
    return lambda: HostLevels(**{"pages": 8, **given})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (raising, "internal"),
        (lambda: None, "wrong_type"),
        (lambda: {"pages": 8}, "wrong_type"),
        (levels(used_pages=None), "wrong_type"),
        (levels(used_pages=20), "out_of_range"),
        (levels(pages=0, null_pages=1), "out_of_range"),
        (levels(reserved_pages=-2), "negative"),
        (levels(labels=3), "wrong_type"),
    ],
)
def test_no_levels_end_a_step(answer: Callable[[], Any], reason: str) -> None:
    """What is no level is counted by reason, and the next levels that are show."""
    source = Source(answer)
    connector = HiSparseConnector("scheduler", levels=source, clock=Clock())
    stats = connector.get_kv_connector_stats()
    assert stats is not None
    assert stats.errors == {reason: 1}
    source.answer = levels(used_pages=2, page_bytes=64)
    ledger = Ledger()
    ledger.take(connector.get_kv_connector_stats())
    assert ledger["vllm:hisparse_host_cache_usage_perc",] == 0.25
    assert ledger["hisparse_host_capacity_bytes",] == 512
    assert ledger.errors == {}


@pytest.mark.parametrize("impossible", [{"used_pages": 8}, {"page_bytes": 0.5}, {"pending_page_transfers": -1}])
def test_a_pool_that_cannot_be_is_refused(impossible: dict[str, Any]) -> None:
    """Levels are whole and not negative, and no more pages are used than can hold rows."""
    with pytest.raises(MetricError):
        levels(null_pages=1, **impossible)()


def changed(**given: Any) -> Callable[[CounterTotals], Any]:
    """Return what spoils totals."""
    return lambda totals: replace(totals, **given)


BAD_SAMPLES: list[tuple[Callable[[CounterTotals], Any], str]] = [
    (lambda _: None, "wrong_type"),
    (changed(loaded_bytes=np.zeros(2, np.int64)), "wrong_type"),
    (changed(stored_bytes=np.zeros(2, np.int64)), "wrong_type"),
    (changed(selections=np.zeros((2, 4))), "wrong_type"),
    (changed(selections=[[0] * 4] * 2), "wrong_type"),
    (changed(groups=((0, 1, 2),)), "wrong_type"),
    (changed(groups=3), "wrong_type"),
    (changed(fetches=Histogram.empty((1.0,))), "bucket_mismatch"),
    (changed(request_misses=None), "bucket_mismatch"),
    (changed(epoch=None), "wrong_type"),
]


@dataclass
class Spoiling(Device):
    """A device one of whose copies holds something else."""

    spoil: Callable[[CounterTotals], Any] = replace
    spoiled: int = 0

    def request(self) -> Copy | None:
        """Begin a copy, and spoil it where it is its turn."""
        copy = super().request()
        if copy is not None and self.requests == self.spoiled + 1:
            copy.totals = self.spoil(copy.totals)
        return copy


@pytest.mark.parametrize(("spoil", "reason"), BAD_SAMPLES)
@pytest.mark.parametrize("spoiled", [0, 1])
def test_a_malformed_sample_costs_itself_alone(
    spoil: Callable[[CounterTotals], Any], reason: str, *, spoiled: int
) -> None:
    """It is counted, and the next good one tells all there was, once; whether it is the first or a later one."""
    device, ledger = Spoiling(spoil=spoil, spoiled=spoiled), Ledger()
    worker = HiSparseConnectorWorker(device, every_calls=1, clock=Clock())
    for _ in range(4):
        device.count(12, 4)
        ledger.take(worker.get_kv_connector_stats())
    assert ledger.errors == {reason: 1}
    assert ledger.selections == (48, 16)
    assert ledger["hisparse_hot_selections_total", "hit", "0"] == 48
    assert ledger.loaded_bytes == 256
    assert ledger["hisparse_hot_gather_seconds",].count == 4


@pytest.mark.parametrize(
    ("speed", "reason"), [(np.array([1.0, 2.0]), "wrong_type"), (-5, "negative"), (float("nan"), "not_finite")]
)
def test_a_speed_that_cannot_be_costs_no_counts(speed: Any, reason: str) -> None:
    """The link's speed is left out and counted; hits, misses and bytes are all there."""
    counters = [GroupCounters(requests=1, layers=len(members)) for members in GROUPS]
    source = GroupCounterSource(GROUPS, counters, link_bytes_per_second=lambda: speed)
    worker, ledger = HiSparseConnectorWorker(source, clock=Clock()), Ledger()
    counters[0].record_selection(np.array([0], np.int32), np.array([[12, 4, 0, 0]]), 16)
    ledger.take(worker.get_kv_connector_stats())
    assert ledger.selections == (12, 4)
    assert ledger["hisparse_hot_selections_total", "hit", "0"] == 12
    assert ledger.errors == {reason: 1}
    assert ("hisparse_host_link_bytes_per_second",) not in ledger.totals


def test_an_error_without_text_ends_no_step() -> None:
    """A source whose error says nothing costs the sample, and the next one tells it."""
    device, ledger, clock = Device(error=UnreadableError()), Ledger(), Clock()
    worker = HiSparseConnectorWorker(device, clock=clock)
    device.count(12, 4)
    for _ in range(2):
        ledger.take(worker.get_kv_connector_stats())
        device.error, clock.now = None, clock.now + 2
    assert ledger.errors == {"internal": 1}
    assert ledger.selections == (12, 4)


def test_a_source_may_count_on_in_the_arrays_it_gave() -> None:
    """A sample is copied when it is read, so a source that hands out its own arrays loses nothing."""

    @dataclass
    class Here:
        totals: CounterTotals

        def is_ready(self) -> bool:
            return True

        def read(self) -> CounterTotals:
            return self.totals

        def request(self) -> "Here":
            return self

    here, ledger = Here(CounterTotals.zero(GROUPS)), Ledger()
    worker = HiSparseConnectorWorker(here, every_calls=1, clock=Clock())
    for _ in range(3):
        here.totals.selections[0] += (12, 4, 0, 0)
        here.totals.request_misses.observe(4)
        ledger.take(worker.get_kv_connector_stats())
    assert ledger.selections == (36, 12)
    assert ledger["hisparse_hot_request_misses_rows",].count == 3
