"""Numbers and labels as they are read from a payload."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.telemetry.values import (
    MAX_NUMBER,
    ItemError,
    SkipReason,
    encode_labels,
    read_increment,
    read_labels,
    read_number,
    show,
)

LABELS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=4).map(tuple)


@settings(deadline=None)
@given(LABELS)
def test_labels_survive_encoding(labels: tuple[str, ...]) -> None:
    """Any label values come back from their text key, also as JSON makes it."""
    key = next(iter(json.loads(json.dumps({encode_labels(labels): 1}))))
    assert read_labels(key) == labels


@pytest.mark.parametrize(
    ("key", "labels"),
    [(None, ()), ("", ()), ("hit", ("hit",)), ("[not json", ("[not json",)), (["a", 3], ("a", "3")), ((), ())],
)
def test_foreign_label_keys_are_read(key: object, labels: tuple[str, ...]) -> None:
    """Lists, bare texts, whole numbers and nothing at all are understood as labels."""
    assert read_labels(key) == labels


@pytest.mark.parametrize("key", [7, {"a": 1}, (None,), (True,), ("\ud800",), ("x" * 300,), ([],)])
def test_bad_label_keys_are_refused(key: object) -> None:
    """What cannot be a label value, or could not be written to a scrape, is refused."""
    with pytest.raises(ItemError):
        read_labels(key)


@pytest.mark.parametrize("value", [np.int64(3), np.float32(0.5), np.uint8(7), 3, 0.5])
def test_numbers_become_plain(value: object) -> None:
    """Scalars of numpy become plain Python numbers of the same value."""
    number = read_number(value, "x")
    assert type(number) in {int, float}
    assert number == value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), SkipReason.NOT_FINITE),
        (np.float64("inf"), SkipReason.NOT_FINITE),
        (-1, SkipReason.NEGATIVE),
        (-0.5, SkipReason.NEGATIVE),
        (MAX_NUMBER + 1, SkipReason.OUT_OF_RANGE),
        (10**400, SkipReason.OUT_OF_RANGE),
        (True, SkipReason.WRONG_TYPE),
        ("3", SkipReason.WRONG_TYPE),
        (None, SkipReason.WRONG_TYPE),
        ([], SkipReason.WRONG_TYPE),
        (1j, SkipReason.WRONG_TYPE),
    ],
)
def test_bad_increments_name_their_reason(value: object, reason: SkipReason) -> None:
    """An increment that a counter cannot take is refused with the reason to count."""
    with pytest.raises(ItemError) as caught:
        read_increment(value, "x")
    assert caught.value.reason == reason


def test_show_survives_a_hostile_repr() -> None:
    """A message can be made about a value whose own text cannot."""

    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError

    assert show(Hostile()) == "<Hostile>"
    assert len(show("x" * 1000)) == 80
