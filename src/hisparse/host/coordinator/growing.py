"""How running requests get longer."""

from collections.abc import Sequence

from hisparse.errors import HostPoolFullError, PositionError
from hisparse.host.coordinator.books import Books
from hisparse.host.coordinator.moves import PageEvent
from hisparse.host.coordinator.publishing import Publishing
from hisparse.host.coordinator.record import RequestRecord
from hisparse.host.coordinator.room import Room
from hisparse.host.coordinator.spilling import Spilling
from hisparse.layout import PageKey, pages_for


class Growing:
    """Gives running requests pages on both ends."""

    def __init__(self, books: Books, *, room: Room, spilling: Spilling, publishing: Publishing) -> None:
        """Work on `books`."""
        self._books = books
        self._room = room
        self._spilling = spilling
        self._publishing = publishing

    def append(self, record: RequestRecord, length: int, lookahead: int) -> None:
        """Let a request have `length` accepted positions and room for `lookahead` more.

        Raises:
            PositionError: `length` is below the present one, or `lookahead` negative; nothing was changed.
            HostPoolFullError: `length` is above what was promised; nothing was changed.
            DevicePagesFullError: The device has no pages for it now; nothing was changed.
        """
        claim = record.claim
        if length < record.length or lookahead < 0:
            raise PositionError(
                f"append to {length} positions and {lookahead} ahead is below the {record.length} that "
                f"request {record.request_id!r} has; accepted rows stay"
            )
        if length > claim.max_positions:
            raise HostPoolFullError(
                f"append to {length} positions exceeds the {claim.max_positions} ({claim.promised} pages) that "
                f"request {record.request_id!r} was promised; raise max_positions"
            )
        end = min(length + lookahead, claim.max_positions)
        missing = pages_for(end, self._books.settings.page_rows) - len(record.pages)
        if missing > 0:
            self._add_pages(record, missing)
        if record.step != self._books.updates.step and record not in self._books.arrivals:
            record.computed, record.step = record.length, self._books.updates.step
        record.length = length
        if record.copying.sent < self._spilling.goal(record):
            self._books.backlog.setdefault(record)

    def set_keys(self, record: RequestRecord, keys: Sequence[PageKey]) -> None:
        """Learn the keys of more pages of a request."""
        if len(keys) > len(record.keys) and not record.is_private:
            record.keys = list(keys)
            self._publishing.queue(record)

    def _add_pages(self, record: RequestRecord, num_pages: int) -> None:
        books, pages, claim = self._books, record.pages, record.claim
        taken = self._room.take(record, num_pages)
        first, tail = len(pages), self._room.tail_start(record)
        pages.append(PageEvent.WRITE, taken)
        length = min(len(pages) * books.settings.page_rows, claim.max_positions)
        if len(pages) > claim.held:
            books.ledger.grow(claim, length, replace_tail=False)
        for page in range(first, len(pages)):
            books.updates.change(record, page)
        for page in range(tail, self._room.tail_start(record)):
            self._room.relax(record, page)
