"""Numbers, labels and skipped items as they appear in payloads.

A payload comes from another process, another version or another author, so every item is read here before
it is used. An item that cannot be used raises `ItemError`, which containers catch, count and leave behind.
"""

import json
import math
from enum import StrEnum
from numbers import Integral, Real
from typing import Any

from hisparse.errors import MetricError

# Above 2**53 a float64, which is what Prometheus stores, no longer holds every integer.
MAX_NUMBER = 2**53
MAX_TEXT = 256
# Bounds what a stream of ever new names or labels can make a process remember.
MAX_SERIES = 4096
MAX_NAMES = 1024

LabelValues = tuple[str, ...]


class SkipReason(StrEnum):
    """Why an item was skipped: the values of the label of `hisparse_telemetry_errors_total`."""

    WRONG_TYPE = "wrong_type"
    NEGATIVE = "negative"
    NOT_FINITE = "not_finite"
    OUT_OF_RANGE = "out_of_range"
    UNKNOWN_KEY = "unknown_key"
    UNKNOWN_CONNECTOR = "unknown_connector"
    UNKNOWN_ENGINE = "unknown_engine"
    UNDECLARED_METRIC = "undeclared_metric"
    TYPE_CONFLICT = "type_conflict"
    LABEL_MISMATCH = "label_mismatch"
    BUCKET_MISMATCH = "bucket_mismatch"
    TOO_MANY_SERIES = "too_many_series"
    INTERNAL = "internal"


class ItemError(MetricError):
    """One item of a payload cannot be used; containers catch this, count its reason and go on."""

    def __init__(self, reason: SkipReason, detail: str) -> None:
        """Keep the reason to count and a sentence for the one warning."""
        super().__init__(detail)
        self.reason = reason


def show(value: object) -> str:
    """Return `value` as short text for a message, whatever its own ``__repr__`` does."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  a foreign object's repr may raise anything, and this is only for a message
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004  one line of a log


def read_number(value: Any, what: str) -> int | float:
    """Return `value` as a plain finite number, numpy scalars included.

    Raises:
        ItemError: It is no number, not finite, or beyond `MAX_NUMBER`.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ItemError(SkipReason.WRONG_TYPE, f"{what} must be a number, got {show(value)}")
    number = int(value) if isinstance(value, Integral) else float(value)
    if isinstance(number, float) and not math.isfinite(number):
        raise ItemError(SkipReason.NOT_FINITE, f"{what} must be finite, got {number}")
    if abs(number) > MAX_NUMBER:
        raise ItemError(SkipReason.OUT_OF_RANGE, f"{what} must be within 2**53, got {show(value)}")
    return number


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
    if not isinstance(value, str):
        raise ItemError(SkipReason.WRONG_TYPE, f"{what} must be text, got {show(value)}")
    if len(value) > MAX_TEXT:
        raise ItemError(
            SkipReason.OUT_OF_RANGE, f"{what} must have at most {MAX_TEXT} characters, got {len(value)}"
        )
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ItemError(SkipReason.WRONG_TYPE, f"{what} is not valid UTF-8: {show(value)}") from error
    return value


def read_labels(key: Any) -> LabelValues:
    """Return label values from a tuple, a list, or the text that `encode_labels` makes.

    Any other text is the value of a single label; ``""`` and None are no labels. Whole numbers become text.

    Raises:
        ItemError: The key has another type, or holds something that is no label value.
    """
    if key is None or key == "":
        return ()
    if isinstance(key, str):
        decoded = _decoded(key)
        key = (key,) if decoded is None else decoded
    if not isinstance(key, tuple | list):
        raise ItemError(SkipReason.LABEL_MISMATCH, f"label values must be a tuple of text, got {show(key)}")
    return tuple(_label_value(part) for part in key)


def _label_value(part: Any) -> str:
    is_whole = isinstance(part, Integral) and part is not True and part is not False
    return str(int(part)) if is_whole else read_text(part, "a label value")


def _decoded(key: str) -> list[Any] | None:
    if not key.startswith("["):
        return None
    try:
        decoded = json.loads(key)
    except (ValueError, RecursionError):
        return None
    return decoded if isinstance(decoded, list) else None


def encode_labels(values: LabelValues) -> str:
    """Return label values as one text key, because JSON and msgpack have no tuples as keys."""
    return json.dumps(list(values), ensure_ascii=False, separators=(",", ":")) if values else ""
