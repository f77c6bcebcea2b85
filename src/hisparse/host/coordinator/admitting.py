"""Who may begin to run, and how refusals are counted."""

from collections.abc import Sequence

from hisparse.errors import CapacityError, DevicePagesFullError, StateError
from hisparse.host.claim import Claim
from hisparse.host.coordinator.books import Books
from hisparse.host.coordinator.messages import Admission
from hisparse.host.coordinator.moves import PageEvent
from hisparse.host.coordinator.publishing import Publishing
from hisparse.host.coordinator.record import NOWHERE, Copying, PageTable, RequestRecord, Share
from hisparse.host.coordinator.room import Room
from hisparse.layout import PageKey, pages_for

# Requests that were refused and never came back are forgotten from this many on, the oldest first.
MAX_REMEMBERED = 65_536


class Admitting:
    """Admits by both ends: the floor of the request on the device, all its pages in the host pool."""

    def __init__(self, books: Books, *, room: Room, publishing: Publishing) -> None:
        """Work on `books`."""
        self._books = books
        self._room = room
        self._publishing = publishing
        self._refused: dict[str, None] = {}

    def admit(self, request_id: str, max_positions: int, keys: Sequence[PageKey], *, reuse_prefix: bool) -> Admission:
        """Promise a request what it needs, or change nothing.

        Raises:
            DevicePagesFullError: Its floor cannot be promised on the device.
            HostPoolFullError: Its pages cannot be promised in the host pool.
            StateError: A request of that id runs or waits.
        """
        books = self._books
        if request_id in books.requests:
            raise StateError(f"request {request_id!r} is admitted already; finish it first, or choose another id")
        self._publishing.publish_queued()
        promised = pages_for(max_positions, books.settings.page_rows)
        try:
            self._room.check_floor(promised)
            claim = books.ledger.admit(max_positions, keys if reuse_prefix else ())
        except CapacityError as error:
            self._count_refusal(request_id, "device" if isinstance(error, DevicePagesFullError) else "host")
            raise
        self.forget(request_id)
        share = self._begin(request_id, claim, list(keys))
        return Admission(request_id, claim.length, claim.promised, share.floor)

    def forget(self, request_id: str) -> None:
        """Forget that a request was refused."""
        self._refused.pop(request_id, None)

    def _begin(self, request_id: str, claim: Claim, keys: list[PageKey]) -> Share:
        books = self._books
        pages = PageTable(books.census)
        pages.append(PageEvent.FIND, [NOWHERE] * claim.held)
        prefix, share = claim.length, Share(claim.promised)
        record = RequestRecord(request_id, claim, share, pages, Copying(prefix), keys, prefix, prefix)
        books.requests[request_id] = record
        self._room.open(record)
        books.updates.admit(record)
        books.arrivals[record] = None
        return share

    def _count_refusal(self, request_id: str, reason: str) -> None:
        if request_id in self._refused:
            return
        self._books.counters.refused[reason] += 1
        self._refused[request_id] = None
        if len(self._refused) > MAX_REMEMBERED:
            del self._refused[next(iter(self._refused))]
