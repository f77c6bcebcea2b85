"""The states of a page of a request, and the one table of moves between them."""

from enum import IntEnum, StrEnum
from typing import NoReturn

from hisparse.errors import AccountingError


class PageState(IntEnum):
    """Where the rows of one page of a request are.

    Whatever is not `DIRTY` or `SPILLING` has all its rows on the host.
    """

    DIRTY = 0
    SPILLING = 1
    CLEAN = 2
    LOOSE = 3
    HOST = 4
    RESTORING = 5
    ABSENT = 6

    @property
    def word(self) -> str:
        """The state in lower case, as metrics and documentation spell it."""
        return self.name.lower()


class PageEvent(StrEnum):
    """What happens to a page of a request."""

    WRITE = "write"
    FIND = "find"
    SEND = "send"
    LAND = "land"
    FAIL = "fail"
    UNPIN = "unpin"
    REUSE = "reuse"
    ADOPT = "adopt"
    PIN = "pin"
    RESTORE = "restore"
    DROP = "drop"


_S = PageState
MOVES: dict[PageEvent, dict[PageState, PageState]] = {
    PageEvent.WRITE: {_S.ABSENT: _S.DIRTY},
    PageEvent.FIND: {_S.ABSENT: _S.HOST},
    PageEvent.SEND: {_S.DIRTY: _S.SPILLING},
    PageEvent.LAND: {_S.SPILLING: _S.CLEAN, _S.RESTORING: _S.CLEAN},
    PageEvent.FAIL: {_S.SPILLING: _S.DIRTY, _S.RESTORING: _S.HOST},
    PageEvent.UNPIN: {_S.CLEAN: _S.LOOSE},
    PageEvent.REUSE: {_S.LOOSE: _S.HOST},
    PageEvent.ADOPT: {_S.HOST: _S.LOOSE},
    PageEvent.PIN: {_S.LOOSE: _S.CLEAN},
    PageEvent.RESTORE: {_S.HOST: _S.RESTORING},
    PageEvent.DROP: {state: _S.ABSENT for state in _S if state is not _S.ABSENT},
}

STATES_TEXT = {
    _S.DIRTY: "rows on the device only; some of them may be on their way to the host",
    _S.SPILLING: "full, and all rows not on the host yet are on their way there",
    _S.CLEAN: "on both; the request keeps its device page",
    _S.LOOSE: "on both; readable until somebody needs the device page",
    _S.HOST: "on the host only",
    _S.RESTORING: "on the host; a copy to a device page is on its way",
    _S.ABSENT: "the request has no such page",
}
EVENTS_TEXT = {
    PageEvent.WRITE: "the request gets a device page for new rows",
    PageEvent.FIND: "a prefix is found on the host",
    PageEvent.SEND: "the last rows of the page are handed to a spill",
    PageEvent.LAND: "all workers acknowledged all copies of the page",
    PageEvent.FAIL: "a copy of the page failed, or is not wanted any more",
    PageEvent.UNPIN: "the request reads through its hot buffer, or does not run",
    PageEvent.REUSE: "the device page is taken for other rows",
    PageEvent.ADOPT: "a device page that still has these rows is found",
    PageEvent.PIN: "the request has no hot buffer and keeps the page",
    PageEvent.RESTORE: "a copy back to the device begins",
    PageEvent.DROP: "the request gives up the page's rows",
}

# What `next_state` indexes: by event, then by state; None where the move is not legal.
_NEXT: dict[PageEvent, tuple[PageState | None, ...]] = {
    event: tuple(targets.get(state) for state in PageState) for event, targets in MOVES.items()
}
# States in which the request itself keeps a device page from being reused.
PINNED = tuple(state in {_S.DIRTY, _S.SPILLING, _S.CLEAN, _S.RESTORING} for state in PageState)
# States in which every row of the page is on the host.
DURABLE = tuple(state not in {_S.DIRTY, _S.SPILLING, _S.ABSENT} for state in PageState)


def next_state(state: int, event: PageEvent) -> PageState:
    """Return the state after an event.

    Raises:
        AccountingError: The table of moves does not have it.
    """
    target = _NEXT[event][state]
    if target is None:
        refuse_move(state, event)
    return target


def refuse_move(state: int, event: PageEvent) -> NoReturn:
    """Raise for a move that is not in the table."""
    legal = ", ".join(source.word for source in MOVES[event])
    raise AccountingError(f"a page that is {PageState(state).word} cannot {event}; only one that is {legal} can")


def moves_table() -> str:
    """Return the table of moves in Markdown, one row an event: what is in the documentation."""
    lines = ["| event | when | moves |", "|---|---|---|"]
    for event, targets in MOVES.items():
        by_target: dict[PageState, list[str]] = {}
        for source, target in targets.items():
            by_target.setdefault(target, []).append(source.word)
        moves = "; ".join(f"{', '.join(sources)} → {target.word}" for target, sources in by_target.items())
        lines.append(f"| {event} | {EVENTS_TEXT[event]} | {moves} |")
    return "\n".join(lines)


def states_table() -> str:
    """Return the table of states in Markdown, as it is in the documentation."""
    return "\n".join(["| state | means |", "|---|---|", *(f"| {s.word} | {STATES_TEXT[s]} |" for s in PageState)])
