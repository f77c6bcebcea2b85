"""Children whose classes raise, answer something else, or have forms of their own."""

import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, ClassVar

import pytest
from children import NixlConnector, NixlStats, Recording
from prometheus_client import CollectorRegistry
from unreadable import UnreadableError

from hisparse.connectors import HiSparseConnector, HostLevels, KVConnector, MultiConnector, StatsBuilder
from hisparse.connectors.multi.hearing import info_of, samples_of
from hisparse.telemetry import (
    CATALOGUE,
    Catalogue,
    CounterMetadata,
    HiSparseConnectorStats,
    HiSparseKVConnectorStats,
    KVConnectorStats,
    Sample,
    TelemetryPipeline,
)

USED = "hisparse_host_used_bytes"
BYTES = "vllm:kv_offload_load_bytes"
ERRORS = "hisparse_telemetry_errors_total"


class PeerStats(KVConnectorStats):
    """Somebody else's statistics, whose plain form looks like what engines wrap payloads in."""

    def _empty(self) -> dict[str, Any]:
        return {"rows": 0}

    def _merge(self, data: Mapping[str, Any]) -> None:
        self.data["rows"] += int(data["data"]["rows"])

    def _plain(self) -> dict[str, Any]:
        return {"data": dict(self.data)}

    def samples(self) -> Iterator[Sample]:
        """Yield the rows."""
        yield Sample("peer_rows_total", "counter", (), self.data["rows"])

    def reduce(self) -> dict[str, int | float]:
        """Return the rows."""
        return {"rows": self.data["rows"]}


class PeerConnector(KVConnector):
    """Names its metrics and its class, and holds what does not travel."""

    name = "Peer"
    catalogue: ClassVar = Catalogue({"peer_rows_total": CounterMetadata("Rows.", unit="rows")})
    stats_class: ClassVar = PeerStats

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stats = PeerStats()

    def get_kv_connector_stats(self) -> PeerStats | None:
        """Return what happened since the last call."""
        with self.lock:
            return None if self.stats.is_empty() else PeerStats(self.stats.take())


class Odd(NixlStats):
    """Statistics that a test makes say anything."""

    said: Callable[[], Any] = staticmethod(list)
    told: Callable[[], Any] = staticmethod(dict)

    def samples(self) -> Any:
        """Say it."""
        return self.said()

    def info(self) -> Any:
        """Tell it."""
        return self.told()


def raising(*_: Any) -> Any:
    """Raise an error without text."""
    raise UnreadableError


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """Return a series of engine 0."""
    return registry.get_sample_value(name, {"model_name": "", "engine": "0", **labels})


@pytest.mark.parametrize("told", [raising, lambda: 3, lambda: {"x": 3}, lambda: {USED: [UnreadableError()]}])
def test_an_info_that_fails_leaves_the_levels_of_the_others(
    told: Callable[[], Any], registry: CollectorRegistry
) -> None:
    """Two children's bytes in use add up, in each step, beside a child whose configuration cannot be had."""

    class Telling(Recording):
        def get_kv_connector_stats(self) -> Any:
            stats = Odd({"failed_transfers": 1})
            stats.told = told  # type: ignore[method-assign]  # a test's own
            return stats

    first, second = Recording("A"), Recording("B")
    multi = MultiConnector([Telling("Odd"), first, second])
    with TelemetryPipeline(registry=registry, build=multi.build) as pipeline:
        for used in (30, 40):
            first.stats.set_gauge(USED, used)
            second.stats.set_gauge(USED, 4)
            pipeline.publish({multi.name: multi.get_kv_connector_stats()})
            assert value(registry, USED) == used + 4
        reasons = [value(registry, ERRORS, reason=reason) for reason in ("internal", "wrong_type")]
    assert sorted(count or 0 for count in reasons) == [0, 2]


def test_each_bad_sample_costs_itself_alone() -> None:
    """A tuple of the right length is read, anything else is counted, and what came before an error is there."""

    def saying() -> Iterator[Any]:
        yield ("a_total", "counter", (), 3)
        yield ("b_total", "counter")
        yield None
        yield Sample("c_total", "counter", (), 4)
        raise UnreadableError

    stats = Odd()
    stats.said = saying  # type: ignore[method-assign]  # a test's own
    found = [(name, labels, number) for name, _, labels, number in samples_of(stats)]
    assert found == [
        ("a_total", (), 3),
        (ERRORS, ("wrong_type",), 1),
        (ERRORS, ("wrong_type",), 1),
        ("c_total", (), 4),
        (ERRORS, ("internal",), 1),
    ]
    assert info_of(stats) == ({}, [])


def test_an_error_without_text_ends_no_step(registry: CollectorRegistry) -> None:
    """Children whose errors say nothing are counted wherever they raise, and the others' counts are whole."""

    class Silent(Recording):
        def get_kv_connector_stats(self) -> Any:
            return raising()

    class Unplain(NixlStats):
        def to_dict(self) -> dict[str, Any]:
            return dict(raising())

    class Building(NixlConnector):
        @classmethod
        def build_kv_connector_stats(cls, data: Any = None) -> Any:
            return raising(data)

    good = Recording("Good")
    good.stats.increase_counter(BYTES, 7)
    multi = MultiConnector([Silent("Silent"), good])
    stats = multi.get_kv_connector_stats()
    assert stats is not None
    assert stats.errors == {"internal": 1}
    stats.add("Unplain", Unplain({"failed_transfers": 1}))
    build = StatsBuilder([Building])
    with TelemetryPipeline(registry=registry, build=build) as pipeline:
        pipeline.publish({multi.name: {"children": {**stats.to_dict()["children"], "Building": {"x": 1}}}})
        assert value(registry, f"{BYTES}_total") == 7
        assert value(registry, ERRORS, reason="internal") == 1


def test_a_plain_form_changes_nothing() -> None:
    """A child without a plain form is counted in each plain form, and in the statistics never."""

    class Unplain(NixlStats):
        def to_dict(self) -> dict[str, Any]:
            return dict(raising())

    stats = StatsBuilder().child("Multi", {"children": {"Offloading": {"types": {}, "data": {}}}})
    assert stats is not None
    stats.add("Unplain", Unplain())  # type: ignore[attr-defined]  # statistics of several
    for _ in range(3):
        assert stats.to_dict()["telemetry_errors"] == {"internal": 1}
    assert stats.errors == {}


def test_a_named_class_is_all_that_statistics_of_ones_own_need(registry: CollectorRegistry) -> None:
    """Plain data, of a child and alone, is read by the class before anybody takes it for a wrapped payload."""
    peer = PeerConnector()
    multi = MultiConnector([peer, Recording()])
    build = StatsBuilder([PeerConnector])
    with TelemetryPipeline(
        registry=registry, catalogue=CATALOGUE.merged(PeerConnector.catalogue), build=build
    ) as pipeline:
        for source in (multi, multi, peer):
            peer.stats.data["rows"] += 5
            stats = source.get_kv_connector_stats()
            assert stats is not None
            pipeline.publish({source.name: stats.to_dict()})
        assert value(registry, "peer_rows_total") == 15
    assert PeerConnector.build_kv_connector_stats(None) == PeerStats()
    both = build({"children": {"Peer": {"data": {"rows": 1}}}})
    assert both is not None
    assert both.aggregate({"children": {"Peer": {"data": {"rows": 2}}}}).reduce() == {"Peer: rows": 3}


def test_statistics_travel_without_their_connectors() -> None:
    """What a live connector hands out is pickled and copied, whatever its children hold."""
    peer = PeerConnector()
    peer.stats.data["rows"] += 5
    stats = MultiConnector([peer, MultiConnector([NixlConnector()])]).get_kv_connector_stats()
    assert stats is not None
    for other in (pickle.loads(pickle.dumps(stats)), deepcopy(stats)):  # noqa: S301  the test's own bytes
        assert other == stats
        assert other.aggregate({"children": {"Peer": {"data": {"rows": 1}}}}).reduce() == {"Peer: rows": 6}


def test_an_idle_step_first_costs_no_metrics(registry: CollectorRegistry) -> None:
    """A renamed child that at first has nothing but the known fields is read whole when it says more."""

    class Pool:
        def levels(self) -> HostLevels:
            return HostLevels(pages=8, used_pages=2, page_bytes=1024)

    child = HiSparseConnector("scheduler", levels=Pool(), name="Mine")
    multi = MultiConnector([child])
    told = multi.get_kv_connector_stats()
    assert told is not None
    idle = {"children": {"Mine": {"cache_hits": []}}}
    for known in (StatsBuilder()(idle), MultiConnector.build_kv_connector_stats(idle)):
        assert known is not None
        known.aggregate(told.to_dict())
        with TelemetryPipeline(registry=registry) as pipeline:
            pipeline.publish({"Multi": known})
            assert value(registry, USED) == 2048


def test_a_wider_container_takes_the_place_of_a_narrow_one() -> None:
    """A child known by the base class holds what the connector's own class says too, in any order."""
    narrow, wide = HiSparseKVConnectorStats({"cache_hits": [3]}, rank=1), HiSparseConnectorStats(rank=1)
    wide.increase_counter("hisparse_hot_selections_total", 4, ("hit", 0))
    for first, second in ((narrow, wide), (wide, narrow), (narrow, wide.to_dict())):
        stats = MultiConnector.build_kv_connector_stats({"children": {"Mine": first}})
        assert stats is not None
        stats.aggregate({"children": {"Mine": second}})
        assert stats.errors == {}
        assert {sample.name: sample.value for sample in stats.samples()} == {
            "vllm:hisparse_cache_hits": 3,
            "hisparse_hot_selections_total": 4,
        }
