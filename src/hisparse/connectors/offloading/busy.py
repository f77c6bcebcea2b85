"""Time in which something was under way, each moment once however many things were."""

from bisect import bisect_left, bisect_right

# Spans that do not touch, kept to meet a late one. Transfers overlap or follow closely, so a few spans are
# usual; beyond this many the oldest is closed to further growth.
MAX_SPANS = 256


class BusyTime:
    """The union of spans of time, as the growth that each span adds to it.

    Spans come in any order and may lie before or inside earlier ones. Memory is bounded: of `MAX_SPANS` spans
    with gaps between them the oldest is closed, and what a later span says about the time before its end
    counts as covered. So the sum of the growth never exceeds the time that passed.
    """

    def __init__(self) -> None:
        """Start with nothing covered."""
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._closed_until = float("-inf")

    def cover(self, started: float, ended: float) -> float:
        """Add the span from `started` to `ended` and return the seconds of it that no earlier span covered."""
        started = max(started, self._closed_until)
        if ended <= started:
            return 0.0
        first, last = bisect_left(self._ends, started), bisect_right(self._starts, ended)
        met = list(zip(self._starts[first:last], self._ends[first:last], strict=True))
        covered = sum(min(end, ended) - max(start, started) for start, end in met)
        self._starts[first:last] = [min([started, *(start for start, _ in met)])]
        self._ends[first:last] = [max([ended, *(end for _, end in met)])]
        if len(self._ends) > MAX_SPANS:
            self._closed_until = self._ends.pop(0)
            del self._starts[0]
        return max(ended - started - covered, 0.0)
