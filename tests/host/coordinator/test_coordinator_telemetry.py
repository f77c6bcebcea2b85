"""What a coordinator tells, under the names of the catalogue."""

import pytest
from few_steps import compute, make, make_keys, step

from hisparse.errors import HostPoolFullError
from hisparse.host.coordinator import HiSparseCoordinator, PageState, record_coordinator
from hisparse.telemetry import CATALOGUE, HiSparseConnectorStats
from hisparse.telemetry.host_metrics import DEVICE_USES, PAGE_STATES, REQUEST_PHASES, host_tier_metrics


def told(coordinator: HiSparseCoordinator) -> dict[str, int | float]:
    """Return what is recorded of a coordinator."""
    stats = HiSparseConnectorStats()
    record_coordinator(stats, coordinator.stats())
    return stats.reduce()


def test_labels_are_the_words_of_the_coordinator() -> None:
    """The catalogue knows every state, use and phase, and no other."""
    stats = make().stats()
    assert tuple(state.word for state in PageState if state is not PageState.ABSENT) == PAGE_STATES
    assert (*stats.device_pages,) == DEVICE_USES
    assert (*stats.requests,) == REQUEST_PHASES


def test_every_metric_is_recorded_from_the_start() -> None:
    """A coordinator that has done nothing tells every series of the host tier, all at zero but its free pages."""
    stats = HiSparseConnectorStats()
    record_coordinator(stats, make().stats())
    names = {sample.name for sample in stats.metrics.samples()}
    assert set(host_tier_metrics()) <= names <= set(CATALOGUE)
    assert stats.errors == {}


def test_usage_and_transfers_are_levels() -> None:
    """Of seven pages three are in use and two copies under way, told again when nothing changed."""
    coordinator = make(host_pages=7)
    assert (told(coordinator)["HiSparse host KV cache usage %"]) == 0
    coordinator.admit("a", max_positions=48)
    coordinator.append("a", 48)
    coordinator.plan_step()
    stats = HiSparseConnectorStats()
    for _ in range(2):
        record_coordinator(stats, coordinator.stats())
    assert stats.data["host_cache_usage_perc"] == [3 / 7]
    assert stats.data["pending_page_transfers"] == [3]


def test_counters_grow_by_what_happened_since() -> None:
    """Two records tell each event once; bytes are rows times the bytes of a row."""
    coordinator = make(host_pages=8, page_bytes=1600)
    keys = make_keys(4)
    coordinator.admit("a", max_positions=64, keys=keys)
    compute(coordinator, "a", 40)
    with pytest.raises(HostPoolFullError):
        coordinator.admit("b", max_positions=128)
    first = coordinator.stats()
    coordinator.preempt("a")
    coordinator.resume("a")
    step(coordinator)
    stats = HiSparseConnectorStats()
    record_coordinator(stats, first)
    record_coordinator(stats, coordinator.stats(), first)
    found = {(sample.name, sample.labels): sample.value for sample in stats.metrics.samples()}
    expected = {
        ("hisparse_host_spilled_pages_total", ("eager",)): 2,
        ("hisparse_host_spilled_bytes_total", ("eager",)): 4000,
        ("hisparse_host_refused_requests_total", ("host",)): 1,
        ("hisparse_host_preempted_requests_total", ()): 1,
        ("hisparse_host_prefix_queried_tokens_total", ()): 64,
        ("hisparse_host_prefix_hit_tokens_total", ()): 0,
        ("hisparse_host_state_pages", ("clean",)): 2,
        ("hisparse_host_used_bytes", ()): 4800,
    }
    assert {key: found[key] for key in expected} == expected


def test_occupied_and_pinned_are_told_apart() -> None:
    """The pages of an ended request are occupied and not pinned, on both ends."""
    coordinator = make(page_bytes=16)
    coordinator.admit("a", max_positions=64, keys=make_keys(4))
    compute(coordinator, "a", 64)
    running = coordinator.stats()
    coordinator.finish("a")
    ended = coordinator.stats()
    assert (running.host.pinned, running.host.cached, running.device_pages["resident"]) == (4, 0, 4)
    assert (ended.host.pinned, ended.host.cached, ended.device_pages["loose"]) == (0, 4, 4)
