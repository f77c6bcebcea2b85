"""Promises on the device: what running requests are sure to get, and what may go beyond it."""

from hisparse.host.coordinator.record import RequestRecord, Share


class Budget:
    """Sums over the shares of all requests.

    A running request is promised its floor: room for a hot buffer, its pinned tail and one page more.
    ``promised`` is what of all floors is not held yet; it never exceeds the pages that can be taken, so a request
    within its floor always goes on. Beyond the floor pages are taken only while one hot buffer's worth stays free,
    so some request can always be moved to a hot buffer and give its pages up: nobody waits for ever.

    Attributes:
        promised: Pages promised and not held.
        giving: Pages that will come free once they are spilled: what requests hold that do not run any more, and what
            those with a hot buffer hold beyond their floor.
        over: Requests without a hot buffer that hold more than their floor, in the order in which they came to.
        wanted: Pages that were asked for and refused since the last step.
    """

    def __init__(self, hot_pages: int) -> None:
        """Start without promises."""
        self.promised = 0
        self.giving = 0
        self.over: dict[RequestRecord, None] = {}
        self.wanted = 0
        self._hot_pages = hot_pages

    def open(self, record: RequestRecord) -> None:
        """Promise a request its floor."""
        self._count(record.share, -1)
        record.share.is_open = True
        self._count(record.share, 1)
        self._sort(record)

    def close(self, record: RequestRecord) -> None:
        """End a request's promise; what it holds it may keep."""
        self._count(record.share, -1)
        record.share.is_open = False
        self._count(record.share, 1)
        self._sort(record)

    def hold(self, record: RequestRecord, num_pages: int) -> None:
        """Count pages that a request keeps, or keeps no more where the number is negative."""
        self._count(record.share, -1)
        record.share.held += num_pages
        self._count(record.share, 1)
        self._sort(record)

    def set_hot(self, record: RequestRecord, pages: tuple[int, ...]) -> None:
        """Note that a request got a hot buffer, whose pages it holds already."""
        self._count(record.share, -1)
        record.share.hot, record.share.is_hot = pages, True
        self._count(record.share, 1)
        self._sort(record)

    def clear_hot(self, record: RequestRecord) -> tuple[int, ...]:
        """Note that a request has no hot buffer any more; returns its pages, which it still holds."""
        self._count(record.share, -1)
        pages, record.share.hot, record.share.is_hot = record.share.hot, (), False
        self._count(record.share, 1)
        self._sort(record)
        return pages

    def beyond(self, record: RequestRecord, num_pages: int) -> int:
        """Of `num_pages` more pages, those that are not promised to the request.  Reads only."""
        return num_pages - min(num_pages, promised_to(record.share))

    def kept_free(self, record: RequestRecord | None = None) -> int:
        """Pages that have to stay free when `record`, or a new request, takes more than its promise.  Reads only."""
        takes_over = record is not None and not record.share.is_hot
        return self._hot_pages if takes_over or self.over else 0

    def want(self, num_pages: int) -> None:
        """Note that this many pages were refused; the next step makes room for them."""
        self.wanted = max(self.wanted, num_pages)

    def take_wanted(self) -> int:
        """Return the largest number refused, and forget it."""
        wanted, self.wanted = self.wanted, 0
        return wanted

    def _count(self, share: Share, sign: int) -> None:
        self.promised += sign * promised_to(share)
        self.giving += sign * given_by(share)

    def _sort(self, record: RequestRecord) -> None:
        if is_over(record.share):
            self.over.setdefault(record)
        elif self.over:
            self.over.pop(record, None)


def promised_to(share: Share) -> int:
    """Return the pages promised to a request and not held.  Reads only."""
    return max(0, share.floor - share.held) if share.is_open else 0


def given_by(share: Share) -> int:
    """Return the pages that come free once they are spilled.  Reads only."""
    if not share.is_open:
        return share.held
    return max(0, share.held - share.floor) if share.is_hot else 0


def is_over(share: Share) -> bool:
    """Return whether a request holds more than its floor and could give it up for a hot buffer.  Reads only."""
    return share.is_open and not share.is_hot and share.held > share.floor
