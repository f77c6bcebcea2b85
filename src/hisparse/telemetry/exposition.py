"""The text format 0.0.4 of this package's families, byte for byte what prometheus_client writes, many times faster.

The client formats the labels of every sample at every scrape, which is most of its time. Here a series keeps its
text up to the value, so a scrape formats numbers only.
"""

from collections.abc import Mapping, Sequence

from prometheus_client.utils import floatToGoString

from hisparse.telemetry.deprecated import help_text
from hisparse.telemetry.histogram import Histogram, Value
from hisparse.telemetry.metadata import MetricMetadata
from hisparse.telemetry.naming import family_name
from hisparse.telemetry.values import LabelValues

Common = tuple[str, str]
"""Model name and engine of a series."""
_Series = Mapping[LabelValues, Value]
COMMON_LABELS = ("model_name", "engine")
_INFINITE = float("inf")
# From a million on the client writes an exponent, and below it the digits of a whole number are its text.
_PLAIN_BELOW = 1_000_000
# Up to here a float holds every whole number, so its digits are those of the number.
_EXACT_BELOW = 2**53
_EXPONENTS = tuple(f"e+{digits - 1:02d}" for digits in range(17))


def number_text(value: float) -> str:
    """Return `value` as the text format writes it."""
    if type(value) is int:
        if 0 <= value < _PLAIN_BELOW:
            return f"{value}.0"
        if 0 < value < _EXACT_BELOW:
            digits = str(value)
            mantissa = f"{digits[0]}.{digits[1:]}"
            return (mantissa if digits[-1] != "0" else mantissa.rstrip("0.")) + _EXPONENTS[len(digits)]
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]  # the client leaves it untyped
    return text


def bucket_texts(histogram: Histogram) -> list[str]:
    """Return the values of the label `le`, the infinite one last."""
    return [number_text(bound) for bound in (*histogram.bounds, _INFINITE)]


class FamilyText:
    """Writes one family; keeps the text of each series up to its value, and of each engine that did not move."""

    def __init__(self, name: str, metadata: MetricMetadata) -> None:
        """Write the two lines that come before the samples."""
        self._sample = f"{family_name(name)}_total" if metadata.kind == "counter" else name
        self._labelnames = (*COMMON_LABELS, *metadata.labelnames)
        documentation = help_text(metadata).replace("\\", r"\\").replace("\n", r"\n")
        self._header = f"# HELP {self._sample} {documentation}\n# TYPE {self._sample} {metadata.kind}\n"
        self._heads: dict[Common, dict[LabelValues, list[str]]] = {}
        self._kept: dict[Common, tuple[_Series, str]] = {}
        # A level may go from 0.0 to -0.0, which are equal and written differently.
        self._keeps = metadata.kind != "gauge"

    def forget(self, common: Common) -> None:
        """Drop what is kept for an engine of a model."""
        self._heads.pop(common, None)
        self._kept.pop(common, None)

    def write(self, engines: Mapping[Common, _Series]) -> str:
        """Return the family's text with the values in `engines`."""
        parts = [self._header]
        for common, series in engines.items():
            kept = self._kept.get(common)
            if kept is None or kept[0] != series:
                kept = (series, self._write_engine(common, series))
                if self._keeps:
                    self._kept[common] = kept
            parts.append(kept[1])
        return "".join(parts)

    def _write_engine(self, common: Common, series: _Series) -> str:
        heads = self._heads.setdefault(common, {})
        lines: list[str] = []
        for labels, value in series.items():
            known = heads.get(labels)
            if known is None:
                known = heads[labels] = self._heads_of(common, labels, value)
            if isinstance(value, Histogram):
                _write_histogram(lines, known, value)
            elif type(value) is int and 0 <= value < _PLAIN_BELOW:  # most values; a call would double their time
                lines.append(f"{known[0]}{value}.0\n")
            else:
                lines.append(f"{known[0]}{number_text(value)}\n")
        return "".join(lines)

    def _heads_of(self, common: Common, labels: LabelValues, value: Value) -> list[str]:
        pairs = dict(zip(self._labelnames, (*common, *labels), strict=True))
        if not isinstance(value, Histogram):
            return [f"{self._sample}{_labels_text(pairs)} "]
        buckets = [f"{self._sample}_bucket{_labels_text(pairs | {'le': le})} " for le in bucket_texts(value)]
        return [*buckets, *(f"{self._sample}_{part}{_labels_text(pairs)} " for part in ("count", "sum"))]


def _write_histogram(lines: list[str], heads: Sequence[str], histogram: Histogram) -> None:
    running = 0
    for head, count in zip(heads, histogram.counts, strict=False):  # the last two heads are count and sum
        running += count
        lines.append(f"{head}{running}.0\n" if running < _PLAIN_BELOW else f"{head}{number_text(running)}\n")
    lines.append(f"{heads[-2]}{number_text(running)}\n{heads[-1]}{number_text(histogram.sum)}\n")


def _labels_text(pairs: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(pairs.items())) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
