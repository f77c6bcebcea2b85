"""Where the prefix of a request goes that begins to run: to device pages, or behind a hot buffer."""

from hisparse.host.coordinator.books import Books
from hisparse.host.coordinator.messages import Transfer
from hisparse.host.coordinator.moves import PageEvent, PageState
from hisparse.host.coordinator.record import RequestRecord
from hisparse.host.coordinator.room import Room

_MISSING = (PageState.HOST, PageState.LOOSE)


class Arriving:
    """Places prefixes after the pages of a step have been given out.

    Where the device has room for a whole prefix above the watermark, pages that are still on the device are kept
    and the others restored, and the request waits until they are there. Otherwise it gets a hot buffer and can
    compute at once; pages that are still on the device are read there until they are taken.
    """

    def __init__(self, books: Books, room: Room) -> None:
        """Work on `books`."""
        self._books = books
        self._room = room

    def plan(self) -> list[Transfer]:
        """Place prefixes; returns the restores of this step."""
        planned: list[Transfer] = []
        for record in list(self._books.arrivals):
            self._place(record, planned)
            if self._is_placed(record):
                del self._books.arrivals[record]
                self._books.backlog.setdefault(record)
        return planned

    def _is_placed(self, record: RequestRecord) -> bool:
        states = record.pages.states
        waits_for = (*_MISSING, PageState.RESTORING)
        return record.share.is_hot or all(states.find(state) < 0 for state in waits_for)

    def _place(self, record: RequestRecord, planned: list[Transfer]) -> None:
        if not record.share.is_hot and self._fits(record):
            self._keep(record)
            self._restore(record, planned)
        elif record.share.is_hot or self._room.activate(record):
            for page in record.pages.pages_in(PageState.HOST):
                copy = self._copy_of(record, page)
                if copy is not None:
                    self._room.adopt(record, page, copy)

    def _fits(self, record: RequestRecord) -> bool:
        settings = self._books.settings
        missing = sum(record.pages.states.count(state) for state in _MISSING)
        if record.share.is_whole or not missing:
            return True
        return self._room.fits(record, missing, leaving_free=max(settings.watermark_pages, settings.hot_pages))

    def _keep(self, record: RequestRecord) -> None:
        """Pin what is still on the device and that nobody else pins."""
        device, pages = self._books.device, record.pages
        for page in pages.pages_in(PageState.HOST):
            copy = self._copy_of(record, page)
            if copy is not None and not device.pins[copy]:
                self._room.adopt(record, page, copy)
        for page in pages.pages_in(PageState.LOOSE):
            if device.pins[pages.device[page]]:
                # Another request has made it its own meanwhile: this one needs a page of its own.
                self._room.lose(record, page)
            else:
                self._room.keep(record, page)

    def _restore(self, record: RequestRecord, planned: list[Transfer]) -> None:
        """Begin to restore what is on the host only, within the budget of the step."""
        books, pages = self._books, record.pages
        for page in pages.pages_in(PageState.HOST):
            if len(planned) >= books.settings.max_spill_pages:
                return
            (device_page,) = self._room.take(record, 1)
            pages.move(page, PageEvent.RESTORE)
            pages.device[page] = device_page
            books.device.pin(device_page)
            host_page = int(record.claim.pages[page])
            transfer = Transfer(
                books.flights.next_id(),
                "restore",
                record.request_id,
                host_page,
                device_page,
                0,
                books.settings.page_rows,
                "restore",
            )
            books.flights.launch(transfer, record, page)
            planned.append(transfer)

    def _copy_of(self, record: RequestRecord, page: int) -> int | None:
        return self._books.device.find(record.keys[page]) if page < len(record.keys) else None
