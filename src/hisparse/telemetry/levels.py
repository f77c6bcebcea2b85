"""A level in a file of this process, which several collectors of the process may speak of."""

import os
from functools import cache
from threading import Lock
from typing import Any, NamedTuple
from weakref import ref

# Older than any reading of a process, and not 0, which a reader of the most recent value leaves out.
_BEFORE_ALL = 1e-9


class _Said(NamedTuple):
    """What one collector said of a level, when, and in which process."""

    value: Any
    time: float
    pid: int


class SharedLevel:
    """One value of one file, set by any number of owners; the latest stands.

    An owner that leaves takes back what it said: what another one said last stands again. Where this process has
    no other, the level becomes 0 as of the moment when this process first set it, so that newer readings of other
    processes stand, and older ones, which a process that died may have left, do not. A child that was forked
    takes back only what it said itself, and then as if it never had: its parent may live.
    """

    def __init__(self, handle: Any) -> None:
        """Begin with what is in the file, or with a 0 that any reading of any process replaces."""
        self._handle = handle
        self._lock = Lock()
        self._pid = os.getpid()
        self._first: _Said | None = None
        self._said: dict[ref[Any], _Said] = {}
        if not handle.get():
            handle.set(0, _BEFORE_ALL)

    @classmethod
    def of(cls, handle: Any) -> "SharedLevel":
        """Return the level of a handle, one for each in this process."""
        return _level(handle)

    def set(self, owner: Any, value: Any, now: float) -> None:
        """Let `owner` say that the level is `value`, as of Unix time `now`."""
        with self._lock:
            said = _Said(value, now, os.getpid())
            if self._first is None or self._first.pid != said.pid:
                self._first = said
            if ref(owner) not in self._said:  # an owner that nobody closed is gone all the same
                self._said = {known: old for known, old in self._said.items() if known() is not None}
            self._said[ref(owner)] = said
            self._handle.set(value, now)

    def drop(self, owner: Any) -> None:
        """Take back what `owner` said; nothing happens where it said nothing in this process."""
        with self._lock:
            pid = os.getpid()
            mine = self._said.pop(ref(owner), None)
            if mine is None or mine.pid != pid or self._first is None:
                return
            others = [said for owner_ref, said in self._said.items() if owner_ref() is not None and said.pid == pid]
            if others:
                latest = max(others, key=lambda said: said.time)
                self._handle.set(latest.value, latest.time)
            else:
                self._handle.set(0, self._first.time if self._pid == pid else _BEFORE_ALL)
                self._first = None


@cache
def _level(handle: Any) -> SharedLevel:
    return SharedLevel(handle)
