"""The pages of the device: which are free, which still have rows worth reading, who keeps them."""

from array import array
from collections import OrderedDict

from hisparse.host.coordinator.record import RequestRecord
from hisparse.layout import PageKey


class DevicePages:
    """Pages 0 to ``pages - 1``; ``blank + loose + pinned == pages``.

    A page that nobody pins is blank, or loose where its rows can still be read: by requests that have it in their
    table, or by later ones that ask for its key. Blank pages are taken first, then the page that is loose the longest.

    Attributes:
        pages: How many there are.
        pins: int32, who keeps each page: its request, and every transfer that reads or writes it.
    """

    def __init__(self, pages: int) -> None:
        """Start with all pages blank; the lowest is taken first."""
        self.pages = pages
        self.pins = array("i", bytes(4 * pages))
        self._blank = list(range(pages - 1, -1, -1))
        self._loose: OrderedDict[int, None] = OrderedDict()
        self._readers: dict[int, dict[RequestRecord, int]] = {}
        self._key_of: dict[int, PageKey] = {}
        self._page_of: dict[PageKey, int] = {}

    @property
    def available_pages(self) -> int:
        """Pages that can be taken now."""
        return len(self._blank) + len(self._loose)

    @property
    def blank_pages(self) -> int:
        """Pages without rows."""
        return len(self._blank)

    @property
    def loose_pages(self) -> int:
        """Pages that can be taken, and read until then."""
        return len(self._loose)

    def take(self, num_pages: int) -> tuple[list[int], list[tuple[RequestRecord, int]]]:
        """Pin `num_pages` pages, which must be available.

        Returns:
            The pages, and whose pages they were: requests with the page of theirs that is on the device no more.
        """
        blank = min(num_pages, len(self._blank))
        cut = len(self._blank) - blank
        taken = self._blank[cut:][::-1]
        del self._blank[cut:]
        lost: list[tuple[RequestRecord, int]] = []
        for _ in range(num_pages - blank):
            page, _ = self._loose.popitem(last=False)
            lost.extend(self._readers.pop(page, {}).items())
            self._forget(page)
            taken.append(page)
        for page in taken:
            self.pins[page] = 1
        return taken, lost

    def pin(self, page: int) -> None:
        """Keep a page that is loose or pinned."""
        if not self.pins[page]:
            del self._loose[page]
        self.pins[page] += 1

    def unpin(self, page: int) -> None:
        """End a pin; the last one makes the page loose or blank."""
        self.pins[page] -= 1
        self._settle(page)

    def read(self, page: int, record: RequestRecord, logical: int) -> None:
        """Note that a request reads a page which it does not pin."""
        self._readers.setdefault(page, {})[record] = logical

    def unread(self, page: int, record: RequestRecord) -> None:
        """Forget a reader; a page that nobody may want any more becomes blank."""
        readers = self._readers[page]
        del readers[record]
        if not readers:
            del self._readers[page]
            self._settle(page)

    def name(self, page: int, key: PageKey) -> None:
        """Let later requests find a full page under its key; the first page of a key keeps it."""
        if page not in self._key_of and self._page_of.setdefault(key, page) == page:
            self._key_of[page] = key

    def find(self, key: PageKey) -> int | None:
        """Return a page that has the rows of a key, or None.  Reads only."""
        return self._page_of.get(key)

    def forget_keys(self) -> None:
        """Let no later request find any page."""
        named = list(self._key_of)
        self._key_of.clear()
        self._page_of.clear()
        for page in named:
            self._settle(page)

    def readers(self) -> dict[int, dict[RequestRecord, int]]:
        """Return who reads which page without pinning it.  Reads only."""
        return self._readers

    def free_lists(self) -> tuple[list[int], list[int]]:
        """Return the blank pages and the loose ones, each in the order in which they would be taken.  Reads only."""
        return self._blank[::-1], list(self._loose)

    def named(self) -> dict[PageKey, int]:
        """Return the page of every key (a copy).  Reads only."""
        return dict(self._page_of)

    def _settle(self, page: int) -> None:
        """Put a page that nobody pins where it belongs."""
        if self.pins[page]:
            return
        if page in self._readers or page in self._key_of:
            self._loose.setdefault(page)
        else:
            self._loose.pop(page, None)
            self._blank.append(page)

    def _forget(self, page: int) -> None:
        key = self._key_of.pop(page, None)
        if key is not None:
            del self._page_of[key]
