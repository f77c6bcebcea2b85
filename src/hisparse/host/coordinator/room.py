"""Taking and giving up device pages, and what that means for the pages of requests."""

from hisparse.errors import DevicePagesFullError
from hisparse.host.coordinator.books import Books
from hisparse.host.coordinator.moves import PINNED, PageEvent, PageState
from hisparse.host.coordinator.record import NOWHERE, Flight, Phase, RequestRecord

_KNOBS = "wait for pages to be spilled, preempt a request, raise device_pages, or lower hot_pages"


class Room:
    """The only part that moves device pages between requests."""

    def __init__(self, books: Books) -> None:
        """Work on `books`."""
        self._books = books

    def open(self, record: RequestRecord) -> None:
        """Promise a request that begins to run its floor, or all its pages where they fit."""
        self._books.budget.open(record, whole=self._fits_new(record.share.promised))

    def check_floor(self, promised: int) -> None:
        """Refuse a request of at most `promised` pages whose floor cannot be promised.  The next step makes room.

        Raises:
            DevicePagesFullError: It cannot.
        """
        floor = self._books.budget.floor_of(promised)
        self._check(None, floor, unpromised=floor)

    def cut_promise(self, record: RequestRecord) -> bool:
        """Promise a request less than all its pages, where it then could be moved to a hot buffer."""
        books = self._books
        can = books.spare_pages + books.budget.spared_by_cut(record) >= books.settings.hot_pages
        if can:
            books.budget.cut(record)
        return can

    def fits(self, record: RequestRecord, num_pages: int, *, leaving_free: int) -> bool:
        """Return whether a request can get pages and `leaving_free` unpromised ones remain.  Reads only."""
        return self._books.spare_pages - self._books.budget.beyond(record, num_pages) >= leaving_free

    def _fits_new(self, num_pages: int) -> bool:
        return self._books.spare_pages - num_pages >= self._books.settings.hot_pages

    def take(self, record: RequestRecord, num_pages: int) -> list[int]:
        """Give a request device pages; what was readable in them is lost to its readers.

        Raises:
            DevicePagesFullError: They are neither promised nor spare; nothing was changed.
        """
        budget = self._books.budget
        if not budget.is_sure(record, num_pages):
            self._check(record, num_pages, unpromised=budget.beyond(record, num_pages))
        return self._take(record, num_pages)

    def activate(self, record: RequestRecord) -> bool:
        """Give a request a hot buffer and let go of what it can read through it; False where there is no room.

        A request whose whole promise is no larger than its floor never needs one.
        """
        books = self._books
        settings = books.settings
        share = record.share
        if not share.is_open or share.is_hot or share.is_whole:
            return False
        if not self.fits(record, settings.hot_pages, leaving_free=0):
            return False
        books.budget.set_hot(record, tuple(self._take(record, settings.hot_pages)))
        books.updates.activate(record)
        books.counters.activations += 1
        for page in record.pages.pages_in(PageState.CLEAN):
            self.relax(record, page)
        books.backlog.setdefault(record)
        return True

    def deactivate(self, record: RequestRecord) -> None:
        """Take a request's hot buffer back."""
        pages = self._books.budget.clear_hot(record)
        for page in pages:
            self._books.device.unpin(page)
        self._books.budget.hold(record, -len(pages))

    def tail_start(self, record: RequestRecord) -> int:
        """Return the first page of the tail, which stays pinned while the request runs.  Reads only."""
        return max(0, len(record.pages) - self._books.settings.pinned_tail_pages)

    def relax(self, record: RequestRecord, page: int) -> None:
        """Let a clean page go where the request does not need it: it stays readable until its device page is taken."""
        needs = record.phase == Phase.RUNNING and (not record.share.is_hot or page >= self.tail_start(record))
        if needs or record.pages.states[page] != PageState.CLEAN:
            return
        device_page = record.pages.device[page]
        record.pages.move(page, PageEvent.UNPIN)
        self._books.device.read(device_page, record, page)
        self._books.device.unpin(device_page)
        self._books.budget.hold(record, -1)

    def keep(self, record: RequestRecord, page: int) -> None:
        """Pin a loose page that nobody else pins."""
        device_page = record.pages.device[page]
        record.pages.move(page, PageEvent.PIN)
        self._books.device.pin(device_page)
        self._books.device.unread(device_page, record)
        self._books.budget.hold(record, 1)

    def adopt(self, record: RequestRecord, page: int, device_page: int) -> None:
        """Let a request read a page it found on the device."""
        record.pages.move(page, PageEvent.ADOPT)
        record.pages.device[page] = device_page
        self._books.device.read(device_page, record, page)
        self._books.updates.change(record, page)
        self._books.counters.adopted_pages += 1

    def lose(self, record: RequestRecord, page: int) -> None:
        """Let a request read a loose page no more."""
        self._books.device.unread(record.pages.device[page], record)
        record.pages.move(page, PageEvent.REUSE)
        record.pages.device[page] = NOWHERE
        self._books.updates.change(record, page)

    def leave_unread(self, record: RequestRecord, page: int) -> None:
        """End the request's pin on a page that is being restored; the copy itself keeps it until it lands."""
        record.pages.move(page, PageEvent.FAIL)
        self._books.device.unpin(record.pages.device[page])
        self._books.budget.hold(record, -1)
        record.pages.device[page] = NOWHERE

    def drop_from(self, record: RequestRecord, first: int) -> None:
        """Give up a request's pages from `first` on; pages in flight stay pinned by their transfers."""
        books, pages, copying = self._books, record.pages, record.copying
        for flight in record.flights.values():
            if flight.page >= first:
                make_stale(flight, record)
        while len(pages) > first:
            page = len(pages) - 1
            state, device_page = pages.states[page], pages.device[page]
            pages.pop()
            if PINNED[state]:
                books.device.unpin(device_page)
                books.budget.hold(record, -1)
            elif state == PageState.LOOSE:
                books.device.unread(device_page, record)
        copying.sent = min(copying.sent, first * books.settings.page_rows)
        copying.again = {page for page in copying.again if page < first}

    def _check(self, record: RequestRecord | None, num_pages: int, *, unpromised: int) -> None:
        """Refuse pages for a request, or for one to be admitted, of which some are not promised to it."""
        books = self._books
        if self._is_spare(record, unpromised):
            return
        cut = self._cut_promises(record, unpromised)
        kept_free = books.budget.kept_free(record)
        if not self._is_spare(record, unpromised):
            for promised in cut:
                books.budget.open(promised, whole=True)
            # Once others are moved to hot buffers, room for the next one has to stay.
            books.budget.ask(record, unpromised + books.settings.hot_pages)
            raise DevicePagesFullError(
                f"device is full: {num_pages} pages needed, {unpromised} of them beyond what is promised, "
                f"{max(0, books.spare_pages - kept_free)} free of {books.device.pages} ({books.budget.promised} "
                f"promised to running requests, {kept_free} kept for the next hot buffer); {_KNOBS}"
            )

    def _is_spare(self, record: RequestRecord | None, unpromised: int) -> bool:
        return unpromised + self._books.budget.kept_free(record) <= self._books.spare_pages

    def _cut_promises(self, record: RequestRecord | None, unpromised: int) -> list[RequestRecord]:
        """Cut promises of all pages until pages are spare, or there is none to cut; returns whose were cut."""
        cut = []
        for promised in list(self._books.budget.whole):
            if self._is_spare(record, unpromised):
                break
            if promised is not record and self.cut_promise(promised):
                cut.append(promised)
        return cut

    def _take(self, record: RequestRecord, num_pages: int) -> list[int]:
        books = self._books
        taken, lost = books.device.take(num_pages)
        books.budget.hold(record, num_pages)
        for reader, page in lost:
            reader.pages.move(page, PageEvent.REUSE)
            reader.pages.device[page] = NOWHERE
            books.updates.change(reader, page)
        books.counters.reused_pages += len(lost)
        return taken


def make_stale(flight: Flight, record: RequestRecord) -> None:
    """Let the outcome of a transfer mean nothing; later copies of its page wait for it all the same."""
    if flight.is_stale:
        return
    flight.is_stale = True
    copying, page = record.copying, flight.page
    if flight.transfer.kind == "spill":
        close_copy(copying.open, page)
    copying.stale[page] = copying.stale.get(page, 0) + 1


def close_copy(copies: dict[int, int], page: int) -> int:
    """Count one copy of a page fewer; returns how many are left."""
    left = copies[page] - 1
    if left:
        copies[page] = left
    else:
        del copies[page]
    return left
