"""Milliseconds to write the text of one scrape of everything this version exports.

8 engines, 61 layers, 24 index groups, all options on; every counter and histogram has moved since the last scrape. The
peer is prometheus_client with native metrics of the same names, labels and values.
"""

import gzip
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client import Histogram as NativeHistogram

import harness
from hisparse import __version__
from hisparse.telemetry import (
    CATALOGUE,
    HistogramMetadata,
    MetricMetadata,
    OffloadingConnectorStats,
    TelemetryPipeline,
    start_metrics_server,
)
from hisparse.telemetry.deprecated import help_text
from hisparse.telemetry.exposition import COMMON_LABELS
from hisparse.telemetry.naming import family_name
from hisparse.telemetry.prometheus import registry_text

MODEL = "deepseek-v3.2"
ENGINES = 8
OPEN_LABELS = {"layer": 61, "group": 24}
BYTES = 1_234_567
SAMPLES = (0.004, 3.0)

Labels = tuple[str, ...]


def exported() -> dict[str, MetricMetadata]:
    """Return what this version exports with all options on."""
    gates = frozenset(metadata.gate for metadata in CATALOGUE.values())
    return dict(CATALOGUE.exported(__version__, gates=gates))


def series(metadata: MetricMetadata) -> Iterator[Labels]:
    """Yield the label values of every series: known values, layers and groups, one value of any other label."""
    values = [
        metadata.labelvalues.get(label, tuple(map(str, range(OPEN_LABELS.get(label, 1)))))
        for label in metadata.labelnames
    ]
    yield from product(*values)


def amount(metadata: MetricMetadata) -> int:
    """Return what a counter grows by: bytes move in megabytes, everything else in thousands."""
    return BYTES if metadata.unit == "bytes" else 1000


class Own:
    """This package's collector, fed through a pipeline."""

    def __init__(self) -> None:
        """Prepare what an engine publishes."""
        catalogue = CATALOGUE.exported(__version__, gates=frozenset(m.gate for m in CATALOGUE.values()))
        self.registry = CollectorRegistry()
        self.pipeline = TelemetryPipeline(
            model_name=MODEL,
            engines=range(ENGINES),
            registry=self.registry,
            catalogue=catalogue,
            wall_clock=lambda: 1.0,
        )
        self.stats = OffloadingConnectorStats(catalogue=catalogue)
        for name, metadata in catalogue.recorded().items():
            for labels in series(metadata):
                if metadata.unit == "info":
                    self.stats.set_info(name, dict(zip(metadata.labelnames, labels, strict=True)))
                elif metadata.kind == "counter":
                    self.stats.increase_counter(name, amount(metadata), labels)
                elif metadata.kind == "gauge":
                    self.stats.set_gauge(name, 1.0, labels)
                else:
                    self.stats.observe_histogram(name, SAMPLES, labels)

    def move(self) -> None:
        """Publish for every engine."""
        for engine in range(ENGINES):
            self.pipeline.publish({"all": self.stats}, engine=engine)


class Native:
    """The client's own metrics, children made beforehand; deprecated names are written a second time."""

    def __init__(self) -> None:
        """Make every child."""
        self.registry = CollectorRegistry()
        self.moves: list[Callable[[], object]] = []
        for name, metadata in exported().items():
            self._add(name, metadata, (*COMMON_LABELS, *metadata.labelnames))

    def _add(self, name: str, metadata: MetricMetadata, labelnames: Labels) -> None:
        common: dict[str, Any] = {"labelnames": labelnames, "registry": self.registry}
        text, growth = help_text(metadata), amount(metadata)
        if isinstance(metadata, HistogramMetadata):
            parent: Any = NativeHistogram(name, text, buckets=metadata.buckets, **common)
        else:
            parent = (Counter if metadata.kind == "counter" else Gauge)(family_name(name), text, **common)
        for engine, labels in product(range(ENGINES), list(series(metadata))):
            child = parent.labels(MODEL, str(engine), *labels)
            if isinstance(metadata, HistogramMetadata):
                self.moves.extend(lambda child=child, value=value: child.observe(value) for value in SAMPLES)
            elif metadata.kind == "counter":
                self.moves.append(lambda child=child, by=growth: child.inc(by))
            else:
                self.moves.append(lambda child=child: child.set(1.0))

    def move(self) -> None:
        """Count the same as `Own.move`."""
        for move in self.moves:
            move()


def check_same(own: Own, native: Native) -> int:
    """Raise unless both write the same samples; return their number."""
    texts = [registry_text(own.registry), generate_latest(own.registry), generate_latest(native.registry)]
    if texts[0] != texts[1]:
        raise AssertionError("the package's text differs from what the client writes for its collector")
    first, second = (sorted(line for line in text.splitlines() if not line.startswith(b"#")) for text in texts[1:])
    if first != second:
        raise AssertionError(f"the peers show other samples: {set(first) ^ set(second)}")
    return len(first)


def get_milliseconds(own: Own, headers: dict[str, str], calls: int) -> float:
    """Return the median processor time of a GET on loopback, client and server together."""
    times = []
    with start_metrics_server(own.registry) as server:
        for _ in range(calls):
            own.move()
            start = time.process_time()
            request = urllib.request.Request(server.url, headers=headers)  # noqa: S310  a loopback address
            with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310  a loopback address
                response.read()
            times.append(time.process_time() - start)
    return statistics.median(times) * 1e3


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    asked = harness.options(__doc__ or "", argv)
    prometheus_client.disable_created_metrics()  # the collector has no such series, so the peer shall not pay for them
    own, native = Own(), Native()
    own.move()
    native.move()
    samples = check_same(own, native)

    def moved(fixture: Own | Native, write: Callable[[Any], bytes]) -> Callable[[int], harness.Call]:
        def prepare(_: int) -> harness.Call:
            fixture.move()
            return lambda: write(fixture.registry)

        return prepare

    contenders = {
        "hisparse": moved(own, registry_text),
        "hisparse, nothing moved": lambda _: lambda: registry_text(own.registry),
        "hisparse, by generate_latest": moved(own, generate_latest),
        "native metrics, by generate_latest": moved(native, generate_latest),
    }
    rounds, calls = (2, 4) if asked.quick else (5, 12)
    seconds = harness.median_seconds(contenders, rounds=rounds, calls=calls, warm_up=1)
    milliseconds = {name: value * 1e3 for name, value in seconds.items()}
    text = registry_text(own.registry)
    small = len(gzip.compress(text, compresslevel=1))
    gets = {
        "GET, plain": (get_milliseconds(own, {}, calls), len(text)),
        "GET, gzip": (get_milliseconds(own, {"Accept-Encoding": "gzip"}, calls), small),
    }
    ours = milliseconds["hisparse"]
    goals = [
        harness.goal("ms to write a scrape", ours, 5, at_most=True),
        harness.goal("times faster than native metrics", milliseconds["native metrics, by generate_latest"] / ours, 5),
    ]
    shape = f"{ENGINES} engines, {samples:,} samples, {len(text) / 1000:,.0f} kB"
    table = [[name, value, value / ours] for name, value in milliseconds.items()]
    return harness.emit(
        [
            harness.Report(f"text of one scrape, {shape}", ["", "ms", "x hisparse"], table, goals),
            harness.Report(
                "GET on loopback, client and server together",
                ["", "ms", "kB sent"],
                [[name, value, size / 1000] for name, (value, size) in gets.items()],
            ),
        ],
        as_json=asked.json,
    )


if __name__ == "__main__":
    sys.exit(main())
