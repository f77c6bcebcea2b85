"""Statistics as bytes, for a process boundary: msgpack, read in one typed pass where nothing is wrong with them.

`OffloadingConnectorStats` travel by series key, each histogram as its bounds, its bucket counts as they lie in
memory, and its sum. Other containers travel in their plain form. Bytes that do not fit are read item by item, and
what cannot be used is counted.
"""

import math
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from hisparse.telemetry.building import build_kv_connector_stats
from hisparse.telemetry.catalogue import CATALOGUE, Catalogue
from hisparse.telemetry.hisparse_stats import HiSparseKVConnectorStats
from hisparse.telemetry.histogram import LANE_BITS, Histogram, every_lane, is_increasing
from hisparse.telemetry.metadata import same_bounds
from hisparse.telemetry.offload_stats import OffloadingConnectorStats
from hisparse.telemetry.series import (
    KIND_OF,
    SECTIONS,
    Section,
    SeriesTable,
    known_name,
    split_key,
)
from hisparse.telemetry.stats import ERRORS_KEY, RANK_KEY, RANKS_KEY, KVConnectorStats, names_a_rank
from hisparse.telemetry.values import (
    MAX_NAMES,
    MAX_NUMBER,
    MAX_RANKS,
    MAX_REASONS,
    ItemError,
    SkipReason,
    encode_labels,
    rank_or_unread,
    read_rank,
    show,
)

_VERSION = 1
_VERSION_KEY = "series_version"
_LANE_BYTES = LANE_BITS // 8
# No count of a sane histogram has these bits; 54 bits hold every count that a sender may name.
_BAD_BITS = (2**LANE_BITS - 1) ^ (2**54 - 1)

_Whole = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
_Real = Annotated[float, msgspec.Meta(ge=0, le=MAX_NUMBER)]
_AnyWhole = Annotated[int, msgspec.Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
_AnyReal = Annotated[float, msgspec.Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
_Counts = dict[str, _Whole | _Real]
_Histograms = dict[str, tuple[bytes, bytes, _Real]]
_Text = Annotated[str, msgspec.Meta(max_length=256)]


class _Table(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One rank's series."""

    counters: _Counts = {}
    rank_counters: _Counts = {}
    gauges: dict[str, _AnyWhole | _AnyReal] = {}
    histograms: _Histograms = {}
    rank_histograms: _Histograms = {}
    info: dict[str, list[dict[_Text, _Text]]] = {}


class _Message(_Table, omit_defaults=True, forbid_unknown_fields=True):
    """A container: its own rank's series beside what is kept of other ranks."""

    series_version: int = 0
    rank: _Whole | None = None
    ranks: dict[str, _Table] = {}
    telemetry_errors: dict[_Text, _Whole] = {}


Build = Callable[[Any, Catalogue], KVConnectorStats | None]
_TO_TABLE = msgspec.msgpack.Decoder(_Message)


def encode_stats(stats: KVConnectorStats) -> bytes:
    """Return `stats` as bytes for `decode_stats`. Reads only."""
    if type(stats) is not OffloadingConnectorStats:
        return msgspec.msgpack.encode(stats.to_dict())
    own = stats.own
    message = _Message(
        own.counters,
        own.rank_counters,
        own.gauges,
        _to_wire(own.histograms),
        _to_wire(own.rank_histograms),
        own.info,
        _VERSION,
        stats.rank,
        {_text(rank): _to_table(table) for rank, table in stats.tables.items() if table is not own},
        stats.errors,
    )
    return msgspec.msgpack.encode(message)


def decode_stats(
    payload: bytes | bytearray | memoryview, catalogue: Catalogue = CATALOGUE, build: Build = build_kv_connector_stats
) -> KVConnectorStats | None:
    """Return the statistics that `encode_stats`, or msgpack of a plain form, made; None where nobody knows them.

    Never raises on foreign bytes: what is no msgpack gives empty statistics in which one item is skipped and
    counted.

    Args:
        payload: The bytes.
        catalogue: Merge rules and buckets.
        build: Makes statistics from plain data that is not `OffloadingConnectorStats` as bytes.
    """
    try:
        message = _TO_TABLE.decode(payload)
        if message.series_version == _VERSION:
            return _read_message(message, catalogue)
    except (ItemError, msgspec.DecodeError, ValueError, RecursionError):
        pass  # something does not fit: read it item by item
    return _decode_slowly(payload, catalogue, build)


def _decode_slowly(payload: Any, catalogue: Catalogue, build: Build) -> KVConnectorStats | None:
    try:
        data = msgspec.msgpack.decode(payload, strict=False)
    except Exception as error:  # noqa: BLE001  foreign bytes may hold anything, keys that are no keys included
        unread = HiSparseKVConnectorStats()
        unread.skip(SkipReason.WRONG_TYPE, f"no msgpack, {type(error).__name__}: {show(payload)}")
        return unread
    if isinstance(data, Mapping) and _VERSION_KEY in data:
        return _read_items(data, catalogue)
    return build(data, catalogue)


def _text(rank: int | None) -> str:
    return "" if rank is None else str(rank)


def _to_wire(histograms: Mapping[str, Histogram]) -> dict[str, tuple[bytes, bytes, float]]:
    return {
        key: (
            pack_bounds(histogram.bounds),
            histogram.lanes.to_bytes((histogram.lanes.bit_length() + 7) // 8, "little"),
            histogram.sum,
        )
        for key, histogram in histograms.items()
    }


def _to_table(table: SeriesTable) -> _Table:
    return _Table(
        rank_counters=table.rank_counters,
        gauges=table.gauges,
        rank_histograms=_to_wire(table.rank_histograms),
        info=table.info,
    )


@lru_cache(maxsize=MAX_NAMES)
def pack_bounds(bounds: tuple[float, ...]) -> bytes:
    """Return bucket bounds as little-endian float64."""
    return struct.pack(f"<{len(bounds)}d", *bounds)


@lru_cache(maxsize=MAX_NAMES)
def unpack_bounds(packed: bytes) -> tuple[float, ...]:
    """Return the bucket bounds that `pack_bounds` packed, the same tuple each time.

    Raises:
        ItemError: They are not finite or not increasing.
    """
    if len(packed) % 8:
        raise ItemError(SkipReason.BUCKET_MISMATCH, f"bucket bounds must be float64, got {show(packed)}")
    bounds = struct.unpack(f"<{len(packed) // 8}d", packed)
    if not is_increasing(bounds) or not math.isfinite(bounds[0]) or not math.isfinite(bounds[-1]):
        raise ItemError(SkipReason.BUCKET_MISMATCH, f"bucket bounds must increase, got {show(bounds)}")
    return same_bounds(bounds)


def _from_wire(bounds: bytes, lanes: bytes, total: float) -> Histogram:
    edges = unpack_bounds(bounds)
    counts = int.from_bytes(lanes, "little")
    buckets = len(edges) + 1
    if len(lanes) > buckets * _LANE_BYTES or counts & every_lane(buckets, _BAD_BITS) or not math.isfinite(total):
        raise ItemError(SkipReason.BUCKET_MISMATCH, "histogram does not add up")
    if total and not counts:
        raise ItemError(SkipReason.BUCKET_MISMATCH, "histogram does not add up")
    return Histogram.of_lanes(edges, counts, total)


def _read_message(message: _Message, catalogue: Catalogue) -> OffloadingConnectorStats:
    """Return the container of a message whose types are right.

    Raises:
        ItemError: A name, a number or a rank is not; then it must be read item by item.
    """
    stats = OffloadingConnectorStats(rank=read_rank(message.rank), catalogue=catalogue)
    stats.errors = message.telemetry_errors
    if len(message.ranks) > MAX_RANKS or len(stats.errors) > MAX_REASONS:
        raise ItemError(SkipReason.TOO_MANY_SERIES, "more ranks or reasons than are kept")
    own = {stats.rank: _read_table(message, catalogue)}
    others = {read_rank(rank): _read_table(part, catalogue) for rank, part in message.ranks.items()}
    stats.tables = {**others, **own}
    return stats


def _read_table(message: _Table, catalogue: Catalogue) -> SeriesTable:
    table = SeriesTable()
    table.counters, table.rank_counters, table.gauges = message.counters, message.rank_counters, message.gauges
    # No constraint of a type refuses a NaN, and a sum of numbers in range is finite unless there is one.
    for numbers in (message.counters, message.rank_counters, message.gauges):
        if not math.isfinite(sum(numbers.values())):
            raise ItemError(SkipReason.NOT_FINITE, "a number is NaN")
    table.histograms = {key: _from_wire(*parts) for key, parts in message.histograms.items()}
    table.rank_histograms = {key: _from_wire(*parts) for key, parts in message.rank_histograms.items()}
    table.info = message.info
    table.count_names()
    # Both are rare, and are for the reading item by item.
    if not catalogue.deprecated.keys().isdisjoint(table.kinds.keys()):
        raise ItemError(SkipReason.DEPRECATED_NAME, "an old name")
    for histograms in (table.histograms, table.rank_histograms):
        for key, histogram in histograms.items():
            bounds = histogram.bounds
            declared = catalogue.buckets.get(known_name(key), bounds)
            if bounds is not declared and bounds != declared:
                raise ItemError(SkipReason.BUCKET_MISMATCH, "other bounds than are declared")
    return table


def _read_items(data: Mapping[str, Any], catalogue: Catalogue) -> OffloadingConnectorStats:
    """Return the container of a message with faults, item by item."""
    stats = OffloadingConnectorStats(catalogue=catalogue)
    stats.rank = stats.rank_of(data)
    stats.aggregate({key: data[key] for key in (ERRORS_KEY, RANK_KEY) if key in data})
    ranks = data.get(RANKS_KEY)
    parts = {**ranks, stats.rank: data} if isinstance(ranks, Mapping) else {stats.rank: data}
    for rank, part in sorted(parts.items(), key=lambda item: names_a_rank(item[0])):
        if isinstance(part, Mapping):
            _add_part(stats, rank_or_unread(rank), part)
        else:
            stats.skip(SkipReason.WRONG_TYPE, f"a rank's part must be a mapping, got {show(part)}")
    return stats


def _add_part(stats: OffloadingConnectorStats, rank: int | None, part: Mapping[Any, Any]) -> None:
    known = {*SECTIONS, "info", ERRORS_KEY, RANK_KEY, RANKS_KEY, _VERSION_KEY}
    others = {key: value for key, value in part.items() if key not in known}
    stats.merge_as({**others, **({"info": part["info"]} if "info" in part else {})}, rank)
    # As one payload, by which an old name is found to be beside its replacement; what is in two sections is not.
    whole: dict[str, dict[Any, Any]] = {"types": {}, "data": {}}
    apart: list[dict[str, Any]] = []
    for section in SECTIONS:
        if section in part:
            plain = _plain_section(section, part[section])
            if isinstance(plain["data"], Mapping) and whole["data"].keys().isdisjoint(plain["data"]):
                whole = {key: whole[key] | plain[key] for key in whole}
            else:
                apart.append(plain)
    for plain in (whole, *apart):
        stats.merge_as(plain, rank)


def _plain_section(section: Section, values: Any) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        return {"types": {}, "data": values}
    types: dict[Any, str] = {}
    metrics: dict[Any, dict[Any, Any]] = {}
    for key, value in values.items():
        name, labels = key, ""
        try:
            name, decoded = split_key(key)
            labels = encode_labels(decoded)
        except (ItemError, AttributeError, TypeError):
            pass  # no key: refused as a name
        types[name] = KIND_OF[section]
        metrics.setdefault(name, {})[labels] = _plain_histogram(value) if KIND_OF[section] == "histogram" else value
    return {"types": types, "data": metrics}


def _plain_histogram(value: Any) -> Any:
    try:
        return _from_wire(*value).to_dict()
    except Exception:  # noqa: BLE001  no histogram, whatever it is: refused as it stands
        return None
