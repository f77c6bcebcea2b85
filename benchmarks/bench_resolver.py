"""Nanoseconds a selected position of `Residency.resolve` against the other ways to do it.

8 requests, 2048 of 131072 positions, 4096 slots; one layer again and again (its state stays in the caches), and
24 layers in turn (each finds its state evicted, as in a model).
"""

import sys
from collections.abc import Callable, Sequence

import numpy as np

import harness
import peers
from hisparse.kernels.cases import Case, decode_case, drifting_steps

HIT_RATIOS = (0.0, 0.5, 0.9, 0.99)
LAYERS = 24
PEERS = {
    "hash walk": peers.HashWalk,
    "numpy": peers.VectorisedNumpy,
    "torch": peers.VectorisedTorch,
    "OrderedDict": peers.PythonDict,
}
OURS = {"hisparse, order stack": "stack", "hisparse, order vllm": "vllm"}
SAME_ORDER = {"hash walk": "vllm", "numpy": "stack", "torch": "stack"}


def resolvers(case: Case) -> dict[str, Callable[[np.ndarray], peers.Plan]]:
    """Return fresh contenders by name."""
    requests = np.arange(case.requests, dtype=np.int32)
    found: dict[str, Callable[[np.ndarray], peers.Plan]] = {}
    for name, order in OURS.items():
        residency = case.residency("numba", order)
        found[name] = lambda topk, residency=residency: residency.resolve(requests, topk)
    for name, peer in PEERS.items():
        found[name] = peer(case.requests, case.hot_slots, case.max_positions, case.top_k).resolve
    return found


def check_peers(case: Case, steps: int) -> None:
    """Raise unless every peer gives the package's plan; the dictionary orders otherwise and must miss as often."""
    contenders = resolvers(case)
    for step in drifting_steps(case, steps, seed=1):
        ours = {order: contenders[name](step.topk) for name, order in OURS.items()}
        for name in PEERS:
            slots, position, slot = contenders[name](step.topk)
            expected = ours[SAME_ORDER.get(name, "stack")]
            same = len(position) == len(expected.miss_position)
            if same and name in SAME_ORDER:
                same = all(
                    np.array_equal(a, b)
                    for a, b in (
                        (slots, expected.slots),
                        (position, expected.miss_position),
                        (slot, expected.miss_slot),
                    )
                )
            if not same:
                raise AssertionError(f"peer {name!r} resolves another plan than the package: nothing to compare")


def measure(case: Case, *, layers: int, rounds: int, turns: int) -> dict[str, float]:
    """Return nanoseconds a position of each contender; each of `layers` states sees its own trace."""
    states = [resolvers(case) for _ in range(layers)]
    settle = 0 if layers == 1 else 2  # two unions fill the slots: what comes before is not in steady state
    steps = (settle + rounds) * turns // layers
    traces = [[step.topk for step in drifting_steps(case, steps, seed=layer)] for layer in range(layers)]

    def prepare(name: str, i: int) -> harness.Call:
        layer, step = i % layers, i // layers
        resolve, topk = states[layer][name], traces[layer][step]
        return lambda: resolve(topk)

    contenders = {name: lambda i, name=name: prepare(name, i) for name in states[0]}
    warm_up = 2 if layers == 1 else 0
    seconds = harness.median_seconds(contenders, rounds=rounds, calls=turns, warm_up=warm_up, settle=settle)
    return {name: value / case.selections * 1e9 for name, value in seconds.items()}


def report(title: str, columns: dict[str, dict[str, float]]) -> harness.Report:
    """Return the table of one state of the caches, with the goals at hit ratio 0.9."""
    ours, *_ = OURS
    at_goal = columns["hit 90%"]
    rows = [
        [name, *(column[name] for column in columns.values()), at_goal[name] / at_goal[ours]]
        for name in (*OURS, *PEERS)
    ]
    goals = [
        harness.goal("ns a position at 90 % hits", at_goal[ours], 10, at_most=True),
        harness.goal("times faster than the hash walk", at_goal["hash walk"] / at_goal[ours], 4),
        harness.goal("times faster than torch", at_goal["torch"] / at_goal[ours], 60),
        harness.goal("times faster than OrderedDict", at_goal["OrderedDict"] / at_goal[ours], 60),
    ]
    return harness.Report(title, ["ns a position", *columns, "x at 90%"], rows, goals if "hot" in title else goals[1:2])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    asked = harness.options(__doc__ or "", argv)
    rounds, turns = (2, 8) if asked.quick else (5, 12)
    check_peers(decode_case(0.9), 3)
    cases = [decode_case(ratio) for ratio in HIT_RATIOS]
    hot = {case.name: measure(case, layers=1, rounds=rounds, turns=turns) for case in cases}
    cold = {case.name: measure(case, layers=LAYERS, rounds=2 if asked.quick else 4, turns=LAYERS) for case in cases}
    shape = f"{cases[0].requests} x {cases[0].top_k} of {cases[0].max_positions}, {cases[0].hot_slots} slots"
    return harness.emit(
        [report(f"resolve, {shape}, cache-hot", hot), report(f"resolve, {shape}, {LAYERS} layers in turn", cold)],
        as_json=asked.json,
    )


if __name__ == "__main__":
    sys.exit(main())
