"""An engine of several processes: two workers that resolve the same selections, and a scheduler that merges."""

from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Self

import numpy as np

from hisparse.connectors import GroupCounterSource, HiSparseConnector, HostLevels, KVConnector
from hisparse.hot import GroupCounters
from hisparse.telemetry import KVConnectorStats, encode_stats, merge_ranks, merge_step

# Of each step and rank: selections of both ranks are alike, bytes are each rank's own.
HITS, MISSES, STEP_BYTES = 12, 4, 64
RANKS = 2
PAGES, USED_PAGES = 8, 2


class Pool:
    """A host pool of which a quarter is used."""

    def levels(self) -> HostLevels:
        return HostLevels(pages=PAGES, used_pages=USED_PAGES, page_bytes=1024)


def run_worker(rank: int, pipe: Connection) -> None:
    """Count a step for each word that comes, and answer with statistics as bytes; flush for ``"shutdown"``."""
    counters = GroupCounters(requests=1, layers=1)
    # Ranks do not sample in the same step.
    source = GroupCounterSource([(0,)], [counters])
    connector = HiSparseConnector("worker", source=source, rank=rank, every_seconds=3600, every_calls=500 + 300 * rank)
    while (word := pipe.recv()) != "exit":
        if word == "step":
            counters.record_selection(np.zeros(1, np.int32), np.array([[HITS, MISSES, 0, 0]]), HITS + MISSES)
            counters.record_load(0, STEP_BYTES, 0.001)
        else:
            end(connector, word)
        pipe.send(to_bytes(connector.get_kv_connector_stats()))


def run_scheduler(pipe: Connection, workers: list[Connection]) -> None:
    """Pass each word on to the workers, and answer with what they and the scheduler side say, as bytes."""
    connector = HiSparseConnector("scheduler", levels=Pool())
    while True:
        word = pipe.recv()
        for worker in workers:
            worker.send(word)
        if word == "exit":
            return
        end(connector, word)
        counted = [worker.recv() for worker in workers]
        joined = merge_ranks(counted) if any(counted) else None
        pipe.send(to_bytes(merge_step(joined, connector.get_kv_connector_stats())))


def end(connector: KVConnector, word: str) -> None:
    """Reset or shut down a connector if that is the word."""
    if word == "reset":
        connector.reset_cache()
    elif word == "shutdown":
        connector.shutdown()


def to_bytes(stats: KVConnectorStats | None) -> bytes | None:
    """Return statistics as they cross a process boundary."""
    return None if stats is None else encode_stats(stats)


class Engine:
    """Runs the three processes for a front end."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.pipe, scheduler_end = context.Pipe()
        pairs = [context.Pipe() for _ in range(RANKS)]
        self.processes: list[Any] = [
            context.Process(target=run_scheduler, args=(scheduler_end, [ours for ours, _ in pairs])),
            *(context.Process(target=run_worker, args=(rank, theirs)) for rank, (_, theirs) in enumerate(pairs)),
        ]

    def __enter__(self) -> Self:
        """Start the processes."""
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """End the processes."""
        self.pipe.send("exit")
        for process in self.processes:
            process.join(60)

    def say(self, word: str) -> bytes | None:
        """Let the engine do something, and return the statistics of that step."""
        self.pipe.send(word)
        answer: bytes | None = self.pipe.recv()
        return answer
