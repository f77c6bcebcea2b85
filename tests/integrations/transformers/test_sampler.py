"""The sampler publishes each count once, by time or by steps."""

from typing import Any

import numpy as np
import pytest
import torch
from tiering import CPU, GEOMETRY, append_step, counters_of, plan_for

from hisparse.integrations.transformers import sampler as sampler_module
from hisparse.integrations.transformers.sampler import SAMPLE_EVERY_SECONDS, CounterSampler
from hisparse.integrations.transformers.slot import StoreSlot
from hisparse.integrations.transformers.tiered import TieredRows
from hisparse.telemetry.pipeline import build_kv_connector_stats


class Recorder:
    """A pipeline that keeps the samples handed to it, by name and labels, and a clock to go with it."""

    def __init__(self) -> None:
        self.published: list[dict[tuple[Any, ...], Any]] = []
        self.now = 100.0

    def publish(self, children: dict[str, Any]) -> None:
        built = [build_kv_connector_stats(data) for data in children.values()]
        samples = [sample for stats in built if stats is not None for sample in stats.samples()]
        self.published.append({(sample.name, *sample.labels): sample.value for sample in samples})

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


def sampler_for(recorder: Recorder, counters: Any, slot: StoreSlot | None = None) -> CounterSampler:
    """Return a sampler that publishes to a recorder."""
    return CounterSampler(
        recorder,  # type: ignore[arg-type] # all a sampler asks of a pipeline is publish
        GEOMETRY,
        counters,
        slot=empty_slot() if slot is None else slot,
        clock=lambda: recorder.now,
    )


def test_growth_is_published_once(recorder: Recorder) -> None:
    """Samples add up to what was counted, by outcome and group and by layer; an idle sample adds nothing."""
    counters = counters_of()
    sampler = sampler_for(recorder, counters)
    for hits, misses in ((0, 4), (3, 1), (2, 0)):
        count(counters[0], hits, misses)
        count(counters[1], misses, hits)
        sampler.sample()
        sampler.sample()
    assert recorder.total("hisparse_hot_selections_total", "hit", "0") == 5
    assert recorder.total("hisparse_hot_selections_total", "miss", "0") == 5
    assert recorder.total("hisparse_hot_selections_total", "padding", "1") == 2
    assert recorder.total("hisparse_hot_copied_bytes_total", "host_to_device", "0") == 50
    assert recorder.total("hisparse_hot_copied_bytes_total", "host_to_device", "3") == 50
    assert recorder.total("vllm:hisparse_cache_hits") == 10
    assert recorder.total("vllm:hisparse_host_to_device_bytes") == 100
    fetches = [s[key].count for s in recorder.published for key in s if key[0] == "hisparse_hot_gather_seconds"]
    assert sum(fetches) == 6


def test_only_what_is_counted_from_now_on_is_published(recorder: Recorder) -> None:
    """Counts from before the sampler existed belong to somebody else."""
    counters = counters_of()
    count(counters[0], 1, 2)
    sampler = sampler_for(recorder, counters)
    count(counters[0], 0, 3)
    sampler.sample()
    assert recorder.total("vllm:hisparse_cache_misses") == 3


def test_samples_are_due_by_time(recorder: Recorder) -> None:
    """A step samples once the interval has passed, and the next interval starts there."""
    sampler = sampler_for(recorder, counters_of())
    for elapsed, published in ((0.9, 0), (0.11, 1), (0.9, 1), (0.2, 2)):
        recorder.now += elapsed * SAMPLE_EVERY_SECONDS
        sampler.step()
        assert len(recorder.published) == published


def test_samples_are_due_by_steps(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many steps in no time sample too, and a sample in between starts the count anew."""
    monkeypatch.setattr(sampler_module, "SAMPLE_EVERY_STEPS", 3)
    sampler = sampler_for(recorder, counters_of())
    for _ in range(7):
        sampler.step()
    assert len(recorder.published) == 2
    sampler.sample()
    sampler.step()
    sampler.step()
    assert len(recorder.published) == 3


def test_levels_are_those_of_the_open_pool(recorder: Recorder) -> None:
    """While a batch is open its pool's levels are published, and zeros before and after."""
    slot = StoreSlot(lambda batch, dtype, device: TieredRows(plan_for(batch, dtype=dtype, device=device), batch))
    sampler = sampler_for(recorder, counters_of(), slot)
    sampler.sample()
    store = slot.ensure(2, torch.float32, CPU)
    append_step(store, 2, 9)
    sampler.sample()
    assert isinstance(store, TieredRows)
    pool = store.host.pool
    used, capacity = pool.used_bytes, pool.capacity_bytes
    slot.empty()
    sampler.sample()
    levels = [
        [samples[f"hisparse_host_{name}_bytes",] for name in ("used", "reserved", "capacity")]
        for samples in recorder.published
    ]
    assert used == 6 * capacity // 32
    assert levels == [[0, 0, 0], [used, capacity - used, capacity], [0, 0, 0]]
    usage = [samples["vllm:hisparse_host_cache_usage_perc",] for samples in recorder.published]
    assert usage == [0, 6 / 32, 0]
