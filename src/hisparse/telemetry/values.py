"""Numbers, labels and skipped items as they appear in payloads.

A payload comes from another process, another version or another author, so every item is read here before
it is used. An item that cannot be used raises `ItemError`, which containers catch, count and leave behind.
"""

import json
import math
from enum import StrEnum
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, Self

from hisparse.errors import MetricError
from hisparse.telemetry.showing import show as show  # noqa: PLC0414  marks what others import from here

# Above 2**53 a float64, which is what Prometheus stores, no longer holds every integer.
MAX_NUMBER = 2**53
MAX_TEXT = 256
# Bounds what a stream of ever new names or labels can make a process remember.
MAX_SERIES = 4096
MAX_NAMES = 1024
MAX_RANKS = 256
MAX_RANK = 2**20
# The rank of a worker whose own could not be read. What adds up counts whoever says it; the rest is skipped, since
# taken for the whole engine it would count again what the ranks that can be read count.
UNREAD_RANK = -1
# Reasons that senders made up, beside those below.
MAX_REASONS = 64

LabelValues = tuple[str, ...]
# Checked first: asking an abstract base class takes several times as long as the rest of a read.
_PLAIN = frozenset([int, float])


class SkipReason(StrEnum):
    """Why an item was skipped: the values of the label of `hisparse_telemetry_errors_total`.

    Attributes:
        meaning: What was wrong, for the docs.
    """

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        """Keep the meaning beside the text."""
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.meaning = meaning
        return reason

    WRONG_TYPE = "wrong_type", "not the kind of value that belongs here"
    NEGATIVE = "negative", "a counter or histogram would have to fall"
    NOT_FINITE = "not_finite", "NaN or infinite"
    OUT_OF_RANGE = (
        "out_of_range",
        "beyond 2**53, beyond what its unit allows for a level, or a text beyond 256 characters",
    )
    UNKNOWN_KEY = "unknown_key", "a field of the payload that this version does not know"
    UNKNOWN_CONNECTOR = "unknown_connector", "a payload of no known form"
    UNKNOWN_ENGINE = (
        "unknown_engine",
        "published for an engine index that is no small whole number, or after the pipeline was closed",
    )
    UNDECLARED_METRIC = "undeclared_metric", "a metric that the pipeline's catalogue does not declare"
    TYPE_CONFLICT = "type_conflict", "a metric sent as another type than it is declared or known as"
    LABEL_MISMATCH = "label_mismatch", "the wrong number of label values, or an undeclared label"
    BUCKET_MISMATCH = "bucket_mismatch", "a histogram over other buckets, or one that does not add up"
    DEPRECATED_NAME = (
        "deprecated_name",
        "sent under an old name beside the new one, or with labels that name no new one",
    )
    TOO_MANY_SERIES = "too_many_series", "a new series or metric beyond the bound that keeps memory bounded"
    UNKNOWN_RANK = "unknown_rank", "a rank that is no small whole number, or one more than is kept apart"
    INTERNAL = "internal", "a fault of this package; please report it with the log"


class ItemError(MetricError):
    """One item of a payload cannot be used; containers catch this, count its reason and go on."""

    def __init__(self, reason: SkipReason, detail: str) -> None:
        """Keep the reason to count and a sentence for the one warning."""
        super().__init__(detail)
        self.reason = reason


def read_number(value: Any, what: str) -> int | float:
    """Return `value` as a plain finite number, numpy scalars included.

    Raises:
        ItemError: It is no number, not finite, or beyond `MAX_NUMBER`.
    """
    number = value if type(value) in _PLAIN else _as_plain(value, what)
    # False for NaN and the infinities too.
    if -MAX_NUMBER <= number <= MAX_NUMBER:
        return number
    if isinstance(number, float) and not math.isfinite(number):
        raise ItemError(SkipReason.NOT_FINITE, f"{what} must be finite, got {number}")
    raise ItemError(SkipReason.OUT_OF_RANGE, f"{what} must be within 2**53, got {show(value)}")


def _as_plain(value: Any, what: str) -> int | float:
    try:
        number = _plain_or_none(value)
    except OverflowError as error:
        raise ItemError(SkipReason.OUT_OF_RANGE, f"{what} must be within 2**53, got {show(value)}") from error
    except Exception as error:  # a number of somebody else's class may raise anything when it is read
        raise ItemError(SkipReason.WRONG_TYPE, f"{what} cannot be read: {show(error)}") from error
    if number is None:
        raise ItemError(SkipReason.WRONG_TYPE, f"{what} must be a number, got {show(value)}")
    return number


def _plain_or_none(value: Any) -> int | float | None:
    # An array or a tensor without axes is the number in it.
    number = value.item() if getattr(value, "ndim", None) == 0 else value
    if isinstance(number, bool) or not isinstance(number, Real):
        return None
    return int(number) if isinstance(number, Integral) else float(number)


def read_increment(value: Any, what: str) -> int | float:
    """Return `value` as a plain number that a counter may grow by.

    Raises:
        ItemError: As `read_number`, or it is negative.
    """
    number = read_number(value, what)
    if number < 0:
        raise ItemError(SkipReason.NEGATIVE, f"{what} must be >= 0, got {number}")
    return number


def read_text(value: Any, what: str) -> str:
    """Return `value` as text that every sink can write.

    Raises:
        ItemError: It is no text, longer than `MAX_TEXT`, or not encodable as UTF-8.
    """
    if type(value) is not str:
        if not isinstance(value, str):
            raise ItemError(SkipReason.WRONG_TYPE, f"{what} must be text, got {show(value)}")
        value = str.__str__(value)
    if len(value) > MAX_TEXT:
        raise ItemError(SkipReason.OUT_OF_RANGE, f"{what} must have at most {MAX_TEXT} characters, got {len(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ItemError(SkipReason.WRONG_TYPE, f"{what} is not valid UTF-8: {show(value)}") from error
    text: str = value
    return text


def read_labels(key: Any) -> LabelValues:
    """Return label values from a tuple, a list, or the text that `encode_labels` makes.

    Any other text is the value of a single label; ``""`` and None are no labels. Whole numbers become text.

    Raises:
        ItemError: The key has another type, or holds something that is no label value.
    """
    if isinstance(key, str):
        if not key:
            return ()
        decoded = _decoded(key)
        key = (key,) if decoded is None else decoded
    return label_values(key)


def label_values(values: Any) -> LabelValues:
    """Return label values from a tuple or a list, of which a lone text is not one; None are no labels.

    Raises:
        ItemError: It is neither, as a dict, a set or bytes, or it holds something that is no label value.
    """
    if values is None:
        return ()
    if not isinstance(values, tuple | list):
        raise ItemError(SkipReason.LABEL_MISMATCH, f"label values must be a tuple of text, got {show(values)}")
    return tuple(map(_label_value, values))


def _label_value(part: Any) -> str:
    is_whole = isinstance(part, Integral) and part is not True and part is not False
    return str(read_number(part, "a label value")) if is_whole else read_text(part, "a label value")


def _decoded(key: str) -> list[Any] | None:
    if not key.startswith("["):
        return None
    try:
        decoded = json.loads(key)
    except (ValueError, RecursionError):
        return None
    return decoded if isinstance(decoded, list) else None


def read_rank(value: Any) -> int | None:
    """Return a rank from a whole number or its text; None and ``""`` are no rank.

    Raises:
        ItemError: It is neither, or not within 0 to `MAX_RANK`.
    """
    if value is None or (isinstance(value, str) and not value):
        return None
    index = read_index(value)
    if index is None:
        raise ItemError(SkipReason.UNKNOWN_RANK, f"a rank must be a whole number 0 to {MAX_RANK}, got {show(value)}")
    return index


def rank_or_unread(value: Any) -> int | None:
    """Return what `read_rank` does, and `UNREAD_RANK` where it raises."""
    try:
        return read_rank(value)
    except ItemError:
        return UNREAD_RANK


def read_index(value: Any) -> int | None:
    """Return a whole number 0 to `MAX_RANK`, its text or an equal float, as a plain one; None for anything else."""
    if isinstance(value, str):
        is_index = value.isdecimal() and len(value) <= len(str(MAX_RANK))
        number: int | float = int(value) if is_index else -1
    else:
        try:
            number = read_number(value, "an index")
        except ItemError:
            return None
    return int(number) if number == int(number) and 0 <= number <= MAX_RANK else None


@lru_cache(maxsize=MAX_SERIES)
def encode_labels(values: LabelValues) -> str:
    """Return label values as one text key, because JSON and msgpack have no tuples as keys."""
    return json.dumps(list(values), ensure_ascii=False, separators=(",", ":")) if values else ""
