"""What the workers of one step tell the scheduler: measured transfers and jobs that ended."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from hisparse.connectors.offloading.transfers import TransferStats
from hisparse.connectors.reading import read_whole
from hisparse.telemetry import SkipReason
from hisparse.telemetry.values import ItemError, read_text, show


@dataclass(slots=True, kw_only=True)
class OffloadingWorkerMetadata:
    """Transfers and jobs that ended on one worker, or on several.

    A job is done when as many workers as there are have ended it, and it failed if it failed on one of them:
    so jobs carry the number of workers. The jobs of a worker are bounded by what was submitted to it, and
    none of them may get lost, since each holds blocks; so nothing here drops one.

    Attributes:
        transfers: What the workers measured; bytes add up over them.
        completed_jobs: Job to the number of workers on which it succeeded.
        failed_jobs: Job to the reasons for which it failed, each with the number of workers.
    """

    transfers: TransferStats = field(default_factory=TransferStats)
    completed_jobs: dict[int, int] = field(default_factory=dict)
    failed_jobs: dict[int, dict[str, int]] = field(default_factory=dict)

    def complete(self, job_id: int, workers: int = 1) -> None:
        """Note that a job succeeded on a worker."""
        self.completed_jobs[job_id] = self.completed_jobs.get(job_id, 0) + workers

    def fail(self, job_id: int, reason: str, workers: int = 1) -> None:
        """Note that a job failed on a worker."""
        reasons = self.failed_jobs.setdefault(job_id, {})
        reasons[reason] = reasons.get(reason, 0) + workers

    def is_empty(self) -> bool:
        """Tell whether nothing ended. Reads only."""
        return self.transfers.is_empty() and not self.completed_jobs and not self.failed_jobs

    def aggregate(self, other: Any) -> Self:
        """Add `other`, an object, its plain form or None, and return this one. Never raises on data.

        What cannot be used is left out and counted in `transfers.errors`, so it reaches the telemetry.
        """
        if other is None:
            return self
        data = other.to_dict() if isinstance(other, OffloadingWorkerMetadata) else other
        if not isinstance(data, Mapping):
            self.transfers.skip(SkipReason.WRONG_TYPE, f"worker metadata must be a mapping, got {show(other)}")
            return self
        self.transfers.aggregate(data.get("transfers"))
        for entry in self._entries(data, "completed_jobs", 2):
            self._add(entry)
        for entry in self._entries(data, "failed_jobs", 3):
            self._add(entry)
        for key in data.keys() - {"transfers", "completed_jobs", "failed_jobs"}:
            self.transfers.skip(SkipReason.UNKNOWN_KEY, f"unknown part {show(key)} of worker metadata")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form; it survives msgpack, JSON and pickle. Reads only."""
        failed = [
            [job_id, reason, workers] for job_id, why in self.failed_jobs.items() for reason, workers in why.items()
        ]
        completed = [[job_id, workers] for job_id, workers in self.completed_jobs.items()]
        return {"transfers": self.transfers.to_dict(), "completed_jobs": completed, "failed_jobs": failed}

    def take(self) -> dict[str, Any]:
        """Return the plain form and forget it: the hand-over that neither loses nor repeats anything."""
        plain = {**self.to_dict(), "transfers": self.transfers.take()}
        self.completed_jobs = {}
        self.failed_jobs = {}
        return plain

    def _entries(self, data: Mapping[str, Any], key: str, length: int) -> Iterator[list[Any]]:
        entries = data.get(key, ())
        for entry in entries if isinstance(entries, list | tuple) else [entries]:
            if isinstance(entry, list | tuple) and len(entry) == length:
                yield list(entry)
            else:
                self.transfers.skip(SkipReason.WRONG_TYPE, f"{key} must be lists of {length}, got {show(entry)}")

    def _add(self, entry: Iterable[Any]) -> None:
        try:
            job_id, *reasons, workers = entry
            job, number = read_whole(job_id, "a job"), read_whole(workers, "workers")
            if reasons:
                self.fail(job, read_text(reasons[0], "a reason"), number)
            else:
                self.complete(job, number)
        except ItemError as error:
            self.transfers.skip(error.reason, str(error))
