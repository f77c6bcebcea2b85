"""Call a coordinator in any order, with workers that keep real rows, and recount and read everything after each call.

    python tools/fuzz_coordinator.py --steps 100000 --seed 1

Each world has sizes of its own. It fails with the seed of the world where a recount does not hold, where a row reads
otherwise than it was computed, where a page in flight is free, where a request waits for ever, and where anything is
left at the end. Then it prints how often what happened, so that a call that never came about shows.
"""

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "host" / "coordinator"))

from simulated_workers import PAGE_ROWS, World, family_keys

WORLD_STEPS = 300
NAMES = "abcdefgh"
CALLS = {
    "admit": 3,
    "append": 10,
    "step": 8,
    "answer": 12,
    "answer_all": 0.5,
    "answer_again": 1,
    "answer_unknown": 1,
    "fail": 1,
    "fail_for_all": 1,
    "end": 0.7,
    "preempt": 0.5,
    "resume": 2,
    "bounce": 1,
    "reset": 0.2,
    "evict": 0.5,
    "go_on": 0.3,
}


class Run:
    """One world, driven by chance."""

    def __init__(self, seed: int) -> None:
        """Make a world whose sizes follow from the seed."""
        self.chance = random.Random(seed)  # noqa: S311  seeded chance is what this is about
        pick = self.chance.choice
        self.world = World(
            host_pages=pick([12, 24, 40]),
            device_pages=pick([7, 10, 14, 24]),
            workers=pick([1, 2, 3]),
            spill=pick(["eager", "pressure"]),
            hot_pages=pick([0, 1, 2, 4]),
            max_spill_pages=pick([1, 3, 8]),
            pinned_tail_pages=pick([1, 2]),
        )
        # Worlds differ in what is rare: where transfers are answered late, others than usual meet.
        self.weights = [weight * pick([0.1, 0.5, 1, 2]) for weight in CALLS.values()]
        self.counts: Counter[str] = Counter()

    def run(self, steps: int) -> None:
        """Make calls, then end everything."""
        for call in self.chance.choices([*CALLS], weights=self.weights, k=steps):
            happened = getattr(self, call)()
            self.counts[call] += happened is not False
            self.counts[f"{call} refused"] += happened is False
            self.world.check()
        totals = self.world.coordinator.stats().totals
        self.counts.update({"activations": totals.activations, "restored pages": totals.restored_pages})
        self.counts.update({"adopted pages": totals.adopted_pages, "reused pages": totals.reused_pages})
        self.world.close()

    def admit(self) -> bool:
        """Ask for admission, with a prefix that others may have or without."""
        name, length = self.chance.choice(NAMES), self.chance.randint(1, 60)
        if name in self.world.models:
            return False
        num_keys = self.chance.choice([0, length // PAGE_ROWS // 2, length // PAGE_ROWS])
        keys = family_keys(self.chance.randint(1, 3), num_keys)
        return self.world.admit(name, length, keys, told=self.chance.choice([None, 0, 1]))

    def append(self) -> bool:
        """Let a running request have more rows, or finish it where it has all."""
        running = self.world.running()
        for name in running:
            model = self.world.models[name]
            if model.computed == model.max_positions:
                self.world.end(name, "finish", flush=True)
                return True
        rows, lookahead = self.chance.choice([0, 1, 1, 2, 5, 9, 17]), self.chance.choice([0, 0, 1, 3])
        tells = self.chance.choice([True, False, False])
        return bool(running) and self.world.append(self.chance.choice(running), rows, lookahead, tells_keys=tells)

    def step(self) -> None:
        """Plan and compute."""
        self.world.step()

    def answer(self) -> bool:
        """Let one worker answer one transfer, perhaps again."""
        if not self.world.in_flight:
            return False
        self.world.answer(self.in_flight(), self.chance.randrange(len(self.world.workers)))
        return True

    def in_flight(self) -> int:
        """Return the id of a transfer under way."""
        return self.chance.choice(list(self.world.in_flight))

    def answer_all(self) -> None:
        """Let all transfers land."""
        self.world.answer_all(newest_first=self.chance.choice([True, False]))

    def answer_again(self) -> bool:
        """Acknowledge what has landed."""
        transfer_id = self.chance.randrange(self.world.given or 1)
        if transfer_id in self.world.in_flight:
            return False
        self.world.coordinator.acknowledge(transfer_id)
        return True

    def answer_unknown(self) -> None:
        """Acknowledge what never was."""
        self.world.coordinator.acknowledge(self.chance.choice([-1, 10**9]))

    def fail(self) -> bool:
        """Let one worker fail."""
        if not self.world.in_flight:
            return False
        transfer_id = self.in_flight()
        worker = self.chance.choice(sorted(self.world.in_flight[transfer_id][1]))
        self.world.answer(transfer_id, worker, is_good=False)
        return True

    def fail_for_all(self) -> bool:
        """End a transfer badly."""
        if not self.world.in_flight:
            return False
        self.world.fail_for_all(self.in_flight())
        return True

    def end(self) -> bool:
        """End a request in one of the three ways."""
        if not self.world.models:
            return False
        how, name = self.chance.choice(["finish", "abort", "fail"]), self.chance.choice(list(self.world.models))
        self.world.end(name, how, flush=self.chance.choice([True, True, False]))
        return True

    def preempt(self) -> bool:
        """Take a request off the device."""
        running = self.world.running()
        if running:
            self.world.preempt(self.chance.choice(running), flush=self.chance.choice([True, True, False]))
        return bool(running)

    def resume(self) -> bool:
        """Let a preempted request run again."""
        preempted = self.world.preempted()
        return bool(preempted) and self.world.resume(self.chance.choice(preempted))

    def bounce(self) -> bool:
        """Preempt a request and resume it at once, with whatever was in flight, let it go on, and that land last."""
        running = self.world.running()
        if not running:
            return False
        name = self.chance.choice(running)
        self.world.preempt(name, flush=self.chance.choice([True, False]))
        if not self.world.resume(name) or not self.world.append(name, self.chance.randint(1, 9), tells_keys=False):
            return False
        self.world.step()
        self.world.answer_all(newest_first=True)
        return True

    def reset(self) -> None:
        """Forget all keys."""
        self.world.coordinator.reset()

    def evict(self) -> None:
        """Let cached host pages give way."""
        self.world.ledger.evict(self.chance.randint(1, 4))

    def go_on(self) -> bool:
        """Require that a running request gets its next page."""
        running = self.world.running()
        if running:
            self.world.go_on(self.chance.choice(running))
        return bool(running)


def main() -> int:
    """Run worlds until the steps are made; the status is 1 where one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000, help="calls in all")
    parser.add_argument("--seed", type=int, default=0, help="of the first world; the others follow")
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    start, done, seed = time.monotonic(), 0, asked.seed
    while done < asked.steps:
        world = Run(seed)
        try:
            world.run(WORLD_STEPS)
        except Exception:
            print(f"the world of --seed {seed} --steps 1 failed", file=sys.stderr)
            raise
        counts.update(world.counts)
        done, seed = done + WORLD_STEPS, seed + 1
    print(f"{done:,} steps in {seed - asked.seed:,} worlds, {time.monotonic() - start:.0f} s")
    print("\n".join(f"{count:>9,}  {what}" for what, count in sorted(counts.items()) if count))
    return 0


if __name__ == "__main__":
    sys.exit(main())
