"""The table of moves, and that nothing moves otherwise."""

from itertools import product
from pathlib import Path

import pytest
from few_steps import compute, make

from hisparse.errors import AccountingError
from hisparse.host.coordinator import MOVES, PageEvent, PageState, moves_table
from hisparse.host.coordinator.moves import next_state, states_table

PAGE = Path(__file__).resolve().parents[3] / "docs" / "coordinator.md"
LEGAL = {(event, state) for event, targets in MOVES.items() for state in targets}


def test_the_documentation_has_the_table_that_is_used() -> None:
    """Both tables of the page are printed from the code."""
    text = PAGE.read_text(encoding="utf-8")
    assert moves_table() in text
    assert states_table() in text


@pytest.mark.parametrize(("event", "state"), [pair for pair in product(PageEvent, PageState) if pair not in LEGAL])
def test_a_move_that_is_not_in_the_table_raises(event: PageEvent, state: PageState) -> None:
    """An illegal move names the state, the event and the states it is for."""
    with pytest.raises(AccountingError, match=f"a page that is {state.word} cannot {event}; only one that is "):
        next_state(state, event)


def test_every_state_is_reached_and_left() -> None:
    """No state is a dead end, and none cannot come about."""
    assert {target for targets in MOVES.values() for target in targets.values()} == set(PageState)
    assert {state for targets in MOVES.values() for state in targets} == set(PageState)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda books, _: books.device.take(1), r"blank 30 \+ loose 0 \+ resident 1 .* != 32 device pages"),
        (lambda _, record: record.pages.move(0, PageEvent.SEND), "a is spilling|pages by state|durable|spilling"),
        (lambda _, record: setattr(record.pages, "durable", 1), "has 0 durable pages, 1 were kept"),
        (lambda _, record: setattr(record.share, "held", 2), "pins 1 device pages, 2 were kept"),
        (lambda books, _: setattr(books.budget, "promised", 0), "device pages are promised"),
        (lambda books, _: books.device.pin(0), "device page 0 has 1 pins, 2 were kept"),
        (lambda books, _: books.census.__setitem__(4, 1), "pages by state are"),
        (lambda _, record: record.copying.open.update({0: 1}), "copies in flight"),
        (lambda _, record: record.flights.clear(), r"owned 0 \+ orphaned 0 != 1 transfers"),
        (lambda books, record: books.ledger.drop(record.claim), "pages"),
    ],
)
def test_a_recount_finds_what_is_spoilt(spoil, sentence) -> None:  # noqa: ANN001  functions over inner parts
    """Whatever number is wrong, the recount raises and prints it."""
    coordinator = make()
    coordinator.admit("a", max_positions=160)
    compute(coordinator, "a", 10)
    books = coordinator._books
    if "transfers" in sentence:
        coordinator.append("a", 12)
        coordinator.plan_step()
        books.requests["a"].copying.open.clear()
    spoil(books, books.requests["a"])
    with pytest.raises(AccountingError, match=sentence):
        coordinator.check()
