"""Feed statistics nobody should send through build, merge, log and export, millions of them.

    pip install atheris
    python tools/fuzz_telemetry.py -runs=1000000        # libFuzzer's options

Each run makes one payload of the input's bytes: free structures, payloads of the right shape with wrong parts,
valid payloads with one part replaced, and bytes for the decoder.  It fails where anything raises, where a value
that is no finite number or a negative count reaches the registry, and where an item is neither added nor counted
as skipped.  libFuzzer prints executions, seconds and the edges reached ("cov").

Without atheris, ``--random N`` makes N inputs by chance, without looking at which lines they reach.
"""

import logging
import math
import random
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

try:
    import atheris
except ImportError:
    atheris = None

GUIDED = atheris is not None and "--random" not in sys.argv

# Lines are counted in what is imported here, and only there: counting everywhere takes minutes to begin.
with atheris.instrument_imports(include=["hisparse.telemetry"]) if GUIDED else nullcontext():
    from hisparse.telemetry import (
        CATALOGUE,
        HiSparseKVConnectorStats,
        KVConnectorStats,
        OffloadingConnectorStats,
        TelemetryPipeline,
        build_kv_connector_stats,
        decode_stats,
        encode_stats,
        merge_ranks,
        merge_step,
    )
    from hisparse.telemetry.hisparse_stats import DELTAS, LEVELS, RESIDENCY

NAMES = [*CATALOGUE, "undeclared_total", "bad name", "", "x"]
LEAVES: list[Any] = [
    *(None, True, False, 0, 1, 12, -1, 2**53, 2**53 + 1, 2**63, -(2**63), 10**30, 0.0, -0.0, 0.5, 1e300, -1e-9),
    *(math.nan, math.inf, -math.inf, "", "a", "[", '["hit","0"]', "\ud800", "x" * 300, b"", b"\xc1", [], {}, ()),
]
KEYS: list[Any] = [
    *("types", "data", "info", "telemetry_errors", "rank", "ranks", "metrics", "counters", "gauges", "histograms"),
    *("rank_counters", "rank_histograms", "series_version", "bounds", "counts", "sum", "count", "", 0, 3, None),
    *DELTAS,
    *LEVELS,
    *RESIDENCY,
    *NAMES,
]
COUNTING = ("_total", "_bucket", "_count", "_sum")
# Scraping costs as much as a hundred payloads, and totals never forget a bad value.
SCRAPE_EVERY = 500


def require(holds: object, what: object) -> None:
    """Stop the run where something does not hold."""
    if not holds:
        raise AssertionError(what)


class Choices:
    """Decisions read from bytes; when they run out, the first of each."""

    def __init__(self, data: bytes) -> None:
        """Read from the start of `data`."""
        self.data = data
        self.at = 0

    def number(self, below: int) -> int:
        """Return a number from 0 to `below` - 1."""
        width = 1 if below <= 256 else 2  # noqa: PLR2004  a byte
        part = self.data[self.at : self.at + width]
        self.at += width
        return int.from_bytes(part, "little") % below

    def pick(self, options: list[Any]) -> Any:
        """Return one of `options`."""
        return options[self.number(len(options))]

    def rest(self) -> bytes:
        """Return what has not been read."""
        return self.data[self.at :]


def leaf(choices: Choices) -> Any:
    """Return a value that is no structure, or an odd one."""
    return choices.pick(LEAVES) if choices.number(2) else choices.number(2**16) - 100


def anything(choices: Choices, depth: int = 3) -> Any:
    """Return a free structure."""
    kind = choices.number(4) if depth else 0
    if kind == 1:
        return [anything(choices, depth - 1) for _ in range(choices.number(4))]
    if kind == 2:  # noqa: PLR2004  one of the kinds
        return {choices.pick(KEYS): anything(choices, depth - 1) for _ in range(choices.number(4))}
    return leaf(choices)


HISTOGRAMS = [name for name in CATALOGUE if CATALOGUE[name].kind == "histogram"]


def histogram(choices: Choices) -> Any:
    """Return a histogram's plain form, mostly right."""
    name = choices.pick(HISTOGRAMS)
    bounds = list(getattr(CATALOGUE[name], "buckets", (1.0,)))
    counts = [choices.number(4) for _ in range(len(bounds) + (choices.number(8) != 1))]
    return {"bounds": bounds, "counts": counts, "sum": leaf(choices), "count": sum(counts)}


def series(choices: Choices) -> Any:
    """Return the series of one metric."""
    values = [leaf, histogram, anything, lambda c: [leaf(c) for _ in range(c.number(5))]]
    keys = ["", '["hit","0"]', '["load","success"]', '["load"]', "[", "a", ("hit", "1"), None]
    return {choices.pick(keys): choices.pick(values)(choices) for _ in range(choices.number(3))}


def offload(choices: Choices) -> Any:
    """Return a self-describing payload."""
    names = [choices.pick(NAMES) for _ in range(choices.number(4))]
    declared = {name: CATALOGUE[name].kind for name in names if name in CATALOGUE}
    kinds = {name: choices.pick(["counter", "gauge", "histogram", "x", 3]) for name in names}
    payload = {
        "types": {**kinds, **(declared if choices.number(3) else {})},
        "data": {name: series(choices) for name in names},
    }
    return {**payload, **extras(choices, offload)}


def hot(choices: Choices) -> Any:
    """Return a payload of hot buffers."""
    fields = [*DELTAS, *LEVELS, *RESIDENCY, "odd"]
    payload = {
        choices.pick(fields): [leaf(choices) for _ in range(choices.number(5))]
        if choices.number(4)
        else anything(choices)
        for _ in range(choices.number(5))
    }
    return {**payload, **extras(choices, hot)}


def extras(choices: Choices, part: Callable[[Choices], Any]) -> dict[str, Any]:
    """Return ranks, errors and info, or none."""
    found: dict[str, Any] = {}
    if not choices.number(3):
        found["rank"] = choices.pick([0, 1, 7, None, -1, "2", 1.5, 10**9])
    if not choices.number(6):
        found["ranks"] = {choices.pick(["0", "1", "", "x", 2]): part(choices) for _ in range(choices.number(3))}
    if not choices.number(8):
        found["telemetry_errors"] = anything(choices)
    if not choices.number(8):
        found["info"] = {choices.pick(NAMES): anything(choices)}
    return found


def valid(choices: Choices) -> Any:
    """Return the plain form of statistics as a producer records them, one part of it replaced or not."""
    stats = OffloadingConnectorStats(rank=choices.pick([None, 0, 1, 2]))
    stats.increase_counter("hisparse_hot_selections_total", choices.number(2**16), ("hit", choices.number(4)))
    stats.increase_counter("hisparse_hot_copied_bytes_total", choices.number(2**16), ("host_to_device", 0))
    stats.set_gauge("hisparse_host_used_bytes", choices.number(2**16))
    stats.observe_histogram("hisparse_hot_gather_seconds", [choices.number(256) / 64 for _ in range(choices.number(9))])
    plain = stats.to_dict()
    if choices.number(2):
        section = choices.pick(["types", "data"])
        plain[section][choices.pick(NAMES)] = anything(choices)
    return plain


def damaged(choices: Choices) -> bytes:
    """Return bytes of valid statistics with some of them changed, or the input's own."""
    if not choices.number(4):
        return choices.rest()
    payload = bytearray(encode_stats(OffloadingConnectorStats(valid(choices))))
    for _ in range(choices.number(4)):
        payload[choices.number(len(payload))] = choices.number(256)
    return bytes(payload[: len(payload) - (choices.number(3) == 1)])


MAKERS = [anything, offload, hot, valid, damaged, damaged]


@dataclass
class Target:
    """A pipeline that lives through all runs, and what was done to it."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    runs: int = 0

    def __post_init__(self) -> None:
        """Open the pipeline, silent, with a clock that moves a second a publish."""
        logging.getLogger("hisparse").setLevel(logging.CRITICAL)
        self.pipeline = TelemetryPipeline(
            model_name="fuzz", registry=self.registry, clock=lambda: float(self.runs), log_interval_seconds=50
        )

    def run(self, data: bytes) -> None:
        """Carry one payload all the way."""
        self.runs += 1
        choices = Choices(data)
        payload = choices.pick(MAKERS)(choices)
        children: dict[Any, Any] = {"fuzz": payload}
        turn = self.runs % 4
        if turn == 0:
            children["merged"] = merge_ranks([payload, choices.pick(MAKERS)(choices), None])
            assert_sound(children["merged"])
            children["step"] = merge_step(children["merged"], payload)
        elif turn == 1:
            assert_travels(HiSparseKVConnectorStats(payload))
        elif turn == 2:  # noqa: PLR2004  the third of four turns
            assert_travels(OffloadingConnectorStats(payload, rank=1))
        else:
            known = decode_stats(payload) if isinstance(payload, bytes) else build_kv_connector_stats(payload)
            if known is not None:
                assert_travels(known)
        self.pipeline.publish(children, engine=0)
        if self.runs % SCRAPE_EVERY == 0:
            self.check()
        if self.runs % (SCRAPE_EVERY * 40) == 0:
            self._open_again()

    def check(self) -> None:
        """Assert that whatever was exported is a finite number, and counts are not negative."""
        require(generate_latest(self.registry), "the exposition")
        for family in self.registry.collect():
            for sample in family.samples:
                require(math.isfinite(sample.value), sample)
                require(sample.value >= 0 or not sample.name.endswith(COUNTING), sample)
                require(sample.labels.get("reason") != "internal" or not sample.value, sample)

    def _open_again(self) -> None:
        self.pipeline.close()
        self.registry = CollectorRegistry()
        self.__post_init__()


def assert_travels(stats: KVConnectorStats) -> None:
    """Assert that a container is sound and comes back from its bytes as it was."""
    assert_sound(stats)
    again = decode_stats(encode_stats(stats))
    if type(again) is type(stats):
        require(again == stats, (again, stats))


def assert_sound(stats: KVConnectorStats) -> None:
    """Assert that a container reduces to finite numbers, names no internal fault, and can be sent."""
    fault = stats.examples.get("internal", "reported by the sender")
    require(fault.startswith("reported by the sender"), (fault, stats))
    require(all(math.isfinite(value) for value in stats.reduce().values()), stats)


def assert_items_add_up(rng: random.Random) -> None:
    """Assert that of the items of one payload each is either in the sums or in the skips."""
    items = [rng.choice([*LEAVES, 5, 7, 11]) for _ in range(rng.randrange(12))]
    stats = HiSparseKVConnectorStats({"cache_hits": items})
    require(len(stats.data["cache_hits"]) + sum(stats.errors.values()) == len(items), items)
    names = [f"m{i}" for i in range(len(items))]
    payload = {
        "types": dict.fromkeys(names, "counter"),
        "data": {n: {"": v} for n, v in zip(names, items, strict=True)},
    }
    own = OffloadingConnectorStats(payload)
    require(len(own.reduce()) + sum(own.errors.values()) == len(items), items)


def report(target: Target, seconds: float) -> None:
    """Print what was done."""
    target.check()
    print(f"{target.runs} payloads in {seconds:.0f} s, {target.runs / seconds:.0f} a second; no fault", flush=True)


def run_random(count: int, seed: int) -> int:
    """Make `count` inputs by chance."""
    rng, target, began = random.Random(seed), Target(), time.monotonic()  # noqa: S311  not a secret
    for i in range(count):
        target.run(rng.randbytes(rng.randrange(4, 96)))
        if i % 100 == 0:
            assert_items_add_up(rng)
        if target.runs % 50_000 == 0 and target.runs < count:
            report(target, time.monotonic() - began)
    report(target, time.monotonic() - began)
    return 0


def run_guided(argv: list[str]) -> int:
    """Let atheris choose the inputs by the lines they reach; it ends the process."""
    target, began, rng = Target(), time.monotonic(), random.Random(7)  # noqa: S311  not a secret

    def one(data: bytes) -> None:
        target.run(data)
        if target.runs % 100 == 0:
            assert_items_add_up(rng)
        if target.runs % 100_000 == 0:
            report(target, time.monotonic() - began)

    atheris.Setup(argv, one)
    atheris.Fuzz()
    return 0


def main(argv: list[str]) -> int:
    """Run as asked."""
    if len(argv) >= 2 and argv[1] == "--random":  # noqa: PLR2004  the option and its number
        return run_random(int(argv[2]) if len(argv) > 2 else 100_000, 7)  # noqa: PLR2004  the number is the third argument
    if atheris is None:
        print("atheris is not installed: pip install atheris; or --random N", file=sys.stderr)
        return 2
    return run_guided(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
