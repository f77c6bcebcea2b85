"""What happens when a transfer has been answered by all workers."""

import numpy as np

from hisparse.host.coordinator.books import Books
from hisparse.host.coordinator.leaving import Leaving
from hisparse.host.coordinator.moves import PageEvent, PageState
from hisparse.host.coordinator.publishing import Publishing
from hisparse.host.coordinator.record import Flight, Phase, RequestRecord
from hisparse.host.coordinator.room import Room, close_copy


class Landing:
    """Moves pages on when their copies have landed."""

    def __init__(self, books: Books, *, room: Room, publishing: Publishing, leaving: Leaving) -> None:
        """Work on `books`."""
        self._books = books
        self._room = room
        self._publishing = publishing
        self._leaving = leaving

    def land(self, flight: Flight) -> None:
        """Unpin both ends of a transfer and let its page move on."""
        record, transfer = flight.record, flight.transfer
        self._books.device.unpin(transfer.device_page)
        if record is None:
            self._books.ledger.unpin(np.array([transfer.host_page], np.int32))
            return
        del record.flights[transfer.id]
        if flight.is_stale:
            close_copy(record.copying.stale, flight.page)
        elif transfer.kind == "spill":
            self._land_spill(flight, record)
        else:
            self._land_restore(flight, record)

    def _land_spill(self, flight: Flight, record: RequestRecord) -> None:
        books, copying, page = self._books, record.copying, flight.page
        if flight.has_failed:
            copying.again.add(page)
            if record.phase == Phase.RUNNING:
                books.backlog.setdefault(record)
            else:
                # One try for what nobody waits for: the prefix before the page is kept.
                copying.limit = min(copying.limit, page)
        else:
            books.counters.spilled_bytes[flight.transfer.reason] += books.settings.bytes_of(flight.transfer.rows)
        if not close_copy(copying.open, page) and record.pages.states[page] == PageState.SPILLING:
            self._finish_spill(flight, record)
        if record.phase != Phase.RUNNING:
            self._leaving.settle(record)

    def _finish_spill(self, flight: Flight, record: RequestRecord) -> None:
        """All copies of a full page have landed."""
        page = flight.page
        if page in record.copying.again:
            record.pages.move(page, PageEvent.FAIL)
            return
        record.pages.move(page, PageEvent.LAND)
        record.pages.count_durable()
        self._books.counters.spilled_pages[flight.transfer.reason] += 1
        self._publishing.queue(record)
        self._room.relax(record, page)

    def _land_restore(self, flight: Flight, record: RequestRecord) -> None:
        books, page = self._books, flight.page
        if flight.has_failed:
            self._room.leave_unread(record, page)
            return
        record.pages.move(page, PageEvent.LAND)
        books.counters.restored_pages += 1
        books.counters.restored_bytes += books.settings.bytes_of(flight.transfer.rows)
        books.updates.change(record, page)
        self._publishing.name(record, page)
        self._room.relax(record, page)
