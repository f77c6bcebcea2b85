"""Totals of several processes of one server, through the files that prometheus_client keeps for them.

With ``PROMETHEUS_MULTIPROC_DIR`` set, a scrape reads the files of all processes and no collector of the process
that answers. So each process writes the growth of its totals into its own files: counters and histograms are
summed by the reader, gauges combine by their declared mode, an info metric is a gauge of value 1.
"""

import logging
import math
import operator
import os
import re
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from prometheus_client import values
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import CollectorRegistry

from hisparse.telemetry.declarations import Catalogue
from hisparse.telemetry.deprecated import help_text
from hisparse.telemetry.exposition import COMMON_LABELS, Common, bucket_texts
from hisparse.telemetry.histogram import Histogram, Value
from hisparse.telemetry.levels import SharedLevel
from hisparse.telemetry.metadata import GaugeMetadata, MetricMetadata
from hisparse.telemetry.naming import family_name
from hisparse.telemetry.values import MAX_SERIES, LabelValues

logger = logging.getLogger("hisparse")

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_UNREADABLE = "hisparse_telemetry_unreadable_files"
SERVER = Catalogue(
    {_UNREADABLE: GaugeMetadata("Files of other processes that a scrape had to leave out.", unit="files")}
)
"""What the endpoint says of itself; a series without labels."""

Totals = Mapping[str, Mapping[LabelValues, Value]]
_Metric = tuple[Common, str]


@dataclass(slots=True)
class _Written:
    """A series in the files of this process: what was written of it, and where."""

    value: Value
    handles: Sequence[Any] = ()
    level: SharedLevel | None = None


class _Name(NamedTuple):
    """A name under which a recorded metric is exported: its own, or an old one with the labels that come first."""

    name: str
    metadata: MetricMetadata
    prefix: LabelValues


@cache
def _handle(make: Any, key: tuple[Any, ...], mode: str = "") -> Any:
    # One handle for a value in this process, whoever asks: each caches what it wrote, so two would overwrite
    # each other's increments.
    return make(*key, multiprocess_mode=mode)


class ProcessValues:
    """Writes the totals of one collector into the files of this process.

    What has been written cannot be removed: when an engine ends, its counters and histograms stay, as they do
    when a process ends, and its gauges fall to what others say of it, or to 0.
    """

    def __init__(self) -> None:
        """Start with nothing written."""
        self._written: dict[_Metric, dict[LabelValues, _Written]] = {}
        self._names: dict[str, list[_Name]] = {}

    def declare(self, catalogue: Catalogue) -> None:
        """Learn under which names each recorded metric is exported."""
        self._names = {name: [_Name(name, metadata, ())] for name, metadata in catalogue.recorded().items()}
        for name, metadata in catalogue.items():
            if metadata.deprecation is not None and metadata.deprecation.derived:
                for prefix, source in metadata.deprecation.sources.items():
                    self._names[source].append(_Name(name, metadata, prefix))

    @classmethod
    def of_environment(cls) -> Self | None:
        """Return a writer where the environment asks for one; log what is wrong where that is impossible."""
        folder = os.environ.get(VARIABLE)
        if not folder:
            return None
        problem = "" if getattr(values.ValueClass, "_multiprocess", False) else "prometheus_client was imported before"
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            problem = f"files cannot be made there: {error.strerror or error}"
        if problem:
            logger.error(
                "%s=%r: %s; the metrics of this process are in its own registry only. Set it to an existing "
                "directory that can be written, before Python starts",
                *(VARIABLE, folder, problem),
            )
            return None
        return cls()

    def write(self, engine: Common, totals: Totals, *, touched: Collection[str]) -> None:
        """Add the growth of `totals` since the last call; set the gauges named in `touched`.

        Series that are new are made with value 0.
        """
        now = time.time()
        for recorded, series in totals.items():
            for name, metadata, prefix in self._names.get(recorded, ()):
                known = self._written.setdefault((engine, name), {})
                for labels, value in series.items():
                    written = known.get(prefix + labels)
                    if written is None:
                        written = known[prefix + labels] = _begin(
                            (engine, name), metadata, labels=prefix + labels, value=value
                        )
                    if written.level is None:
                        _grow(written, value)
                    elif recorded in touched:
                        written.level.set(self, value, now)
                if metadata.unit == "info" and recorded in touched:
                    self._drop(known, [labels for labels in known if labels not in series])

    def end(self, engine: Common) -> None:
        """Take back the gauges of an engine and forget what was written for it."""
        for metric in [metric for metric in self._written if metric[0] == engine]:
            known = self._written.pop(metric)
            self._drop(known, list(known))

    def _drop(self, known: dict[LabelValues, _Written], gone: list[LabelValues]) -> None:
        for labels in gone:
            written = known.pop(labels)
            if written.level is not None:
                written.level.drop(self)


def _begin(metric: _Metric, metadata: MetricMetadata, *, labels: LabelValues, value: Value) -> _Written:
    engine, name = metric
    family, labelnames = family_name(name), (*COMMON_LABELS, *metadata.labelnames)
    mode = metadata.multiprocess_mode if isinstance(metadata, GaugeMetadata) else ""

    def handle(suffix: str, *le: str) -> Any:
        names = (*labelnames, "le") if le else labelnames
        labelvalues = (*engine, *labels, *le)
        parts = (metadata.kind, family, f"{family}{suffix}", names, labelvalues, help_text(metadata))
        return _handle(values.ValueClass, parts, mode)

    if isinstance(value, Histogram):
        buckets = [handle("_bucket", le) for le in bucket_texts(value)]
        return _Written(Histogram.empty(value.bounds), [handle("_sum"), *buckets])
    if not mode:
        return _Written(0, [handle("_total")])
    return _Written(0, level=SharedLevel.of(handle("")))


def _grow(written: _Written, value: Value) -> None:
    before = written.value
    if isinstance(value, Histogram) and isinstance(before, Histogram):
        growth = [value.sum - before.sum, *map(operator.sub, value.counts, before.counts)]
    elif isinstance(value, Histogram) or isinstance(before, Histogram):
        return
    else:
        growth = [value - before]
    for handle, amount in zip(written.handles, growth, strict=True):
        if 0 < amount < math.inf:  # False for NaN too
            handle.inc(amount)
    written.value = value


class ProcessesCollector:
    """Reads the files of all processes at each scrape; a file that cannot be read is left out and counted."""

    def __init__(self, folder: Path) -> None:
        """Read from `folder`, which may be empty still."""
        self._folder = folder
        self._reported: set[str] = set()

    def describe(self) -> list[Metric]:
        """Claim no names: they are known only when the files are read."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield what the processes wrote, summed or combined, and how many files could not be read."""
        files = sorted(map(str, self._folder.glob("*.db")))
        merged = self._read(files)
        readable = files
        if merged is None:
            readable = [file for file in files if self._read([file]) is not None]
            merged = self._read(readable)
        if merged is None:  # each is good alone, and some contradict each other
            readable, files_in_turn = [], readable
            for file in files_in_turn:
                more = self._read([*readable, file])
                readable, merged = (readable, merged) if more is None else ([*readable, file], more)
        yield from merged or ()
        family = Metric(_UNREADABLE, SERVER[_UNREADABLE].documentation, "gauge")
        family.add_sample(_UNREADABLE, {}, len(files) - len(readable))
        yield family

    def _read(self, files: list[str]) -> list[Metric] | None:
        """Return the families of `files` together, or None, with a warning for the last of them."""
        try:
            return _merged(files)
        except Exception as error:  # noqa: BLE001  a file may hold anything, and the others are good
            if len(files) == 1 and files[0] not in self._reported:
                self._reported.add(files[0])
                logger.warning("metrics of a process are left out, %s: %s: %s", files[0], type(error).__name__, error)
            return None


def _merged(files: list[str]) -> list[Metric]:
    """Return the families of all files.

    Raises:
        Exception: A file cannot be read, or holds what no endpoint could write or no Prometheus read.
    """
    families = list(MultiProcessCollector.merge(files))  # type: ignore[no-untyped-call]  # the client leaves it untyped
    for family in families:
        for sample in family.samples:
            for name in (sample.name, *sample.labels):
                if not _is_name(name):
                    raise ValueError(f"{name!r} is no name of a series or label")
    generate_latest(_Families(families))
    return families


@lru_cache(maxsize=MAX_SERIES)
def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


class _Families:
    """Families as something that the client can write."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def shared_registry() -> CollectorRegistry | None:
    """Return a registry of what all processes wrote, or None where the environment names no directory."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    if not Path(folder).is_dir():
        logger.error("%s=%r is no directory; serving the metrics of this process only", VARIABLE, folder)
        return None
    registry = CollectorRegistry()
    registry.register(ProcessesCollector(Path(folder)))
    return registry
