"""A level that several owners speak of."""

import gc

from hisparse.telemetry.levels import SharedLevel


class Handle:
    """A value of a file, and its time."""

    def __init__(self, value: float = 0) -> None:
        self.shown = (value, 0.0)

    def get(self) -> float:
        return self.shown[0]

    def set(self, value: float, timestamp: float) -> None:
        self.shown = (value, timestamp)


class Owner:
    """Somebody who speaks."""


def test_it_begins_before_all_readings() -> None:
    """A new value is a 0 that any reading replaces; one that a file has already stays as it is."""
    new, old = Handle(), Handle(0.5)
    SharedLevel.of(new)
    SharedLevel.of(old)
    assert 0 < new.shown[1] < 1
    assert old.shown == (0.5, 0.0)


def test_a_handle_has_one_level() -> None:
    """Whoever asks for the level of a handle gets the same one."""
    handle = Handle()
    assert SharedLevel.of(handle) is SharedLevel.of(handle)
    assert SharedLevel.of(Handle()) is not SharedLevel.of(handle)


def test_the_latest_that_is_left_stands() -> None:
    """When owners leave in any order, what a remaining one said last stands, at its own time; then 0."""
    handle, first, second, third = Handle(), Owner(), Owner(), Owner()
    level = SharedLevel.of(handle)
    for now, (owner, value) in enumerate([(first, 1.0), (second, 2.0), (third, 3.0), (first, 4.0)], 10):
        level.set(owner, value, now)
        assert handle.shown == (value, now)
    level.drop(second)
    assert handle.shown == (4.0, 13)
    level.drop(first)
    assert handle.shown == (3.0, 12)
    level.drop(first)
    level.drop(third)
    assert handle.shown == (0, 10)
    level.set(second, 5.0, 20)
    level.drop(second)
    assert handle.shown == (0, 20)


def test_who_said_nothing_takes_nothing_back() -> None:
    """An owner that leaves without a word changes nothing."""
    handle, speaker = Handle(), Owner()
    level = SharedLevel.of(handle)
    level.set(speaker, 0.5, 10)
    level.drop(Owner())
    assert handle.shown == (0.5, 10)


def test_an_owner_that_is_gone_is_forgotten() -> None:
    """What a collector said that nobody closed does not come back, and is not kept for ever."""
    handle, speaker = Handle(), Owner()
    level = SharedLevel.of(handle)
    for now in range(10, 20):
        level.set(Owner(), 1.0, now)
        gc.collect()
    level.set(speaker, 0.5, 20)
    assert len(level._said) == 1
    level.drop(speaker)
    assert handle.shown == (0, 10)
