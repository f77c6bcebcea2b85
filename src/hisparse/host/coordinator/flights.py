"""Transfers under way, until every worker has answered."""

from collections.abc import ValuesView

from hisparse.errors import PositionError
from hisparse.host.coordinator.counters import Counters
from hisparse.host.coordinator.messages import Transfer
from hisparse.host.coordinator.record import Flight, RequestRecord


class Flights:
    """All transfers that have not landed, by id.

    A transfer lands when each of its workers has acknowledged it or reported its failure. Acknowledgements that
    come twice change nothing; those of ids that were never given are ignored. Both are counted.
    """

    def __init__(self, workers: int, counters: Counters) -> None:
        """Start with nothing under way."""
        self._workers = workers
        self._counters = counters
        self._all = (1 << workers) - 1
        self._flights: dict[int, Flight] = {}
        self._next = 0

    def __len__(self) -> int:
        """Return how many transfers are under way."""
        return len(self._flights)

    def values(self) -> ValuesView[Flight]:
        """Return all transfers under way.  Reads only."""
        return self._flights.values()

    def next_id(self) -> int:
        """Return an id that was never given before."""
        self._next += 1
        return self._next - 1

    def launch(self, transfer: Transfer, record: RequestRecord, page: int) -> None:
        """Keep a transfer until all workers have answered."""
        flight = Flight(transfer, record, page, self._all)
        self._flights[transfer.id] = record.flights[transfer.id] = flight

    def answer(self, transfer_id: int, worker: int, *, has_failed: bool) -> Flight | None:
        """Count one worker's answer; returns the transfer where it was the last one, which then is forgotten here.

        Raises:
            PositionError: There is no such worker; nothing was changed.
        """
        if not 0 <= worker < self._workers:
            raise PositionError(f"worker {worker} is outside 0 to {self._workers - 1}; raise workers")
        flight = self._flights.get(transfer_id)
        bit = 1 << worker
        if flight is None or not flight.missing & bit:
            is_known = 0 <= transfer_id < self._next
            self._counters.ignored["duplicate" if is_known else "unknown"] += 1
            return None
        flight.missing -= bit
        flight.has_failed |= has_failed
        return None if flight.missing else self._land(flight)

    def fail(self, transfer_id: int) -> Flight | None:
        """End a transfer for all workers; returns it, or None where it is not under way."""
        flight = self._flights.get(transfer_id)
        if flight is None:
            is_known = 0 <= transfer_id < self._next
            self._counters.ignored["duplicate" if is_known else "unknown"] += 1
            return None
        flight.has_failed = True
        return self._land(flight)

    def _land(self, flight: Flight) -> Flight:
        del self._flights[flight.transfer.id]
        if flight.has_failed:
            self._counters.failed_transfers[flight.transfer.kind] += 1
        return flight
