"""Which pages later requests can find."""

from hisparse.host.coordinator.books import Books
from hisparse.host.coordinator.record import NOWHERE, RequestRecord
from hisparse.host.coordinator.updates import readable


class Publishing:
    """Enters the contiguous durable prefix of requests into the prefix index, once a step for each request."""

    def __init__(self, books: Books) -> None:
        """Work on `books`."""
        self._books = books
        self._ready: dict[RequestRecord, None] = {}

    def queue(self, record: RequestRecord) -> None:
        """Note that a request may have more durable pages than it has published."""
        if min(record.pages.durable, len(record.keys)) > record.claim.published:
            self._ready[record] = None

    def publish_queued(self) -> None:
        """Publish what is durable by now."""
        ready, self._ready = self._ready, {}
        for record in ready:
            self.publish(record)

    def publish(self, record: RequestRecord) -> None:
        """Publish the durable prefix of one request; its device copies can be found from now on, too."""
        self._ready.pop(record, None)
        first = record.claim.published
        count = min(record.pages.durable, len(record.keys))
        if count <= first:
            return
        self._books.ledger.publish(record.claim, record.keys[:count])
        for page in range(first, count):
            self.name(record, page)

    def name(self, record: RequestRecord, page: int) -> None:
        """Let later requests find the device page of a published page."""
        device_page = readable(record, page)
        if device_page != NOWHERE and page < min(len(record.keys), record.claim.published):
            self._books.device.name(device_page, record.keys[page])

    def forget(self) -> None:
        """Forget every key, of cached pages, device copies and running requests: nothing of before is found again."""
        self._ready.clear()
        self._books.ledger.clear_index()
        self._books.device.forget_keys()
        for records in (self._books.requests.values(), self._books.leaving):
            for record in records:
                record.keys, record.is_private = [], True
