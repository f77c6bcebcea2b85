"""Statistics of several connectors, kept apart by child."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple, Self

from hisparse.connectors.multi.hearing import heard, info_of, samples_of
from hisparse.connectors.reading import explained
from hisparse.telemetry import (
    CATALOGUE,
    Catalogue,
    HiSparseKVConnectorStats,
    KVConnectorStats,
    OffloadingConnectorStats,
    Sample,
    SkipReason,
)
from hisparse.telemetry.stats import ERRORS_KEY, RANK_KEY, RankedSample
from hisparse.telemetry.values import ItemError, LabelValues, read_text, show
from hisparse.telemetry.wire import decode_stats

CHILDREN_KEY = "children"
SHARED_KEY = "shared"
MAX_CHILDREN = 64
_BYTES = (bytes, bytearray, memoryview)

BuildChild = Callable[[str, Any], KVConnectorStats | None]


class LevelKey(NamedTuple):
    """A gauge's series as one worker knows it."""

    name: str
    labels: LabelValues
    rank: int | None


def level_key(sample: Sample) -> LevelKey:
    """Return the series of a sample."""
    return LevelKey(sample.name, sample.labels, sample.rank)


class MultiKVConnectorStats(KVConnectorStats):
    """One container for each child, by the child's name.

    `data` is ``{"children": {name: container}, "shared": OffloadingConnectorStats}``; the plain form holds the
    plain forms. A mapping of children alone, keyed by class, is read too. What several children count under one
    name adds up. A level that several of them know is combined by the rule its metric has for ranks (``sum``,
    else the extreme), since the last of them speaks for itself alone; ``shared`` carries such levels and info
    combined over all children, those included that said nothing this time.
    """

    def __init__(self, data: Any = None, *, build: BuildChild, catalogue: Catalogue = CATALOGUE) -> None:
        """Start empty and aggregate `data`.

        Args:
            data: Containers or plain forms by child; None for a child that has nothing to say.
            build: Makes a child's container from its name and its plain form; None for an unknown child.
            catalogue: Says how levels combine.
        """
        self._build = build
        self._catalogue = catalogue
        super().__init__(data)
        # Each child carries its own.
        self.rank = None

    def fresh(self) -> "MultiKVConnectorStats":
        """Return an empty container that builds children as this one does. Reads only."""
        return MultiKVConnectorStats(build=self._build, catalogue=self._catalogue)

    def _empty(self) -> dict[str, Any]:
        return {CHILDREN_KEY: {}, SHARED_KEY: OffloadingConnectorStats()}

    @property
    def children(self) -> Mapping[str, KVConnectorStats]:
        """The children's containers by name."""
        children: dict[str, KVConnectorStats] = self.data[CHILDREN_KEY]
        return children

    def add(self, name: Any, value: Any, *, rank: int | None = None) -> None:
        """Add what a child recorded; an unknown child is skipped and counted.

        Args:
            name: The child's name.
            value: A container, its plain form, or what `encode_stats` made of it; None for nothing.
            rank: The worker that recorded it, where it does not say so itself.
        """
        inner = unwrapped(value)
        if inner is None or (isinstance(inner, Mapping) and not inner):
            return
        try:
            self._add(read_text(name, "a child's name"), value, rank)
        except ItemError as error:
            self.skip(error.reason, str(error))
        except Exception as error:  # noqa: BLE001  a child's fault must not take the other children's statistics
            self.skip(SkipReason.INTERNAL, f"{show(name)}: {explained(error)}")

    def share(self, shared: Any, *, rank: int | None = None) -> None:
        """Add levels and info that hold for several children together; the latest stand."""
        stats = self.data[SHARED_KEY].aggregate_as(shared, rank)
        self._take_errors(stats)

    def _add(self, name: str, value: Any, rank: int | None) -> None:
        known = self.children.get(name)
        # The base class does not read all that its connector's later payloads say.
        is_narrow = type(known) is HiSparseKVConnectorStats and isinstance(value, Mapping)
        must_read = known is None or is_narrow or isinstance(value, _BYTES) or unwrapped(value) is not value
        stats = self._read(name, value, rank) if must_read else value
        if known is None:
            if len(self.children) >= MAX_CHILDREN:
                raise ItemError(SkipReason.TOO_MANY_SERIES, f"{name!r} is one child more than {MAX_CHILDREN}")
            self.data[CHILDREN_KEY][name] = stats
        else:
            if isinstance(stats, KVConnectorStats):
                self.data[CHILDREN_KEY][name] = known = _holding_both(name, known, stats)
            known.aggregate_as(stats, rank)
        self._take_errors(self.children[name])

    def _read(self, name: str, value: Any, rank: int | None) -> KVConnectorStats:
        stats: KVConnectorStats | None
        if isinstance(value, _BYTES):
            stats = decode_stats(value, self._catalogue, lambda data, _: self._build_first(name, data, None))
        elif isinstance(value, KVConnectorStats):
            # One of a child without a rank is kept as it is, for nobody may know how to build it again.
            stats = value if rank is None or value.rank is not None else value.fresh().aggregate_as(value, rank)
        else:
            stats = self._build_first(name, value, rank)
        if stats is None:
            raise ItemError(SkipReason.UNKNOWN_CONNECTOR, f"child {name!r} sent {show(value)}")
        return stats

    def _build_first(self, name: str, value: Any, rank: int | None) -> KVConnectorStats | None:
        """Build a child's container; where its class cannot read `value` whole, from what an engine wrapped in it."""
        inner = unwrapped(value)
        if inner is value:
            return self._build(name, _ranked(value, rank))
        whole = heard(lambda: self._build(name, _ranked(value, rank)), other=None)
        if whole is not None and not whole.errors:
            return whole
        built = self._build(name, _ranked(inner, rank))
        return whole if built is None else built

    def _take_errors(self, child: KVConnectorStats) -> None:
        # One container reports once: the sinks ask this one.
        for reason, count in child.errors.items():
            self.skip(reason, child.examples.get(reason, "reported by the sender of the statistics"), count)
        child.errors, child.examples = {}, {}

    def aggregate_as(self, other: Any, rank: int | None) -> Self:
        """Add `other` as `aggregate` does, what its children recorded as said by `rank` where they carry none."""
        if not isinstance(other, MultiKVConnectorStats):
            return super().aggregate_as(other, rank)
        # Built containers merge as they are: nobody needs to know how to build them again.
        for reason, count in other.errors.items():
            self.skip(reason, other.examples.get(reason, "reported by the sender of the statistics"), count)
        for name, child in other.children.items():
            self.add(name, child if name in self.children else _copied(child), rank=rank)
        self.share(other.data[SHARED_KEY], rank=rank)
        return self

    def _aggregate(self, other: Any) -> None:
        if isinstance(other, MultiKVConnectorStats):
            self.aggregate_as(other, None)
        else:
            super()._aggregate(other)

    def _merge(self, data: Mapping[str, Any]) -> None:
        self._merge_rank(None, data)

    def _merge_rank(self, rank: int | None, data: Mapping[str, Any]) -> None:
        children: Any = data
        if CHILDREN_KEY in data:
            children = data[CHILDREN_KEY]
            for key in data.keys() - {CHILDREN_KEY, SHARED_KEY}:
                self.skip(SkipReason.UNKNOWN_KEY, f"unknown section {show(key)}")
            self.share(data.get(SHARED_KEY), rank=rank)
        if not isinstance(children, Mapping):
            self.skip(SkipReason.WRONG_TYPE, f"{CHILDREN_KEY} must be a mapping, got {show(children)}")
            return
        for name, value in children.items():
            self.add(name, value, rank=rank)

    def _plain(self) -> dict[str, Any]:
        return self._plain_and_faults()[0]

    def _plain_and_faults(self) -> tuple[dict[str, Any], int]:
        children: dict[str, Any] = {}
        for name, child in self.children.items():
            if (plain := heard(child.to_dict, other=None)) is not None:
                children[name] = plain
        shared = self.data[SHARED_KEY]
        plain = {CHILDREN_KEY: children} | ({} if shared.is_empty() else {SHARED_KEY: shared.to_dict()})
        return plain, len(self.children) - len(children)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form; a child that has none is left out, and counted in it. Reads only."""
        plain, faults = self._plain_and_faults()
        errors = Counter(self.errors)
        if faults:
            errors[str(SkipReason.INTERNAL)] += faults
        return {**plain, ERRORS_KEY: dict(errors)} if errors else plain

    def is_empty(self) -> bool:
        """Tell whether no child recorded anything, skipped items included. Reads only."""
        return not self.errors and all(heard(child.is_empty, other=False) for child in self.children.values())

    def samples(self) -> Iterator[Sample]:
        """Yield every child's series, and levels that several children know once. Reads only."""
        levels: dict[LevelKey, list[Any]] = {}
        for child in self.children.values():
            for sample in (*samples_of(child), *info_of(child)[1]):
                if sample.kind == "gauge":
                    levels.setdefault(level_key(sample), []).append(sample.value)
                else:
                    yield sample
        for sample in self.data[SHARED_KEY].samples():
            levels[level_key(sample)] = [sample.value]
        for key, values in levels.items():
            level = Sample(key.name, "gauge", key.labels, combined_level(self._catalogue, key.name, values))
            yield level if key.rank is None else RankedSample.of(level, key.rank)

    def info(self) -> Mapping[str, list[dict[str, str]]]:
        """Return the labels of the info gauges of all children."""
        found = combined_info(info_of(child)[0] for child in self.children.values())
        return {**found, **self.data[SHARED_KEY].info()}

    def reduce(self) -> dict[str, int | float]:
        """Return what each child reduces to, each key after the child's name."""
        reduced: dict[str, int | float] = {}
        for name, child in self.children.items():
            empty: dict[str, int | float] = {}
            reduced |= {f"{name}: {key}": value for key, value in heard(child.reduce, other=empty).items()}
        return reduced


def combined_level(catalogue: Mapping[str, Any], name: str, values: list[float]) -> float:
    """Return one level for several children's, by the rule the metric has for several ranks."""
    rule = catalogue[name].across_ranks if name in catalogue else "max"
    return sum(values) if rule == "sum" else min(values) if rule == "min" else max(values)


def combined_info(infos: Iterable[Mapping[str, list[dict[str, str]]]]) -> dict[str, list[dict[str, str]]]:
    """Return all label mappings of each info gauge, each once."""
    found: dict[str, list[dict[str, str]]] = {}
    for info in infos:
        for name, mappings in info.items():
            known = found.setdefault(name, [])
            known.extend(labels for labels in mappings if labels not in known)
    return found


def _copied(child: KVConnectorStats) -> KVConnectorStats:
    # By its own means, which share what never changes; a class that has none is copied as a whole.
    copied = heard(lambda: child.fresh().aggregate(child), other=None)
    return deepcopy(child) if copied is None or len(copied.errors) > len(child.errors) else copied


def unwrapped(value: Any) -> Any:
    """Return what a dataclass of an engine wraps: some send ``{"data": payload}``."""
    return value["data"] if isinstance(value, Mapping) and set(value) == {"data"} else value


def _ranked(value: Any, rank: int | None) -> Any:
    is_unranked = rank is not None and isinstance(value, Mapping) and RANK_KEY not in value
    return {**value, RANK_KEY: rank} if is_unranked else value


def _holding_both(name: str, known: KVConnectorStats, other: KVConnectorStats) -> KVConnectorStats:
    """Return `known`, or what it says in a container of the class of `other`, which also holds what that says.

    Raises:
        ItemError: Neither class is a kind of the other.
    """
    if isinstance(known, type(other)):
        return known
    if not isinstance(other, type(known)):
        raise ItemError(
            SkipReason.TYPE_CONFLICT,
            f"child {name!r} has {type(known).__name__} here and {type(other).__name__} in the statistics merged",
        )
    return other.fresh().aggregate(known)
