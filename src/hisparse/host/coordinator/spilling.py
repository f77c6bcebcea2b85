"""Which rows are copied to the host in a step."""

from collections.abc import Iterator

from hisparse.host.coordinator.books import Books
from hisparse.host.coordinator.messages import SpillReason, Transfer
from hisparse.host.coordinator.moves import PageEvent
from hisparse.host.coordinator.record import Phase, RequestRecord
from hisparse.host.coordinator.room import Room


class Spilling:
    """Plans spills within a budget of whole pages a step; runs of rows that are no whole page are not budgeted.

    Rows of a request go in order, so its oldest page is first. Requests that do not run come first, because their
    device pages come free; then those that wait the longest.
    """

    def __init__(self, books: Books, room: Room) -> None:
        """Work on `books`."""
        self._books = books
        self._room = room

    def goal(self, record: RequestRecord) -> int:
        """Return the position up to which rows are to be on the host.  Reads only."""
        settings = self._books.settings
        if record.phase != Phase.RUNNING:
            return min(record.length // settings.page_rows, record.copying.limit) * settings.page_rows
        if record in self._books.arrivals:
            return 0
        if settings.spill == "eager":
            return record.length
        if not record.share.is_hot:
            return 0
        full = record.length // settings.page_rows
        return min(full, self._room.tail_start(record)) * settings.page_rows

    def has_more(self, record: RequestRecord) -> bool:
        """Return whether a request has rows to spill.  Reads only."""
        copying = record.copying
        return copying.sent < self.goal(record) or any(page < copying.limit for page in copying.again)

    def plan(self) -> list[Transfer]:
        """Return the spills of this step."""
        books = self._books
        planned: list[Transfer] = []
        left = books.settings.max_spill_pages
        for queue in (books.leaving, books.backlog):
            for record in list(queue):
                before, left = left, self._send(record, left, planned)
                if queue is books.leaving:
                    continue
                has_more = self.has_more(record)
                if not has_more or left < before:
                    # Whoever had a turn and is not done goes to the end: a long prompt does not hold up the others.
                    del queue[record]
                if has_more:
                    queue.setdefault(record)
        return planned

    def _send(self, record: RequestRecord, left: int, planned: list[Transfer]) -> int:
        """Add a request's spills to those planned; returns how many whole pages the budget has left."""
        copying, page_rows = record.copying, self._books.settings.page_rows
        for page in sorted(copying.again):
            rows = min(page_rows, copying.sent - page * page_rows)
            is_blocked = page in copying.open or page in copying.stale or page >= copying.limit
            if is_blocked or (rows == page_rows and not left):
                continue
            copying.again.remove(page)
            left -= rows == page_rows
            planned.append(self._launch(record, page, 0, rows=rows))
        missing = self.goal(record) - copying.sent
        for page, first, rows in split_rows(copying.sent, missing, page_rows):
            if page in copying.stale or (rows == page_rows and not left):
                break
            left -= rows == page_rows
            copying.sent += rows
            planned.append(self._launch(record, page, first, rows=rows))
        return left

    def _launch(self, record: RequestRecord, page: int, first: int, *, rows: int) -> Transfer:
        books, copying = self._books, record.copying
        device_page = record.pages.device[page]
        transfer = Transfer(
            books.flights.next_id(),
            "spill",
            record.request_id,
            int(record.claim.pages[page]),
            device_page,
            first,
            rows,
            self._reason(record),
        )
        if first + rows == books.settings.page_rows:
            record.pages.move(page, PageEvent.SEND)
        copying.open[page] = copying.open.get(page, 0) + 1
        books.device.pin(device_page)
        books.flights.launch(transfer, record, page)
        return transfer

    def _reason(self, record: RequestRecord) -> SpillReason:
        if record.phase == Phase.RUNNING:
            return "eager" if self._books.settings.spill == "eager" else "pressure"
        return "preempt" if record.phase == Phase.WAITING else "finish"


def split_rows(position: int, rows: int, page_rows: int) -> Iterator[tuple[int, int, int]]:
    """Split a run of rows at page edges.

    Yields:
        Page, first row in it and rows, for each page.
    """
    end = position + rows
    while position < end:
        page, first = divmod(position, page_rows)
        taken = min(page_rows - first, end - position)
        yield page, first, taken
        position += taken


def written_rows(*, computed: int, scheduled: int, placeholders: int = 0, lookahead: int = 0) -> tuple[int, int]:
    """Return the first position and the rows that a step may write, drafts included.

    Args:
        computed: Positions whose rows the scheduler counts as computed.
        scheduled: Positions scheduled in this step.
        placeholders: Of those computed, the ones whose tokens are not known yet: their rows are written again.
        lookahead: Draft positions behind the scheduled ones.
    """
    return computed - placeholders, scheduled + placeholders + lookahead
