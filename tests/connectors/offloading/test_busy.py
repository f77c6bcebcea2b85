"""The union of spans of time."""

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.connectors.offloading.busy import MAX_SPANS, BusyTime

# Quarters add up exactly, so equality means equality.
SPANS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 40)).map(lambda s: (s[0] / 4, (s[0] + s[1]) / 4)), max_size=20
)


def covered(spans: list[tuple[float, float]]) -> float:
    """Return the seconds that spans cover when they are given in this order."""
    busy = BusyTime()
    return sum(busy.cover(*span) for span in spans)


def test_time_is_counted_once_in_any_order() -> None:
    """A span inside, across and beside others adds what was not covered, in whatever order they end."""
    for order in permutations([(0.0, 10.0), (2.0, 3.0), (8.0, 12.0), (20.0, 21.0)]):
        assert covered(list(order)) == 13.0


@settings(deadline=None)
@given(SPANS)
def test_the_union_is_what_a_ruler_of_quarters_measures(spans: list[tuple[float, float]]) -> None:
    """The growths add up to the quarters of a second that any span touches."""
    quarters = {quarter for start, end in spans for quarter in range(int(4 * start), int(4 * end))}
    assert covered(spans) == len(quarters) / 4


def test_spans_with_gaps_are_bounded_and_never_counted_twice() -> None:
    """Beyond the bound the oldest span is closed: a later one over it all leaves its gaps out."""
    busy = BusyTime()
    counted = sum(busy.cover(2.0 * n, 2.0 * n + 1) for n in range(MAX_SPANS + 10))
    assert counted == MAX_SPANS + 10
    last = 2.0 * (MAX_SPANS + 9) + 1
    assert counted + busy.cover(0.0, last) == last - 9
    assert busy.cover(0.0, last) == 0.0


def test_a_span_that_ends_before_it_starts_adds_nothing() -> None:
    """An empty or reversed span covers no time."""
    assert covered([(1.0, 1.0), (2.0, 1.0)]) == 0.0
