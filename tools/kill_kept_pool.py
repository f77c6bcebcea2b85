"""Kill processes that write to a kept pool file, at random moments, and look at what the next one finds.

    python tools/kill_kept_pool.py --times 200
    python tools/kill_kept_pool.py --times 200 --power-loss

Each round forks a process that admits, extends, writes, publishes, cuts and ends requests in a pool with too few
pages for them, so that published pages are reused all the time.  It is killed after a random time, or in the
middle of a random write, of which half reaches the file.  With ``--power-loss`` each sector of 512 B that it changed
then goes back to what it was before the round, or not, by chance: a disk that wrote what it liked.

The next pool must serve no page with another byte than was published under its key, and must find all pages of
its directory sound unless power was lost.  Pages, requests and promises are recounted.  The exit status is 1 if
anything of this fails.
"""

import argparse
import hashlib
import itertools
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hisparse.host import HostPool, RequestPages
from hisparse.layout import PageKey, RowFormat, page_keys

PAGES, PAGE_ROWS = 24, 4
LAYERS = [RowFormat("latent", 97, 97), RowFormat("index", 48, 48)]
SECTOR_BYTES = 512
# Longest documents fill half of the pool; every second one begins like its neighbour.
DOCUMENTS = [
    [number // 2] * 12 + [number] * (4 * length - 12) for number, length in enumerate([12, 9, 7, 7, 5, 4, 8, 6])
]
KEYS = [page_keys(tokens, PAGE_ROWS, model="m", revision=None, dtype="u1", row_format=LAYERS) for tokens in DOCUMENTS]
# How often a request publishes while it grows, is cut, and publishes at its end.
PUBLISHES, CUTS, ENDS = 0.6, 0.1, 0.7
EVEN = 0.5
LONGEST_SECONDS = 0.08
MOST_WRITES = 250


def open_pool(directory: Path) -> HostPool:
    """Open the pool under test."""
    return HostPool(PAGES, PAGE_ROWS, LAYERS, f"disk:{directory}?persist", identity="kill")


def content(keys: list[PageKey], layer: int) -> NDArray[np.uint8]:
    """uint8 ``[P * page_rows, row_bytes]``: what the rows of pages must be; it follows from their keys alone."""
    num_bytes = PAGE_ROWS * LAYERS[layer].row_bytes
    data = b"".join(hashlib.shake_128(key + bytes([layer])).digest(num_bytes) for key in keys)
    return np.frombuffer(data, np.uint8).reshape(-1, LAYERS[layer].row_bytes)


def num_wrong(pool: HostPool, request: RequestPages, keys: list[PageKey]) -> int:
    """Read a request that begins with published pages; returns how many of them are not what they must be."""
    wrong = np.zeros(request.length // PAGE_ROWS, np.bool_)
    for layer, row_format in enumerate(LAYERS):
        out = np.empty((request.length, row_format.row_bytes), np.uint8)
        pool.read(layer, request.rows(np.arange(request.length)), out)
        wrong |= (out != content(keys[: wrong.size], layer)).any(1).reshape(-1, PAGE_ROWS).any(1)
    return int(np.count_nonzero(wrong))


# ------------------------------------------------------------------ the killed


def work(pool: HostPool, chance: random.Random) -> Iterator[None]:
    """Serve documents for ever; yields between any two steps."""
    while True:
        number = chance.randrange(len(DOCUMENTS))
        tokens, keys = DOCUMENTS[number], KEYS[number]
        request = pool.admit(len(tokens), keys=keys)
        if request.length and num_wrong(pool, request, keys):
            os._exit(3)
        yield
        while request.length < len(tokens):
            first = request.length
            request.extend(min(len(tokens), first + chance.randint(1, 3 * PAGE_ROWS)))
            for layer in chance.sample(range(len(LAYERS)), len(LAYERS)):
                positions = np.arange(first, request.length)
                pool.write(layer, request.rows(positions), content(keys, layer)[first : request.length])
                yield
            if chance.random() < PUBLISHES:
                request.publish(keys[: request.length // PAGE_ROWS])
                yield
            if chance.random() < CUTS:
                request.truncate(chance.randrange(request.length))
        if chance.random() < ENDS:
            request.publish(keys)
        yield
        request.close()


def write_half(at: int) -> None:
    """Let write number `at` of this process write half of its bytes and kill it."""
    whole, numbers = os.pwrite, itertools.count(1)

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if next(numbers) < at:
            return whole(fd, data, offset)
        whole(fd, bytes(data)[: len(data) // 2], offset)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    os.pwrite = pwrite


def serve(directory: Path, seed: int, *, writes: int) -> None:
    """Open the pool and work on two requests in turn, with a pool that is closed and opened now and then."""
    chance = random.Random(seed)  # noqa: S311  seeded, to be repeated
    if writes:
        write_half(writes)
    while True:
        pool = open_pool(directory)
        several = [work(pool, chance), work(pool, chance)]
        for _ in range(chance.randint(20, 300)):
            next(chance.choice(several))
        pool.check()
        pool.close()


def killed(directory: Path, chance: random.Random) -> str:
    """Fork a process, kill it; returns how."""
    writes = chance.randint(1, MOST_WRITES) if chance.random() < EVEN else 0
    seed = chance.randrange(1 << 30)
    child = os.fork()
    if child == 0:
        try:
            serve(directory, seed, writes=writes)
        finally:
            os._exit(2)
    if not writes:
        time.sleep(chance.random() * LONGEST_SECONDS)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        sys.exit(f"the process ended by itself, with status {os.waitstatus_to_exitcode(status)}")
    return "killed in a write" if writes else "killed by time"


# -------------------------------------------------------------------- the next


def lose_power(path: Path, before: bytes, chance: random.Random) -> None:
    """Let sectors that were changed go back to what they were, by chance."""
    after = path.read_bytes()
    if len(before) != len(after):
        return
    sectors = range(0, len(after), SECTOR_BYTES)
    kept = [(before if chance.random() < EVEN else after)[at : at + SECTOR_BYTES] for at in sectors]
    with path.open("rb+") as file:
        file.write(b"".join(kept))


def look(directory: Path) -> Counter[str]:
    """Open the pool and read all that is found in it."""
    with open_pool(directory) as pool:
        recovery = pool.recovery
        if recovery is None:
            sys.exit("the pool was not kept")
        found = Counter({"pages found": recovery.pages})
        for keys in KEYS:
            request = pool.admit(len(keys) * PAGE_ROWS, keys=keys)
            found["pages served"] += request.length // PAGE_ROWS
            found["wrong"] += num_wrong(pool, request, keys) if request.length else 0
            request.close()
        pool.check()
        return found + recovery.ignored


def main() -> None:
    """Kill and look, `times` times, in one file; print the sums."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--power-loss", action="store_true")
    options = parser.parse_args()
    logging.disable()
    chance = random.Random(options.seed)  # noqa: S311  seeded, to be repeated
    totals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name, "pool")
        look(directory)  # compiles what the killed would otherwise compile
        [path] = directory.iterdir()
        for _ in range(options.times):
            before = path.read_bytes()
            totals[killed(directory, chance)] += 1
            if options.power_loss:
                lose_power(path, before, chance)
            totals += look(directory)
    print(", ".join(f"{number} {what}" for what, number in {"wrong": 0, **totals}.items()))
    if totals["wrong"] or (totals["altered"] and not options.power_loss):
        sys.exit(1)


if __name__ == "__main__":
    main()
