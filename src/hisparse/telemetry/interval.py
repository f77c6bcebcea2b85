"""The interval log line: rates and ratios of what happened since the last one; silent when nothing did."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from hisparse.telemetry.catalogue import RATIOS, Catalogue
from hisparse.telemetry.histogram import Histogram, Value, plus
from hisparse.telemetry.metadata import MetricMetadata
from hisparse.telemetry.store import MetricStore
from hisparse.telemetry.values import LabelValues, read_number

GIB = 2**30
# Less is told in bytes: as GiB it would be all exponent.
MIB = 2**20
# Over less than this a rate says how exactly two lines hit the same moment, and nothing about a transfer.
MIN_RATE_SECONDS = 1e-3


class _Key(NamedTuple):
    """A metric and its label values that keep apart in the log; open labels are summed."""

    name: str
    labels: LabelValues


_Totals = dict[_Key, Value]


class Stopwatch:
    """Seconds since the last log line, by somebody else's clock, which may fail."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start now."""
        self._clock = clock
        self._started = clock()

    def now(self) -> float:
        """Return the clock's seconds; where it has none, those of the start, so that no time has passed."""
        try:
            return read_number(self._clock(), "the clock")
        except Exception:  # noqa: BLE001  somebody else's clock
            return self._started

    def passed(self) -> float:
        """Return the seconds since the start."""
        return self.now() - self._started

    def restart(self) -> float:
        """Return the seconds since the start, and start again."""
        now = self.now()
        passed, self._started = now - self._started, now
        return passed


class KVConnectorLogging:
    """Compares the running totals of all engines with those of the previous line.

    It reads the totals that Prometheus reads, so the two cannot disagree, and it keeps no samples.
    """

    def __init__(self, catalogue: Catalogue, stores: Iterable[MetricStore] = ()) -> None:
        """Start the first interval at the present totals of `stores`."""
        self._catalogue = {name: metadata for name, metadata in catalogue.items() if metadata.log is not None}
        self._before = self._totals(list(stores))

    def meet(self, store: MetricStore) -> None:
        """Start the interval of an engine met later at the present totals of `store`: its past is no growth."""
        for key, value in self._totals([store]).items():
            self._before[key] = _combined(self._catalogue[key.name], self._before.get(key), value)

    def line(self, stores: Iterable[MetricStore], seconds: float) -> str | None:
        """Return ``KV Transfer metrics: k=v, ...`` for the last `seconds` and start the next interval.

        None when no counter grew and no level changed. Counts are sums over the engines; a ratio is the ratio
        of sums. An interval shorter than `MIN_RATE_SECONDS` has no rates.
        """
        engines = list(stores)
        now, before = self._totals(engines), self._before
        self._before = now
        if all(value == before.get(key) for key, value in now.items()):
            return None
        items = list(self._items(now, before, seconds))
        if len(engines) > 1:
            items.append(f"engines={len(engines)}")
        return f"KV Transfer metrics: {', '.join(items)}"

    def _items(self, now: _Totals, before: _Totals, seconds: float) -> Iterator[str]:
        grown = {key: _difference(value, before.get(key)) for key, value in now.items()}
        ratios = {ratio.parts[-1]: ratio for ratio in RATIOS}
        active = [ratio.parts for ratio in RATIOS if any(grown.get(_Key(part, ())) for part in ratio.parts)]
        shown = set(chain.from_iterable(active))
        for key, value in now.items():
            metadata = self._catalogue[key.name]
            label = _label(key, metadata)
            if metadata.kind == "gauge":
                yield _level(label, metadata, value)
            elif (moved := grown[key]) or key.name in shown:
                yield from _growth(label, metadata, moved, seconds=seconds)
            if key.name in shown and key.name in ratios:
                yield _ratio(ratios[key.name].log, ratios[key.name].parts, grown)

    def _totals(self, stores: list[MetricStore]) -> _Totals:
        totals: _Totals = {}
        for store in stores:
            recorded = store.recorded()
            snapshot = store.snapshot()
            for name, metadata in self._catalogue.items():
                if name in recorded:
                    for labels, value in snapshot[name].items():
                        key = _Key(name, _kept(metadata, labels))
                        totals[key] = _combined(metadata, totals.get(key), value)
        return totals


def _kept(metadata: MetricMetadata, labels: LabelValues) -> LabelValues:
    pairs = zip(metadata.labelnames, labels, strict=True)
    return tuple(value for label, value in pairs if label in metadata.labelvalues)


def _combined(metadata: MetricMetadata, old: Value | None, value: Value) -> Value:
    if old is None:
        return value
    if metadata.kind != "gauge" or metadata.across_ranks == "sum":
        return plus(old, value)
    if isinstance(old, Histogram) or isinstance(value, Histogram):
        return value
    return min(old, value) if metadata.across_ranks == "min" else max(old, value)


def _difference(value: Value, before: Value | None) -> int | float | tuple[int, float] | None:
    if isinstance(value, Histogram):
        count, total = (before.count, before.sum) if isinstance(before, Histogram) else (0, 0.0)
        return (value.count - count, value.sum - total) if value.count > count else None
    return value - before if isinstance(before, int | float) else value


def _label(key: _Key, metadata: MetricMetadata) -> str:
    kept = [label for label in metadata.labelnames if label in metadata.labelvalues]
    labels = ",".join(f"{label}={value}" for label, value in zip(kept, key.labels, strict=True))
    return f"{metadata.log or key.name}{{{labels}}}" if labels else metadata.log or key.name


def _level(label: str, metadata: MetricMetadata, value: Value) -> str:
    if isinstance(value, Histogram):
        return f"{label}={value.count}"
    if label.endswith("%"):
        return f"{label}={round(100 * value, 1)}"
    if metadata.unit != "bytes":
        return f"{label}={_number(value)}"
    return f"{label} bytes={_number(value)}" if 0 < value < MIB else f"{label} GiB={value / GIB:.4g}"


def _growth(
    label: str, metadata: MetricMetadata, moved: float | tuple[int, float] | None, *, seconds: float
) -> Iterator[str]:
    if isinstance(moved, tuple):
        count, total = moved
        yield f"{label} count={count}"
        yield f"{label} mean{f' {metadata.unit}' if metadata.unit else ''}={total / count:.4g}"
        return
    amount = moved or 0
    yield f"{label}={_number(amount)}"
    if metadata.unit == "bytes":
        stem = label.removesuffix(" bytes")
        yield f"{stem} GiB={amount / GIB:.4g}"
        if seconds >= MIN_RATE_SECONDS:
            yield f"{stem} GiB/s={amount / GIB / seconds:.4g}"


def _ratio(label: str, parts: tuple[str, ...], grown: Mapping[_Key, object]) -> str:
    amounts = [amount for part in parts if isinstance(amount := grown.get(_Key(part, ())), int | float)]
    first = grown.get(_Key(parts[0], ()))
    share = first / sum(amounts) if isinstance(first, int | float) else 0.0
    return f"{label}={share:.3f}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"
