"""Totals of several processes of one server, through the files that prometheus_client keeps for them.

With ``PROMETHEUS_MULTIPROC_DIR`` set, a scrape reads the files of all processes and no collector of the process
that answers. So each process writes the growth of its totals into its own files: counters and histograms are
summed by the reader, gauges combine by their declared mode, an info metric is a gauge of value 1.
"""

import logging
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Self

from prometheus_client import values
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import CollectorRegistry

from hisparse.telemetry.declarations import Catalogue
from hisparse.telemetry.deprecated import help_text, series_of
from hisparse.telemetry.exposition import COMMON_LABELS, Common, bucket_texts
from hisparse.telemetry.histogram import Histogram, Value
from hisparse.telemetry.metadata import GaugeMetadata, MetricMetadata
from hisparse.telemetry.naming import family_name
from hisparse.telemetry.values import LabelValues

logger = logging.getLogger("hisparse")

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
# Older than any reading of a process, and not 0, which a reader of the most recent value leaves out.
_BEFORE_ALL = 1e-9
_UNREADABLE = "hisparse_telemetry_unreadable_files"
SERVER = Catalogue(
    {_UNREADABLE: GaugeMetadata("Files of other processes that a scrape had to leave out.", unit="files")}
)
"""What the endpoint says of itself; a series without labels."""

_Key = tuple[Common, str, LabelValues]


@cache
def _handle(make: Any, key: tuple[Any, ...], mode: str = "") -> Any:
    # One handle for a value in this process, whoever asks: each caches what it wrote, so two would overwrite
    # each other's increments.
    return make(*key, multiprocess_mode=mode)


class ProcessValues:
    """Writes the totals of one collector into the files of this process.

    What has been written cannot be removed: when an engine ends, its counters and histograms stay, as they do
    when a process ends, and its gauges fall to 0.
    """

    def __init__(self) -> None:
        """Start with nothing written."""
        self._written: dict[_Key, Value] = {}

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

    def write(
        self, engine: Common, catalogue: Catalogue, totals: Mapping[str, Mapping[LabelValues, Value]], *, touched: Any
    ) -> None:
        """Add the growth of `totals` since the last call; set the gauges named in `touched`.

        Series that are new are made with value 0.
        """
        for name, metadata in catalogue.items():
            series = series_of(name, metadata, totals)
            for labels, value in series.items():
                key = (engine, name, labels)
                if isinstance(metadata, GaugeMetadata):
                    self._set(key, metadata, value, fresh=name in touched)
                elif isinstance(value, Histogram):
                    self._grow_histogram(key, metadata, value)
                else:
                    self._grow(key, metadata, value)
            if metadata.unit == "info" and name in touched:
                self._zero(engine, name, metadata, kept=series)

    def end(self, engine: Common, catalogue: Catalogue) -> None:
        """Set the gauges of an engine to 0 and forget what was written for it."""
        for name, metadata in catalogue.items():
            if isinstance(metadata, GaugeMetadata):
                self._zero(engine, name, metadata, kept={})
        self._written = {key: value for key, value in self._written.items() if key[0] != engine}

    def _zero(self, engine: Common, name: str, metadata: MetricMetadata, *, kept: Mapping[LabelValues, Value]) -> None:
        for key in [key for key in self._written if key[:2] == (engine, name) and key[2] not in kept]:
            self._set(key, metadata, 0, fresh=True)

    def _set(self, key: _Key, metadata: MetricMetadata, value: Value, *, fresh: bool) -> None:
        handle = _value(key, metadata)
        if fresh:
            handle.set(value, time.time())
        elif key not in self._written and not handle.get():
            handle.set(0, _BEFORE_ALL)
        self._written[key] = value

    def _grow(self, key: _Key, metadata: MetricMetadata, value: Any) -> None:
        handle = _value(key, metadata, "_total")
        _add(handle, value - self._written.get(key, 0))
        self._written[key] = value

    def _grow_histogram(self, key: _Key, metadata: MetricMetadata, value: Histogram) -> None:
        before = self._written.get(key)
        old = before if isinstance(before, Histogram) else Histogram.empty(value.bounds)
        for le, count, was in zip(bucket_texts(value), value.counts, old.counts, strict=True):
            _add(_value(key, metadata, "_bucket", le), count - was)
        _add(_value(key, metadata, "_sum"), value.sum - old.sum)
        self._written[key] = value


def _value(key: _Key, metadata: MetricMetadata, suffix: str = "", le: str | None = None) -> Any:
    engine, name, labels = key
    family = family_name(name)
    bucket = () if le is None else ("le", le)
    names = (*COMMON_LABELS, *metadata.labelnames, *bucket[:1])
    parts = (metadata.kind, family, f"{family}{suffix}", names, (*engine, *labels, *bucket[1:]), help_text(metadata))
    return _handle(values.ValueClass, parts, metadata.multiprocess_mode if isinstance(metadata, GaugeMetadata) else "")


def _add(handle: Any, growth: float) -> None:
    # False for NaN too.
    if 0 < growth < math.inf:
        handle.inc(growth)


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
        try:
            merged = _merged(files)
        except Exception:  # noqa: BLE001  a file may hold anything; each is tried alone below
            readable = [file for file in files if self._is_readable(file)]
            merged, unreadable = _merged(readable), len(files) - len(readable)
        else:
            unreadable = 0
        yield from merged
        family = Metric(_UNREADABLE, SERVER[_UNREADABLE].documentation, "gauge")
        family.add_sample(_UNREADABLE, {}, unreadable)
        yield family

    def _is_readable(self, file: str) -> bool:
        try:
            _merged([file])
        except Exception as error:  # noqa: BLE001  a file may hold anything, and the others are good
            if file not in self._reported:
                self._reported.add(file)
                logger.warning("metrics of a process are left out, %s: %s: %s", file, type(error).__name__, error)
            return False
        return True


def _merged(files: list[str]) -> list[Metric]:
    return list(MultiProcessCollector.merge(files))  # type: ignore[no-untyped-call]  # the client leaves it untyped


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
