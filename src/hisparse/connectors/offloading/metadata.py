"""What the workers of one step tell the scheduler: measured transfers and jobs that ended."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Self

from hisparse.connectors.offloading.direction import OTHER_REASON, read_reason
from hisparse.connectors.offloading.transfers import TransferStats
from hisparse.connectors.reading import explained, read_whole
from hisparse.telemetry import SkipReason
from hisparse.telemetry.values import MAX_NUMBER, ItemError, show

_JOBS = 2**64


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
        """Note that a job succeeded on a worker. Never raises: what is no job is counted in `transfers.errors`."""
        self._note(job_id, (), workers)

    def fail(self, job_id: int, reason: str | BaseException, workers: int = 1) -> None:
        """Note that a job failed on a worker; `reason` is one of a few fixed words, or the error."""
        self._note(job_id, (reason,), workers)

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
        try:
            self._merge(data)
        except Exception as error:  # noqa: BLE001  somebody else's mapping may raise anything
            self.transfers.skip(SkipReason.INTERNAL, explained(error))
        return self

    def _merge(self, data: Mapping[str, Any]) -> None:
        self.transfers.aggregate(data.get("transfers"))
        for job, workers in self._entries("completed_jobs", _pairs(data.get("completed_jobs")), 2):
            self._note(job, (), workers)
        for job, reason, workers in self._entries("failed_jobs", _triples(data.get("failed_jobs")), 3):
            self._note(job, (reason,), workers)
        for key in data.keys() - {"transfers", "completed_jobs", "failed_jobs"}:
            self.transfers.skip(SkipReason.UNKNOWN_KEY, f"unknown part {show(key)} of worker metadata")

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form; it survives msgpack, JSON and pickle. Reads only."""
        failed = [
            [job_id, reason, workers] for job_id, why in self.failed_jobs.items() for reason, workers in why.items()
        ]
        completed = [[job_id, workers] for job_id, workers in self.completed_jobs.items()]
        return {"transfers": self.transfers.to_dict(), "completed_jobs": completed, "failed_jobs": failed}

    def take(self) -> dict[str, Any]:
        """Return the plain form and forget it: the hand-over that neither loses nor repeats anything."""
        plain = self.to_dict()
        self.reset()
        return plain

    def reset(self) -> None:
        """Forget what ended; time that was busy and reasons that are told apart stay known."""
        self.transfers.reset()
        self.completed_jobs = {}
        self.failed_jobs = {}

    def _entries(self, key: str, entries: Any, length: int) -> Iterator[list[Any]]:
        for entry in entries if isinstance(entries, list | tuple) else [entries]:
            if isinstance(entry, list | tuple) and len(entry) == length:
                yield list(entry)
                continue
            self.transfers.skip(SkipReason.WRONG_TYPE, f"{key} must be lists of {length}, got {show(entry)}")
            if isinstance(entry, list | tuple) and entry:
                # The job holds blocks: what else there is to say of it matters less than that it ended.
                yield [entry[0], *[OTHER_REASON] * (length - 2), 1]

    def _note(self, job_id: Any, reasons: tuple[Any, ...], workers: Any) -> None:
        try:
            job = read_job(job_id)
        except ItemError as error:
            self.transfers.skip(error.reason, str(error))
            return
        try:
            number = read_whole(workers, "workers")
        except ItemError as error:
            self.transfers.skip(error.reason, str(error))
            number = 1
        if not reasons:
            self.completed_jobs[job] = self.completed_jobs.get(job, 0) + number
            return
        reason, wrong = read_reason(reasons[0])
        self.transfers.skip_each(wrong)
        known = self.failed_jobs.setdefault(job, {})
        known[reason] = known.get(reason, 0) + number


def read_job(job_id: Any) -> int:
    """Return the number of a job; it counts nothing, so it may be as large as an identity of 64 bits.

    Raises:
        ItemError: It is none.
    """
    if isinstance(job_id, Integral) and MAX_NUMBER < int(job_id) < _JOBS:
        return int(job_id)
    if isinstance(job_id, str) and job_id.isdecimal() and len(job_id) <= len(str(_JOBS)):
        return read_job(int(job_id))  # a key of JSON
    return read_whole(job_id, "a job")


def _pairs(jobs: Any) -> Any:
    """Return `jobs` as lists of job and workers, also where it is a mapping of them."""
    if isinstance(jobs, Mapping):
        return [[job, workers] for job, workers in jobs.items()]
    return () if jobs is None else jobs


def _triples(jobs: Any) -> Any:
    """Return `jobs` as lists of job, reason and workers, also where it is a mapping to mappings."""
    if not isinstance(jobs, Mapping):
        return () if jobs is None else jobs
    return [
        [job, reason, workers]
        for job, why in jobs.items()
        for reason, workers in (why.items() if isinstance(why, Mapping) and why else [(why, 1)])
    ]
