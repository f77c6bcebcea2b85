"""Promises on the device: what running requests are sure to get, and what may go beyond it."""

from hisparse.host.coordinator.record import RequestRecord, Share


class Budget:
    """Sums over the shares of all requests.

    A running request is promised its floor: all its pages where they fit when it begins to run, else room for a hot
    buffer, its pinned tail and one page more. The former is cut to the latter when others ask for pages.
    ``promised`` is what of all floors is not held yet; it never exceeds the pages that can be taken, so a request
    within its floor always goes on. While a request without a hot buffer holds pages in which its own would lie, or
    may come to, one hot buffer's worth stays spare: so one after the other can be moved to a hot buffer and give its
    pages up, and nobody waits for ever.

    Attributes:
        promised: Pages promised and not held.
        giving: Pages that will come free once they are spilled: what requests hold that do not run any more, and what
            those with a hot buffer hold beyond their floor.
        over: Requests that can be moved to a hot buffer and then give pages up, in the order in which they came to.
        whole: Requests that are promised all their pages and could do with less, the oldest first.
        asking: Running requests that were refused pages since the last step, with how many.
    """

    def __init__(self, hot_pages: int, floor_pages: int) -> None:
        """Start without promises; `floor_pages` let any request go on, `hot_pages` of them as its hot buffer."""
        self.promised = 0
        self.giving = 0
        self.over: dict[RequestRecord, None] = {}
        self.asking: dict[RequestRecord | None, int] = {}
        self.whole: dict[RequestRecord, None] = {}
        self._hot_pages = hot_pages
        self._floor_pages = floor_pages

    def open(self, record: RequestRecord, *, whole: bool) -> None:
        """Promise a request its floor, or all its pages."""
        self._count(record.share, -1)
        self._set_floor(record.share, whole=whole)
        record.share.is_open = True
        self._count(record.share, 1)
        self._sort(record)
        if record.share.promised >= self._floor_pages and whole:
            self.whole[record] = None

    def cut(self, record: RequestRecord) -> None:
        """Promise a request that is promised all its pages no more than a floor."""
        self._count(record.share, -1)
        self._set_floor(record.share, whole=False)
        self._count(record.share, 1)
        self._sort(record)
        del self.whole[record]

    def spared_by_cut(self, record: RequestRecord) -> int:
        """Pages that are promised no more when a promise of all pages is cut.  Reads only."""
        share = record.share
        return promised_to(share) - max(0, self._floor_pages - share.held)

    def floor_of(self, promised: int) -> int:
        """Pages that a request of at most `promised` pages has to be sure to get.  Reads only."""
        return min(promised, self._floor_pages)

    def close(self, record: RequestRecord) -> None:
        """End a request's promise; what it holds it may keep."""
        self._count(record.share, -1)
        record.share.is_open = False
        self._count(record.share, 1)
        self._sort(record)
        self.whole.pop(record, None)

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
        """Spare pages that have to stay when `record`, or a new request, takes pages that need a check.  Reads only."""
        is_cold = record is not None and not record.share.is_hot and not record.share.is_whole
        return self._hot_pages if is_cold or self.over or self.whole else 0

    def is_sure(self, record: RequestRecord, num_pages: int) -> bool:
        """Return whether a request may take pages whatever others do.  Reads only."""
        share = record.share
        return share.held + num_pages <= (share.floor if share.is_hot else share.cold)

    def ask(self, record: RequestRecord | None, num_pages: int) -> None:
        """Note that a request, or one to be admitted, was refused pages; the next step makes room for them."""
        self.asking[record] = max(num_pages, self.asking.get(record, 0))

    def take_asking(self) -> dict[RequestRecord | None, int]:
        """Return who was refused how many pages, and forget it."""
        asking, self.asking = self.asking, {}
        return asking

    def _set_floor(self, share: Share, *, whole: bool) -> None:
        share.is_whole = whole or share.promised < self._floor_pages
        share.floor = share.promised if share.is_whole else self._floor_pages
        share.cold = share.floor if share.is_whole else self._floor_pages - self._hot_pages

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
    """Return whether a request could give pages up for a hot buffer.  Reads only."""
    return share.is_open and not share.is_hot and share.held > share.cold
