"""Where a series' total is kept, and totals by rank of one whose ranks do not add up."""

from hisparse.telemetry.histogram import Histogram, Value, plus
from hisparse.telemetry.metadata import AcrossRanks, Kind, MetricMetadata
from hisparse.telemetry.ranks import added, decide
from hisparse.telemetry.values import MAX_RANKS, ItemError, LabelValues, SkipReason


def adds_up(metadata: MetricMetadata) -> bool:
    """Tell whether a total needs no keeping apart by rank."""
    return metadata.across_ranks == "sum" and metadata.kind != "gauge"


class RankShares:
    """What each rank counted, or its latest level, and what they show together.

    Of a count that all ranks make alike the rank that is furthest ahead is shown, so one that lags or starts again
    neither doubles it nor makes it fall. What is counted for the whole engine adds to that.

    Attributes:
        shown: The value to export.
    """

    __slots__ = ("_by_rank", "_engine", "_kind", "_rule", "shown")

    def __init__(self, rule: AcrossRanks, kind: Kind, shown: Value) -> None:
        """Start with `shown` as what was counted for the whole engine so far."""
        self._rule = rule
        self._kind = kind
        self._engine = added([shown])
        self._by_rank: dict[int, Value] = {}
        self.shown = shown

    def add(self, rank: int | None, value: Value) -> None:
        """Add what `rank`, or somebody for the whole engine, said.

        Raises:
            ItemError: One rank too many, or a histogram over other bounds; nothing changed.
        """
        if self._kind == "gauge":
            self._set(rank, value)
            return
        if rank is None:
            self._engine = plus(self._engine, value)
            self._show(added([self._engine, *([self._together()] if self._by_rank else [])]))
            return
        known = self._by_rank.get(rank)
        if known is None:
            self._check_room(rank)
            known = Histogram.empty(self.shown.bounds) if isinstance(self.shown, Histogram) else 0
        share = self._by_rank[rank] = plus(known, value)
        # The furthest ahead can only be overtaken, so the others need no look; the lowest need one.
        together = share if self._rule != "min" else self._together()
        has_engine = self._engine.lanes if isinstance(self._engine, Histogram) else self._engine
        self._show(added([self._engine, together]) if has_engine else together)

    def _set(self, rank: int | None, value: Value) -> None:
        if rank is None:
            # A level said for the whole engine stands for all ranks until they speak again.
            self._by_rank.clear()
            self.shown = value
            return
        if rank not in self._by_rank:
            self._check_room(rank)
        self._by_rank[rank] = value
        self.shown = self._together() if len(self._by_rank) > 1 else value

    def _together(self) -> Value:
        shares: dict[int | None, Value] = {rank: share for rank, share in self._by_rank.items()}  # noqa: C416  the keys may be None there
        return decide(self._rule, self._kind, shares)

    def _check_room(self, rank: int) -> None:
        if len(self._by_rank) >= MAX_RANKS:
            raise ItemError(SkipReason.UNKNOWN_RANK, f"{MAX_RANKS} ranks are known already, got rank {rank}")

    def _show(self, total: Value) -> None:
        """Show `total` where it is more than what is shown, of a histogram bucket by bucket: nothing falls."""
        if isinstance(self.shown, Histogram) and isinstance(total, Histogram):
            self.shown.raise_to(total)
        elif not isinstance(self.shown, Histogram) and not isinstance(total, Histogram):
            self.shown = max(self.shown, total)


class Place:
    """One series of a store, found once.

    Attributes:
        name: The metric.
        series: Its series by label values, of which this is ``series[labels]``.
        labels: The label values.
        shares: Totals by rank where ranks do not add up, else None.
        limits: Lowest and highest value of a level; None for a count.
    """

    __slots__ = ("labels", "limits", "name", "series", "shares")

    def __init__(
        self,
        name: str,
        labels: LabelValues,
        series: dict[LabelValues, Value],
        *,
        shares: RankShares | None,
        limits: tuple[float, float] | None = None,
    ) -> None:
        """Keep the total at ``series[labels]``; by rank in `shares` where ranks do not add up."""
        self.name = name
        self.labels = labels
        self.series = series
        self.shares = shares
        self.limits = limits

    def add(self, rank: int | None, value: Value) -> None:
        """Add what `rank` counted, or set what it says.

        Raises:
            ItemError: One rank too many, or a histogram over other bounds; nothing changed.
        """
        if self.shares is None:
            total = self.series[self.labels]
            if isinstance(value, Histogram) or isinstance(total, Histogram):
                self.series[self.labels] = plus(total, value)
            else:
                self.series[self.labels] = total + value
        else:
            self.shares.add(rank, value)
            self.series[self.labels] = self.shares.shown
