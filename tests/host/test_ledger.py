"""The recount finds what it is for."""

from collections.abc import Callable

import numpy as np
import pytest

from hisparse.errors import AccountingError
from hisparse.host.ledger import Claim, PageLedger


def leak_page(ledger: PageLedger, _: Claim) -> None:
    """Lose one free page."""
    ledger._stacked -= 1


def repeat_free_page(ledger: PageLedger, _: Claim) -> None:
    """List a free page twice in place of another."""
    ledger._stack[0] = ledger._stack[1]


def free_used_page(ledger: PageLedger, claim: Claim) -> None:
    """List a page as free that a request holds."""
    ledger._stack[0] = claim.table[0]


def count_twice(ledger: PageLedger, claim: Claim) -> None:
    """Count a holder that is none."""
    ledger.references[claim.table[0]] += 1


def promise_more(ledger: PageLedger, _: Claim) -> None:
    """Keep a promise to nobody."""
    ledger._promised += 1


def hold_too_few(_: PageLedger, claim: Claim) -> None:
    """Let a request be longer than its pages."""
    claim.length += 4


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (leak_page, r"free 6 \+ used 2 \+ reserved 1 != 10 pages"),
        (repeat_free_page, r"free 6 \+ used 2 \+ reserved 1 != 10 pages"),
        (free_used_page, "page 0 is both free and used"),
        (count_twice, "page 0: 1 tables hold it, reference count 2"),
        (promise_more, r"free 7 \+ used 2 \+ reserved 1 pages were counted, 6 \+ 2 \+ 2 were kept"),
        (hold_too_few, "a request of 9 positions holds 2 of 3 pages"),
    ],
)
def test_the_recount_prints_the_sum_that_fails(damage: Callable[[PageLedger, Claim], None], message: str) -> None:
    """Each kind of wrong bookkeeping is found and told apart."""
    ledger = PageLedger(10, 4)
    claim = ledger.open(12)
    ledger.grow(claim, 5, replace_tail=False)
    ledger.check()
    damage(ledger, claim)
    with pytest.raises(AccountingError, match=message):
        ledger.check()


def test_the_lowest_pages_are_used_first() -> None:
    """Pages come in ascending order, and those given back come again before new ones."""
    ledger = PageLedger(10, 4)
    one, other = ledger.open(12), ledger.open(12)
    ledger.grow(one, 12, replace_tail=False)
    np.testing.assert_array_equal(one.table, [0, 1, 2])
    ledger.shrink(one, 4)
    ledger.grow(other, 12, replace_tail=False)
    np.testing.assert_array_equal(other.table, [1, 2, 3])
