"""The contract of a statistics container: what a connector records in one step or interval."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from hisparse.telemetry.histogram import Histogram
from hisparse.telemetry.metadata import Kind
from hisparse.telemetry.values import (
    MAX_REASONS,
    UNREAD_RANK,
    ItemError,
    LabelValues,
    SkipReason,
    rank_or_unread,
    read_increment,
    read_rank,
    read_text,
    show,
)

ERRORS_KEY = "telemetry_errors"
RANK_KEY = "rank"
RANKS_KEY = "ranks"


class Sample(NamedTuple):
    """One value on its way to the sinks: an increment, a level, or a histogram to add."""

    name: str
    kind: Kind
    labels: LabelValues
    value: int | float | Histogram

    @property
    def rank(self) -> int | None:
        """The worker that speaks; None where the sample speaks for the whole engine."""
        return None


class RankedSample(Sample):
    """A sample of one worker of several; what the workers mean together is for the reader to decide.

    Attributes:
        rank: The worker that speaks; None where the sample speaks for the whole engine.
    """

    rank: int | None = None

    @classmethod
    def of(cls, sample: Sample, rank: int | None) -> "RankedSample":
        """Return `sample` as `rank` says it."""
        ranked = cls(*sample)
        ranked.rank = rank
        return ranked


def names_a_rank(rank: Any) -> bool:
    """Tell whether a key of ``"ranks"`` is more than the whole engine's."""
    return rank is not None and not (isinstance(rank, str) and not rank)


class KVConnectorStats(ABC):
    """What happened since the last `reset`, as plain data that merges.

    A container is built from another one's `to_dict`, from such a dict after msgpack, JSON or pickle, or
    from nothing. Neither building nor `aggregate` raises on data: an item that cannot be used is left out and
    counted by reason in `errors`, which travels with the payload. A subclass says how its own data merges and
    which metrics it feeds; no sink needs to know it.

    A container belongs to one thread at a time: recording, taking and merging from several needs a lock around it.

    Attributes:
        data: The container's own data.
        errors: Items skipped, by reason.
        examples: A sentence about the first item skipped for each reason, for a warning; it does not travel.
        rank: The worker that recorded `data`; None where it speaks for the whole engine, `UNREAD_RANK` where it
            could not be read: then what adds up counts, and the rest is skipped by whoever receives it. It travels.
    """

    def __init__(self, data: Any = None, *, rank: int | None = None) -> None:
        """Start empty and aggregate `data`, a plain dict or another container, whose rank is taken where none is given.

        Args:
            data: A plain form, a container, or None.
            rank: Index of the worker among those of its engine.
        """
        self.errors: dict[str, int] = {}
        self.examples: dict[str, str] = {}
        self.rank = self.rank_of(data, rank)
        self.data: dict[str, Any] = self._empty()
        if rank is not None and self.rank == UNREAD_RANK:
            self.skip(SkipReason.UNKNOWN_RANK, f"a rank must be a small whole number, got {show(rank)}")
        if data is not None:
            self.aggregate(data)

    @staticmethod
    def rank_of(data: Any, rank: Any = None) -> int | None:
        """Return the rank of a container made of these arguments. Reads only."""
        if data is None and rank is None:
            return None
        own = data.rank if isinstance(data, KVConnectorStats) else None
        given = data.get(RANK_KEY) if isinstance(data, Mapping) else own
        return rank_or_unread(given if rank is None else rank)

    @abstractmethod
    def _empty(self) -> dict[str, Any]:
        """Return the data of a container in which nothing is recorded."""

    @abstractmethod
    def _merge(self, data: Mapping[str, Any]) -> None:
        """Add `data` item by item, skipping what cannot be used."""

    @abstractmethod
    def _plain(self) -> dict[str, Any]:
        """Return an independent copy of `data` made of dicts, lists, text and numbers only."""

    @abstractmethod
    def samples(self) -> Iterator[Sample]:
        """Yield what the container means to the sinks, each worker's share apart where that matters. Reads only."""

    @abstractmethod
    def reduce(self) -> dict[str, int | float]:
        """Return one number per key for a log line. Reads only."""

    def info(self) -> Mapping[str, list[dict[str, str]]]:
        """Return label mappings of info gauges by name. Reads only."""
        return {}

    def _merge_rank(self, rank: int | None, data: Mapping[str, Any]) -> None:  # noqa: ARG002  for those who need it
        """Add `data` as `rank` said it; a subclass without ranks of its own adds everything up."""
        self._merge(data)

    def _plain_ranks(self) -> dict[int | None, dict[str, Any]]:
        """Return plain forms of what other ranks said and is kept apart, by rank."""
        return {}

    def aggregate(self, other: Any) -> Self:
        """Add `other`, a container, its plain form or None, and return this container. Never raises on data.

        What the same rank says adds up, and so does what each rank does for itself. What all ranks do alike,
        and levels, are kept by rank, and decided where they are read: the same in any grouping and order.
        """
        try:
            if other is not None:
                self._aggregate(other)
        except Exception as error:  # noqa: BLE001  a fault in merging statistics must not end a serving step
            self.skip(SkipReason.INTERNAL, f"{show(error)} while merging {show(other)}")
        return self

    def _aggregate(self, other: Any) -> None:
        data = other.to_dict() if isinstance(other, KVConnectorStats) else other
        if not isinstance(data, Mapping):
            self.skip(SkipReason.WRONG_TYPE, f"statistics must be a mapping, got {show(other)}")
            return
        rank, errors = data.get(RANK_KEY), data.get(ERRORS_KEY)
        # A container of this package that could not read its rank has counted that already.
        knows = isinstance(errors, Mapping) and SkipReason.UNKNOWN_RANK in errors
        if knows and type(rank) is int and rank == UNREAD_RANK:
            self.merge_as(data, UNREAD_RANK)
        else:
            self.merge_as(data, self._read_rank(rank))

    def aggregate_as(self, other: Any, rank: int | None) -> Self:
        """Add `other` as `aggregate` does, as said by `rank` where it carries none itself."""
        try:
            own = other.rank if isinstance(other, KVConnectorStats) else self.rank_of(other)
            if own is None and rank is not None and other is not None:
                data = other.to_dict() if isinstance(other, KVConnectorStats) else other
                other = {**data, RANK_KEY: rank} if isinstance(data, Mapping) else data
        except Exception as error:  # noqa: BLE001  a fault in merging statistics must not end a serving step
            self.skip(SkipReason.INTERNAL, f"{show(error)} while merging {show(other)}")
            return self
        return self.aggregate(other)

    def merge_as(self, data: Mapping[str, Any], rank: int | None) -> None:
        """Add the plain form `data` as `rank` said it, whatever rank it names itself."""
        if (errors := data.get(ERRORS_KEY)) is not None:
            self._merge_errors(errors)
        reserved = {ERRORS_KEY, RANK_KEY, RANKS_KEY}
        own = {key: value for key, value in data.items() if key not in reserved}
        # What is said for the whole engine first: levels of ranks beside it were said later, or they were gone.
        if rank is None:
            self._merge_rank(rank, own)
        ranks = data.get(RANKS_KEY)
        if isinstance(ranks, Mapping):
            for other in sorted(ranks, key=names_a_rank):
                self._merge_part(other, ranks[other])
        elif ranks is not None:
            self.skip(SkipReason.WRONG_TYPE, f"{RANKS_KEY} must be a mapping, got {show(ranks)}")
        if rank is not None:
            self._merge_rank(rank, own)

    def _merge_part(self, rank: Any, part: Any) -> None:
        if isinstance(part, Mapping):
            # What cannot be kept by rank is counted item by item there.
            self._merge_rank(rank_or_unread(rank), part)
        else:
            self.skip(SkipReason.WRONG_TYPE, f"a rank's part must be a mapping, got {show(part)}")

    def _read_rank(self, rank: Any) -> int | None:
        try:
            return read_rank(rank)
        except ItemError as error:
            self.skip(error.reason, str(error))
            return UNREAD_RANK

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form; it survives msgpack, JSON and pickle. Reads only."""
        plain = self._plain()
        if self.rank is not None:
            plain[RANK_KEY] = self.rank
        if ranks := self._plain_ranks():
            plain[RANKS_KEY] = {"" if rank is None else str(rank): part for rank, part in ranks.items()}
        if self.errors:
            plain[ERRORS_KEY] = dict(self.errors)
        return plain

    def is_empty(self) -> bool:
        """Tell whether nothing is recorded, skipped items included. Reads only."""
        return not self.errors and self.data == self._empty() and not self._plain_ranks()

    def reset(self) -> None:
        """Forget everything recorded; the rank stays."""
        self.data = self._empty()
        self.errors = {}
        self.examples = {}

    def fresh(self) -> "KVConnectorStats":
        """Return an empty container of this kind without a rank. Reads only.

        A subclass whose constructor needs arguments says how.
        """
        return type(self)()

    def take(self) -> dict[str, Any]:
        """Return the plain form and reset: the hand-over that neither loses nor repeats anything."""
        plain = self.to_dict()
        self.reset()
        return plain

    def skip(self, reason: str, detail: str, count: int = 1) -> None:
        """Count `count` items as skipped for `reason`."""
        if reason not in self.errors and len(self.errors) >= MAX_REASONS:
            reason = SkipReason.TOO_MANY_SERIES
        key = str(reason)
        self.errors[key] = self.errors.get(key, 0) + count
        self.examples.setdefault(key, detail)

    def skip_each(self, wrong: Iterable[ItemError]) -> None:
        """Count each item in `wrong` as skipped."""
        for error in wrong:
            self.skip(error.reason, str(error))

    def _merge_errors(self, errors: Any) -> None:
        if not isinstance(errors, Mapping):
            self.skip(SkipReason.WRONG_TYPE, f"{ERRORS_KEY} must be a mapping, got {show(errors)}")
            return
        for reason, count in list(errors.items()):
            try:
                text = read_text(reason, "a reason")
                self.skip(text, "reported by the sender of the statistics", int(read_increment(count, text)))
            except ItemError as error:
                self.skip(error.reason, str(error))

    def __eq__(self, other: object) -> bool:
        """Compare type, data, ranks and skipped items."""
        if type(other) is not type(self):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # containers change, so they are no keys; object declares a method here

    def __repr__(self) -> str:
        """Return the class and the beginning of its plain form."""
        return f"{type(self).__name__}({show(self.to_dict())})"
