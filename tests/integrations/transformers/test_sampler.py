"""A cache's sampler publishes each count once, and levels when they change."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiering import CPU, GEOMETRY, append_step, counters_of, open_rows, plan_for

from hisparse.integrations.transformers.sampler import CacheSampler
from hisparse.integrations.transformers.slot import StoreSlot
from hisparse.integrations.transformers.stats import PrefixCounts
from hisparse.integrations.transformers.tiered import TieredRows


class Recorder:
    """A pipeline that keeps the samples handed to it, by name and labels, and a clock to go with it."""

    def __init__(self) -> None:
        self.published: list[dict[tuple[Any, ...], Any]] = []
        self.now = 100.0

    def publish(self, children: dict[str, Any]) -> None:
        samples = [sample for stats in children.values() for sample in stats.samples()]
        self.published.append({(sample.name, *sample.labels): sample.value for sample in samples})

    def levels(self, name: str) -> list[float]:
        """Return the values of a gauge in the order in which they were published."""
        return [samples[name,] for samples in self.published if (name,) in samples]

    def total(self, *key: Any) -> float:
        """Return the sum of a counter over everything published."""
        return sum(samples.get(key, 0) for samples in self.published)


def empty_slot() -> StoreSlot:
    """Return a slot that is never filled."""

    def refuse(*_given: Any) -> Any:
        raise NotImplementedError

    return StoreSlot(refuse)


def count(counters: Any, hits: int, misses: int) -> None:
    """Count one step of one request in one group, and a gather of 10 bytes a miss in its first layer."""
    counters.grow_requests(1)
    outcome = np.array([[hits, misses, 0, 4 - hits - misses]], np.int64)
    counters.record_selection(np.array([0], np.int32), outcome, 4)
    counters.record_load(0, 10 * misses, 0.001)


@pytest.fixture
def recorder() -> Recorder:
    """An empty recorder."""
    return Recorder()


def sampler_for(recorder: Recorder, counters: Any, slot: StoreSlot | None = None) -> CacheSampler:
    """Return a sampler that publishes to a recorder."""
    return CacheSampler(
        recorder,  # type: ignore[arg-type] # all a sampler asks of a pipeline is publish
        GEOMETRY,
        counters,
        slot=empty_slot() if slot is None else slot,
        clock=lambda: recorder.now,
    )


def open_slot() -> StoreSlot:
    """Return a slot that opens stores of the made-up model."""
    return StoreSlot(lambda batch, dtype, device: open_rows(plan_for(batch, dtype=dtype, device=device), batch))


def test_growth_is_published_once(recorder: Recorder) -> None:
    """Samples add up to what was counted, by outcome and group and by layer; an idle flush adds nothing."""
    counters = counters_of()
    sampler = sampler_for(recorder, counters)
    for hits, misses in ((0, 4), (3, 1), (2, 0)):
        count(counters[0], hits, misses)
        count(counters[1], misses, hits)
        sampler.flush()
        sampler.flush()
    assert recorder.total("hisparse_hot_selections_total", "hit", "0") == 5
    assert recorder.total("hisparse_hot_selections_total", "miss", "0") == 5
    assert recorder.total("hisparse_hot_selections_total", "padding", "1") == 2
    assert recorder.total("hisparse_hot_copied_bytes_total", "host_to_device", "0") == 50
    assert recorder.total("hisparse_hot_copied_bytes_total", "host_to_device", "3") == 50
    assert recorder.total("vllm:hisparse_cache_hits") == 10
    assert recorder.total("vllm:hisparse_host_to_device_bytes") == 100
    for name, samples, total in (("gather_seconds", 6, 0.006), ("request_misses_rows", 6, 10)):
        found = [s[key] for s in recorder.published for key in s if key[0] == f"hisparse_hot_{name}"]
        assert sum(histogram.count for histogram in found) == samples
        assert sum(histogram.sum for histogram in found) == pytest.approx(total)


def test_prefix_tokens_are_published_once(recorder: Recorder) -> None:
    """Tokens asked for and found since the sampler was made add up, without a forward pass and however often told."""
    counts = PrefixCounts(7, 5)
    sampler = CacheSampler(
        recorder,  # type: ignore[arg-type] # all a sampler asks of a pipeline is publish
        GEOMETRY,
        counters_of(),
        slot=empty_slot(),
        prefixes=counts,
        clock=lambda: recorder.now,
    )
    for queried, hit in ((64, 0), (128, 64)):
        counts.queried_tokens += queried
        counts.hit_tokens += hit
        sampler.tell_levels()
        sampler.tell_levels()
    assert recorder.total("hisparse_host_prefix_queried_tokens_total") == 192
    assert recorder.total("hisparse_host_prefix_hit_tokens_total") == 64


def test_only_what_is_counted_from_now_on_is_published(recorder: Recorder) -> None:
    """Counts from before the sampler existed belong to somebody else."""
    counters = counters_of()
    count(counters[0], 1, 2)
    sampler = sampler_for(recorder, counters)
    count(counters[0], 0, 3)
    sampler.flush()
    assert recorder.total("vllm:hisparse_cache_misses") == 3


def test_samples_are_due_at_first_and_by_time(recorder: Recorder) -> None:
    """The first step samples, later ones once a second has passed, and the next second starts there."""
    sampler = sampler_for(recorder, counters_of())
    for elapsed, published in ((0, 1), (0.9, 1), (0.11, 2), (0.9, 2), (0.2, 3)):
        recorder.now += elapsed
        sampler.step()
        assert len(recorder.published) == published


def test_samples_are_due_by_steps(recorder: Recorder) -> None:
    """Many steps in no time sample too."""
    sampler = sampler_for(recorder, counters_of())
    for _ in range(4001):
        sampler.step()
    assert len(recorder.published) == 3


def test_levels_are_those_of_the_open_pool(recorder: Recorder) -> None:
    """While a batch is open its pool's levels are published, and zeros before and after."""
    slot = open_slot()
    sampler = sampler_for(recorder, counters_of(), slot)
    sampler.flush()
    store = slot.ensure(2, torch.float32, CPU)
    append_step(store, 2, 9)
    sampler.flush()
    assert isinstance(store, TieredRows)
    pool = store.host.pool
    used, capacity = pool.used_bytes, pool.capacity_bytes
    slot.empty()
    sampler.flush()
    levels = [recorder.levels(f"hisparse_host_{name}_bytes") for name in ("used", "reserved", "capacity")]
    assert used == 6 * capacity // 32
    assert levels == [[0, used, 0], [0, capacity - used, 0], [0, capacity, 0]]
    assert recorder.levels("vllm:hisparse_host_cache_usage_perc") == [0, 6 / 32, 0]


def test_levels_fall_without_a_forward_pass(recorder: Recorder) -> None:
    """When requests end and no step follows, the next word is the truth; when nothing changed there is no word."""
    slot = open_slot()
    sampler = sampler_for(recorder, counters_of(), slot)
    append_step(slot.ensure(1, torch.float32, CPU), 1, 9)
    sampler.step()
    slot.empty()
    sampler.tell_levels()
    sampler.tell_levels()
    assert len(recorder.published) == 2
    assert recorder.levels("hisparse_host_used_bytes")[-1] == 0


def test_a_page_more_is_published_with_the_step_that_took_it(recorder: Recorder) -> None:
    """Between samples a step publishes when the pool's pages changed, and not when they did not."""
    slot = open_slot()
    sampler = sampler_for(recorder, counters_of(), slot)
    store, usage = slot.ensure(1, torch.float32, CPU), []
    for _ in range(6):
        append_step(store, 1, 1)
        sampler.step()
        usage.append(len(recorder.published))
    assert usage == [1, 1, 1, 1, 2, 2]
    assert recorder.levels("vllm:hisparse_host_cache_usage_perc") == [1 / 16, 2 / 16]


@pytest.mark.parametrize(
    ("settings", "speeds"),
    [
        ({"link_bytes_per_second": 5e9}, [5e9, 0]),
        ({"host_pool": "disk:{}"}, [0, 0]),
        ({"host_pool": "disk:{}", "link_bytes_per_second": 2e9}, [2e9, 0]),
    ],
)
def test_the_speed_of_the_link_is_the_one_given(
    recorder: Recorder, settings: dict[str, Any], speeds: list[float], tmp_path: Path
) -> None:
    """A setting is published as it is, a disk's speed is not made up from that of memory, and no pool has none."""
    chosen = {key: value.format(tmp_path) if isinstance(value, str) else value for key, value in settings.items()}
    slot = StoreSlot(
        lambda batch, dtype, device: open_rows(plan_for(batch, dtype=dtype, device=device, **chosen), batch)
    )
    sampler = sampler_for(recorder, counters_of(), slot)
    slot.ensure(1, torch.float32, CPU)
    sampler.step()
    slot.close()
    sampler.tell_levels()
    assert recorder.levels("hisparse_host_link_bytes_per_second") == speeds


def test_the_speed_of_the_link_is_measured(recorder: Recorder) -> None:
    """For a pool in memory the speed of a copy is measured, once in a process, and is one a machine can have."""
    for _ in range(2):
        slot = open_slot()
        sampler = sampler_for(recorder, counters_of(), slot)
        slot.ensure(1, torch.float32, CPU)
        sampler.step()
    first, second = recorder.levels("hisparse_host_link_bytes_per_second")
    assert first == second
    assert 1e7 < first < 1e13
