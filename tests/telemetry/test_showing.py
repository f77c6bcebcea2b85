"""Messages about values of any kind, size and behaviour."""

from typing import Any

import numpy as np
import pytest
from authors import UnspeakableError
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.telemetry.values import show


class Counting(list[int]):
    """A list that counts how many of its items are looked at."""

    def __init__(self, length: int) -> None:
        """Hold zeros."""
        super().__init__([0] * length)
        self.seen = 0

    def __iter__(self) -> Any:
        """Yield the items, each counted."""
        for item in super().__iter__():
            self.seen += 1
            yield item

    def __repr__(self) -> str:
        """Refuse: this would look at all of them."""
        raise AssertionError


class Hostile:
    """An object whose every way of being shown raises."""

    def __repr__(self) -> str:
        """Raise."""
        raise UnspeakableError

    def __getattr__(self, name: str) -> Any:
        """Raise."""
        raise UnspeakableError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (7, "7"),
        (1.5, "1.5"),
        ("a\ud800", "'a\\ud800'"),
        (b"a", "b'a'"),
        ([1, "a"], "[1, 'a']"),
        ((1, 2, 3, 4, 5), "(1, 2, 3, 4, ... 5 in all)"),
        ({"a": [1, 2]}, "{'a': [1, 2]}"),
        ([[[[1, 2]]]], "[[[<list of 2>]]]"),
        (range(10), "<range of 10>"),
        (memoryview(b"abc"), "<memoryview of 3>"),
        (10**5000, "<int of 16610 bits>"),
        (np.zeros((2, 3)), "<ndarray of shape (2, 3)>"),
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (ValueError("\ud800"), "ValueError: \\ud800"),
        (UnspeakableError(), "<UnspeakableError>"),
        (Hostile(), "<Hostile>"),
        (str, "<class 'str'>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_shown_by_its_beginning(value: object, text: str) -> None:
    """What is short is shown as it is, what is long by its first items, what is unknown by its class."""
    assert show(value) == text


def test_no_more_than_the_beginning_is_looked_at() -> None:
    """Of a million items four are shown, and no more are read for it."""
    value = Counting(1_000_000)
    assert show({"a": value}) == "{'a': [0, 0, 0, 0, ... 1000000 in all]}"
    assert value.seen <= 5


@settings(deadline=None)
@given(
    st.recursive(st.none() | st.text() | st.binary() | st.floats(), lambda inner: st.lists(inner) | st.sets(st.text()))
)
def test_a_message_is_one_short_line_of_text(value: object) -> None:
    """Anything is shown in at most 80 characters that a log can write."""
    shown = show(value)
    assert len(shown) <= 80
    assert "\n" not in shown
    shown.encode()
