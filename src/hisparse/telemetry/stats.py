"""The contract of a statistics container: what a connector records in one step or interval."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from hisparse.telemetry.histogram import Histogram
from hisparse.telemetry.metadata import Kind
from hisparse.telemetry.values import ItemError, LabelValues, SkipReason, read_increment, read_text, show

ERRORS_KEY = "telemetry_errors"
_MAX_REASONS = 64


class Sample(NamedTuple):
    """One value on its way to the sinks: an increment, a level, or a histogram to add."""

    name: str
    kind: Kind
    labels: LabelValues
    value: int | float | Histogram


class KVConnectorStats(ABC):
    """What happened since the last `reset`, as plain data that merges.

    A container is built from another one's `to_dict`, from such a dict after msgpack, JSON or pickle, or
    from nothing. Neither building nor `aggregate` raises on data: an item that cannot be used is left out and
    counted by reason in `errors`, which travels with the payload. A subclass says how its own data merges and
    which metrics it feeds; no sink needs to know it.

    Attributes:
        data: The container's own data.
        errors: Items skipped, by reason.
        examples: A sentence about the first item skipped for each reason, for a warning; it does not travel.
    """

    def __init__(self, data: Any = None) -> None:
        """Start empty and aggregate `data`, a plain dict or another container."""
        self.data: dict[str, Any] = self._empty()
        self.errors: dict[str, int] = {}
        self.examples: dict[str, str] = {}
        self.aggregate(data)

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
        """Yield what the container means to the sinks. Reads only."""

    @abstractmethod
    def reduce(self) -> dict[str, int | float]:
        """Return one number per key for a log line. Reads only."""

    def info(self) -> Mapping[str, list[dict[str, str]]]:
        """Return label mappings of info gauges by name. Reads only."""
        return {}

    def aggregate(self, other: Any) -> Self:
        """Add `other`, a container, its plain form or None, and return this container. Never raises on data."""
        try:
            if other is not None:
                self._aggregate(other)
        except Exception as error:  # noqa: BLE001  a fault in merging statistics must not end a serving step
            self.skip(SkipReason.INTERNAL, f"{type(error).__name__} while merging {show(other)}")
        return self

    def _aggregate(self, other: Any) -> None:
        data = other.to_dict() if isinstance(other, KVConnectorStats) else other
        if not isinstance(data, Mapping):
            self.skip(SkipReason.WRONG_TYPE, f"statistics must be a mapping, got {show(other)}")
            return
        if (errors := data.get(ERRORS_KEY)) is not None:
            self._merge_errors(errors)
        self._merge({key: value for key, value in data.items() if key != ERRORS_KEY})

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form; it survives msgpack, JSON and pickle. Reads only."""
        plain = self._plain()
        if self.errors:
            plain[ERRORS_KEY] = dict(self.errors)
        return plain

    def is_empty(self) -> bool:
        """Tell whether nothing is recorded, skipped items included. Reads only."""
        return not self.errors and self.data == self._empty()

    def reset(self) -> None:
        """Forget everything recorded."""
        self.data = self._empty()
        self.errors = {}
        self.examples = {}

    def take(self) -> dict[str, Any]:
        """Return the plain form and reset: the hand-over that neither loses nor repeats anything."""
        plain = self.to_dict()
        self.reset()
        return plain

    def skip(self, reason: str, detail: str, count: int = 1) -> None:
        """Count `count` items as skipped for `reason`."""
        if reason not in self.errors and len(self.errors) >= _MAX_REASONS:
            reason = SkipReason.INTERNAL
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
        """Compare type, data and skipped items."""
        if type(other) is not type(self):
            return NotImplemented
        return self.data == other.data and self.errors == other.errors

    __hash__ = None  # type: ignore[assignment]  # containers change, so they are no keys; object declares a method here

    def __repr__(self) -> str:
        """Return the class and its plain form."""
        return f"{type(self).__name__}({self.to_dict()})"
