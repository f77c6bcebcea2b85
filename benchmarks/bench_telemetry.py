"""Microseconds to carry one step's statistics from eight ranks to the exporter, against vLLM's own classes.

A step is what eight ranks record (each 10 counters and 3 histograms of 40 samples, given as lists), merged across
the ranks, encoded to bytes, decoded, and added to the exporter's totals.  Each of the five stages is timed by itself
on one thread; "build" is one rank's, since every rank has a process of its own.

vLLM's rows need its wheel, unpacked, and what its modules import:  --vllm=DIR, or HISPARSE_BENCH_VLLM=DIR.
"""

import argparse
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

import harness
import telemetry_peers
from hisparse.telemetry import (
    CATALOGUE,
    Catalogue,
    CounterMetadata,
    HiSparseKVConnectorStats,
    HistogramMetadata,
    MetricStore,
    OffloadingConnectorStats,
    TelemetryPipeline,
    decode_stats,
    encode_stats,
    merge_ranks,
)
from hisparse.telemetry.catalogue import GATHER_BUCKETS

RANKS, COUNTERS, HISTOGRAMS, SAMPLES = 8, 10, 3, 40
STAGES = ("build", "merge", "encode", "decode", "observe")


@dataclass(frozen=True)
class Prepared:
    """A stage whose arguments are made anew for every call, outside the clock."""

    prepare: Callable[[int], harness.Call]


Steps = Mapping[str, "harness.Call | Prepared"]


def catalogue(kept_by_rank: int) -> Catalogue:
    """Return 10 counters and 3 histograms; the first `kept_by_rank` of each are what all ranks count alike."""
    metrics: dict[str, Any] = {}
    for i in range(COUNTERS):
        rule = "once" if i < kept_by_rank else "sum"
        metrics[f"bench_part{i}_bytes_total"] = CounterMetadata("Bytes.", unit="bytes", across_ranks=rule)
    for i in range(HISTOGRAMS):
        rule = "once" if i < kept_by_rank else "sum"
        metrics[f"bench_part{i}_seconds"] = HistogramMetadata("Time.", buckets=GATHER_BUCKETS, across_ranks=rule)
    return CATALOGUE.merged(metrics)


def recorded() -> tuple[dict[str, int], dict[str, list[float]]]:
    """Return what one rank records in a step."""
    rng = random.Random(7)
    counts = {f"bench_part{i}_bytes_total": rng.randrange(1 << 30) for i in range(COUNTERS)}
    samples = {
        f"bench_part{i}_seconds": [rng.lognormvariate(-7, 1.2) for _ in range(SAMPLES)] for i in range(HISTOGRAMS)
    }
    return counts, samples


class Recorder:
    """One rank that records into a container it keeps, through handles."""

    def __init__(self, rank: int, metrics: Catalogue) -> None:
        """Find the series once."""
        counts, samples = recorded()
        self.stats = OffloadingConnectorStats(rank=rank, catalogue=metrics)
        self.counters = [(self.stats.counter(name), count) for name, count in counts.items()]
        self.histograms = [(self.stats.histogram(name), values) for name, values in samples.items()]

    def build(self) -> None:
        """Record one step."""
        self.stats.reset()
        for counter, count in self.counters:
            counter.add(count)
        for histogram, values in self.histograms:
            histogram.observe(values)


def own_steps(kept_by_rank: int) -> Steps:
    """Return the stages in this package's classes."""
    metrics = catalogue(kept_by_rank)
    recorders = [Recorder(rank, metrics) for rank in range(RANKS)]
    for recorder in recorders:
        recorder.build()
    ranks = [recorder.stats for recorder in recorders]
    store = MetricStore(metrics)
    merged = merge_ranks(ranks, catalogue=metrics)
    payload = encode_stats(merged)
    decoded = decode_stats(payload, metrics)
    if decoded is None or decoded != merged:
        raise SystemExit("what was decoded is not what was encoded")
    return {
        "build": Recorder(0, metrics).build,
        "merge": partial(merge_ranks, ranks, catalogue=metrics),
        "encode": partial(encode_stats, merged),
        "decode": partial(decode_stats, payload, metrics),
        "observe": partial(store.apply, decoded),
    }


def vllm_steps(peer: telemetry_peers.VllmSteps) -> Steps:
    """Return the stages in vLLM's classes."""
    counts, samples = recorded()
    merged = peer.merge([peer.build(counts, samples) for _ in range(RANKS)])
    payload = peer.encode(merged)

    steps: dict[str, Any] = {
        "build": partial(peer.build, counts, samples),
        # The first object grows, so each call merges objects of its own.
        "merge": Prepared(lambda _i: partial(peer.merge, [peer.build(counts, samples) for _ in range(RANKS)])),
        "encode": partial(peer.encode, merged),
        "decode": partial(peer.decode, payload),
        "observe": partial(peer.observe, peer.decode(payload)),
    }
    return steps


def sampler_steps() -> Steps:
    """Return what a cache in one process does once a sample: record, take, publish."""
    pipeline = TelemetryPipeline(registry=CollectorRegistry(), log_interval_seconds=1e9)
    stats = HiSparseKVConnectorStats()

    def sample() -> None:
        stats.record_snapshot(1200, 400, 460800)
        stats.record_host_usage(0.5, 0)
        pipeline.publish({"HiSparse": stats.take()})

    return {"record": partial(stats.record_snapshot, 1200, 400, 460800), "record, take, publish": sample}


def microseconds(sides: Mapping[str, Steps], *, rounds: int) -> dict[str, dict[str, float]]:
    """Return the median microseconds of each stage of each side, all in turn."""
    contenders: dict[str, Callable[[int], harness.Call]] = {}
    for side, steps in sides.items():
        for stage, call in steps.items():
            # What changes its arguments comes as a function that prepares each call.
            prepared = isinstance(call, Prepared)
            contenders[f"{side}/{stage}"] = call.prepare if prepared else (lambda _i, call=call: call)
    seconds = harness.median_seconds(contenders, rounds=rounds, calls=30, warm_up=10)
    return {side: {stage: seconds[f"{side}/{stage}"] * 1e6 for stage in steps} for side, steps in sides.items()}


def totals(stages: Mapping[str, float]) -> list[float]:
    """Return the sum with one rank's build, and with all eight."""
    once = sum(stages[stage] for stage in STAGES)
    return [once, once + (RANKS - 1) * stages["build"]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--vllm")
    known, rest = parser.parse_known_args(argv)
    asked = harness.options(__doc__ or "", rest)
    folder = telemetry_peers.vllm_folder(known.vllm)
    sides = {f"hisparse, {name}": own_steps(kept) for name, kept in _OWN.items()}
    adding, *_ = sides
    theirs = None
    if folder is not None:
        samples = recorded()[1]
        counters = [name for name in catalogue(0) if name in recorded()[0]]
        peer = telemetry_peers.VllmSteps(folder, counters, dict.fromkeys(samples, GATHER_BUCKETS))
        theirs = peer.version
        sides[theirs] = vllm_steps(peer)
    found = microseconds({**sides, "sampler": sampler_steps()}, rounds=5 if asked.quick else 30)
    rows: list[list[str | float | None]] = [
        [side, *(found[side][stage] for stage in STAGES), *totals(found[side])] for side in sides
    ]
    ours = totals(found[adding])
    goals = [harness.goal("us for a step, one rank's build", ours[0], 20, at_most=True)]
    if theirs is None:
        rows.append(["vLLM (not measured: --vllm=DIR)", *[None] * (len(STAGES) + 2)])
        goals.append("vLLM's time over ours: not measured")
    else:
        ratios = [their / our for their, our in zip(totals(found[theirs]), ours, strict=True)]
        goals.append(harness.goal("vLLM's time over ours, one rank's build", ratios[0], 20))
        goals.append(harness.goal("vLLM's time over ours, all eight builds", ratios[1], 20))
    title = f"one step of {RANKS} ranks, {COUNTERS} counters and {HISTOGRAMS} histograms of {SAMPLES} samples, us"
    sampler = found["sampler"]
    reports = [
        harness.Report(title, ["", *STAGES, "step", "with all builds"], rows, goals),
        harness.Report("one sample of a cache in one process, us", ["", *sampler], [["hisparse", *sampler.values()]]),
    ]
    return harness.emit(reports, as_json=asked.json)


_OWN = {"counts add up": 0, "3 of each alike on all ranks": 3}


if __name__ == "__main__":
    sys.exit(main())
