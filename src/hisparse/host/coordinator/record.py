"""What the coordinator keeps of one request."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from hisparse.host.claim import Claim
from hisparse.host.coordinator.messages import Transfer
from hisparse.host.coordinator.moves import DURABLE, PageEvent, PageState, next_state
from hisparse.layout import PageKey

NOWHERE = -1
UNLIMITED = 1 << 62
Census = list[int]


def empty_census() -> Census:
    """Return zero pages in every state."""
    return [0] * len(PageState)


class Phase(IntEnum):
    """Whether a request may compute: `RUNNING` it may, `WAITING` it was preempted, `ENDING` it never will again."""

    RUNNING = 0
    WAITING = 1
    ENDING = 2


class PageTable:
    """The pages of one request in order; it changes their states by the table of moves and nothing else.

    Attributes:
        states: The `PageState` of each page, a byte each.
        device: int32, the device page of each, `NOWHERE` where it has none.
        durable: Leading full pages whose rows are all on the host.
    """

    def __init__(self, census: Census) -> None:
        """Start without pages; `census` is told of every move."""
        self.states = bytearray()
        self.device = array("i")
        self.durable = 0
        self._census = census

    def __len__(self) -> int:
        """Return how many pages the request has."""
        return len(self.states)

    def append(self, event: PageEvent, device_pages: Sequence[int]) -> None:
        """Add pages by `WRITE` or `FIND`."""
        state = next_state(PageState.ABSENT, event)
        self.states.extend(bytes([state]) * len(device_pages))
        self.device.extend(device_pages)
        self._census[state] += len(device_pages)
        self.count_durable()

    def move(self, page: int, event: PageEvent) -> PageState:
        """Let an event happen to a page; returns its new state.

        Raises:
            AccountingError: The move is not legal.
        """
        before = self.states[page]
        after = next_state(before, event)
        self.states[page] = after
        self._census[before] -= 1
        self._census[after] += 1
        return after

    def pop(self) -> None:
        """Drop the last page."""
        next_state(self.states[-1], PageEvent.DROP)
        self._census[self.states.pop()] -= 1
        self.device.pop()
        self.durable = min(self.durable, len(self.states))

    def count_durable(self) -> None:
        """Count on from the last durable page."""
        states, count = self.states, self.durable
        while count < len(states) and DURABLE[states[count]]:
            count += 1
        self.durable = count

    def pages_in(self, state: PageState, first: int = 0) -> Iterator[int]:
        """Yield the pages in a state from `first` on; pages behind the one yielded may change meanwhile."""
        page = self.states.find(state, first)
        while page >= 0:
            yield page
            page = self.states.find(state, page + 1)


@dataclass(slots=True)
class Copying:
    """How far the rows of a request are copied to the host.

    Attributes:
        sent: Positions handed to spills, or on the host already: all below this one, but for pages in `again`.
        limit: Pages from this one on are not spilled any more.
        open: Copies in flight of each page that has any.
        again: Pages of which a copy failed: all rows below `sent` are copied again once the others have landed.
        stale: Copies in flight of earlier rows of a page, whose outcome nobody waits for; new ones wait for them.
    """

    sent: int = 0
    limit: int = UNLIMITED
    open: dict[int, int] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)
    stale: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Share:
    """A request's share of the device.

    Attributes:
        promised: Pages it may have at most.
        is_whole: Whether it is sure to get all of them, and so needs no hot buffer.
        floor: Pages it is sure to get while it runs.
        cold: Pages of those that it may use without a hot buffer, whatever others do; all, where it never needs one.
        held: Pages it keeps from being reused, its hot buffer included.
        hot: The device pages of its hot buffer.
        is_open: Whether the floor is promised now.
    """

    promised: int
    is_whole: bool = False
    floor: int = 0
    cold: int = 0
    held: int = 0
    hot: tuple[int, ...] = ()
    is_hot: bool = False
    is_open: bool = False


@dataclass(slots=True, eq=False)
class Flight:
    """A transfer under way.

    Attributes:
        transfer: What is copied.
        record: Whose page; None where the request is gone and the flight itself pins the host page.
        page: Which page of the request.
        missing: The workers that have not answered, a bit each.
        has_failed: Whether one of them failed.
        is_stale: Whether its outcome means nothing any more.
    """

    transfer: Transfer
    record: "RequestRecord | None"
    page: int
    missing: int
    has_failed: bool = False
    is_stale: bool = False


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request; compared by identity, since an id may be used again while its last pages are on their way.

    Attributes:
        request_id: Its name.
        claim: Its pages of the host pool: logical page p is ``claim.pages[p]`` for as long as it lives.
        share: Its share of the device.
        pages: Its pages.
        copying: How far they are copied.
        keys: Keys of its first pages; those beyond are private.
        length: Positions it has: their rows are computed once the next plan in which it does not wait has run.
        computed: Positions it had before it was appended to in `step`.
        step: The plan that its last new rows go with.
        phase: Whether it may compute.
        flights: Its transfers under way, stale ones included.
        is_private: Whether its pages are not to be found by others, whatever keys it is given.
    """

    request_id: str
    claim: Claim
    share: Share
    pages: PageTable
    copying: Copying = field(default_factory=Copying)
    keys: list[PageKey] = field(default_factory=list)
    length: int = 0
    computed: int = 0
    step: int = 0
    phase: Phase = Phase.RUNNING
    flights: dict[int, Flight] = field(default_factory=dict)
    is_private: bool = False
