"""How requests stop: preempted, finished, aborted or failed, with transfers in flight or not."""

import numpy as np

from hisparse.host.coordinator.books import Books
from hisparse.host.coordinator.moves import PageState
from hisparse.host.coordinator.publishing import Publishing
from hisparse.host.coordinator.record import UNLIMITED, Phase, RequestRecord
from hisparse.host.coordinator.room import Room
from hisparse.host.coordinator.spilling import Spilling


class Leaving:
    """Ends the running of requests; full pages may be spilled first, everything in flight lands first."""

    def __init__(self, books: Books, *, room: Room, spilling: Spilling, publishing: Publishing) -> None:
        """Work on `books`."""
        self._books = books
        self._room = room
        self._spilling = spilling
        self._publishing = publishing

    def leave(self, record: RequestRecord, phase: Phase, *, flush: bool) -> None:
        """Take a request off the device; rows that were appended and not computed never existed.

        Its hot buffer, its promise and the partly filled page at its end are given back at once, its clean pages
        stay readable until they are taken. Full pages that are not on the host are spilled first with `flush`;
        without it they are lost, unless they are on their way already.
        """
        books = self._books
        record.phase = phase
        if record in books.arrivals or record.step == books.updates.step:
            record.length = min(record.length, record.computed)
        books.arrivals.pop(record, None)
        books.backlog.pop(record, None)
        if record.share.is_open:
            books.updates.release(record)
            self._room.deactivate(record)
            books.budget.close(record)
        self._room.drop_from(record, record.length // books.settings.page_rows)
        if not flush:
            self._give_up_dirty(record)
        for page in record.pages.pages_in(PageState.CLEAN):
            self._room.relax(record, page)
        books.leaving[record] = None
        self.settle(record)

    def settle(self, record: RequestRecord) -> None:
        """Let a request go that has nothing to spill and nothing on its way any more; pages are freed."""
        if record.copying.open or self._spilling.has_more(record):
            return
        self._books.leaving.pop(record, None)
        self._publishing.publish(record)
        if record.phase == Phase.ENDING:
            self._dismiss(record)
        else:
            self._cut(record)

    def resume(self, record: RequestRecord) -> int:
        """Let a preempted request run again from its durable prefix; returns the positions of it.

        Raises:
            DevicePagesFullError: Its floor cannot be promised now; nothing was changed.
        """
        books = self._books
        self._room.check_floor(record.share.promised)
        books.leaving.pop(record, None)
        self._publishing.publish(record)
        self._cut(record)
        record.phase = Phase.RUNNING
        record.copying.limit = UNLIMITED
        self._room.open(record)
        books.updates.admit(record)
        books.arrivals[record] = None
        return record.length

    def _cut(self, record: RequestRecord) -> None:
        """Cut a request to its durable prefix."""
        self._room.drop_from(record, record.pages.durable)
        positions = record.pages.durable * self._books.settings.page_rows
        record.length = record.computed = record.copying.sent = positions

    def _give_up_dirty(self, record: RequestRecord) -> None:
        """Spill nothing from the first page on that is not wholly on its way; what is behind it is of no use."""
        record.copying.limit = next(record.pages.pages_in(PageState.DIRTY), record.copying.limit)
        failed = min(record.copying.again, default=record.copying.limit)
        record.copying.limit = min(record.copying.limit, failed)
        self._room.drop_from(record, min(record.copying.limit, len(record.pages)))

    def _dismiss(self, record: RequestRecord) -> None:
        """Free what is left of a request; host pages in flight are freed when they have landed."""
        self._room.drop_from(record, 0)
        ledger = self._books.ledger
        if record.flights:
            ledger.pin(np.array([flight.transfer.host_page for flight in record.flights.values()], np.int32))
            for flight in record.flights.values():
                flight.record = None
        ledger.drop(record.claim)
