"""What the dashboard shows: sections of panels, each a question with the expressions that answer it."""

from dataclasses import dataclass
from typing import Literal

from hisparse.dashboards.queries import IDENTITY, Scope, declared, quantile, share, total

# Grafana's own interval for rates: long enough for the scrape interval, and for the width of the screen.
RATE_WINDOW = "$__rate_interval"
MATCHERS = 'job=~"$job", instance=~"$instance", model_name=~"$model_name", engine=~"$engine"'

SELECTIONS = "hisparse_hot_selections_total"
COPIED = "hisparse_hot_copied_bytes_total"
GATHER = "hisparse_hot_gather_seconds"
REQUEST_MISSES = "hisparse_hot_request_misses_rows"
LINK = "hisparse_host_link_bytes_per_second"
TRANSFERS = "hisparse_offload_transfers_total"
FAILURES = "hisparse_offload_failed_transfers_total"
TRANSFER_TIME = "hisparse_offload_transfer_seconds"
TRANSFER_SIZE = "hisparse_offload_transfer_bytes"
BUSY = "hisparse_offload_busy_seconds_total"
ERRORS = "hisparse_telemetry_errors_total"
SAMPLES = "hisparse_telemetry_samples_total"
LAST_SAMPLE = "hisparse_telemetry_last_sample_timestamp_seconds"
SAMPLE_AGE = "hisparse_telemetry_sample_age_seconds"
CONFIG = "hisparse_hot_config_info"

Kind = Literal["stat", "timeseries", "heatmap", "table"]


@dataclass(frozen=True)
class Query:
    """One expression of a panel and the name of its series; ``{{label}}`` stands for a label's value."""

    expression: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: The question.
        kind: How it is drawn.
        unit: Grafana's name of the unit.
        metrics: Names of the catalogue that the panel reads; their documentation is its description.
        queries: What is drawn.
        text: What else a reader has to know.
        width: Columns of 24.
        is_stacked: Whether the series add up.
    """

    title: str
    kind: Kind
    unit: str
    metrics: tuple[str, ...]
    queries: tuple[Query, ...]
    text: str = ""
    width: int = 8
    is_stacked: bool = False

    @property
    def description(self) -> str:
        """Text for the panel's tooltip: the metrics by name, with what they mean."""
        parts = [f"`{name}`: {declared(name).documentation}" for name in self.metrics]
        return "\n\n".join(filter(None, [self.text, *parts]))


@dataclass(frozen=True)
class Section:
    """A row of the dashboard with its panels from left to right."""

    title: str
    panels: tuple[Panel, ...]


def sections(scope: Scope | None = None) -> tuple[Section, ...]:
    """Return the whole dashboard; `scope` reads the dashboard's variables where None."""
    chosen = scope or Scope(MATCHERS, RATE_WINDOW)
    return (
        Section("Hot buffer", _hot_buffer(chosen)),
        Section("Host pool and link", _host(chosen)),
        Section("Offload", _offload(chosen)),
        Section("Telemetry", _telemetry(chosen)),
    )


def hit_ratio(scope: Scope, *by: str) -> str:
    """Return the share of the selected rows outside of device pages that needed no copy."""
    hits = total(scope.rate(SELECTIONS, outcome="hit"), *by)
    return share(hits, total(scope.rate(SELECTIONS, outcome="hit|miss"), *by))


def link_use(scope: Scope, *by: str) -> str:
    """Return the share of the measured link speed that copies to the device take.

    Copies of an engine whose link was not measured count on neither side.
    """
    return share(total(measured_copies(scope), *by), total(scope.level(LINK), *by))


def measured_copies(scope: Scope) -> str:
    """Return the copies to the device, in bytes a second, of each engine whose link was measured."""
    copied = total(scope.rate(COPIED, direction="host_to_device"), *IDENTITY)
    return f"{copied} and {total(scope.level(LINK), *IDENTITY)} > 0"


def _hot_buffer(scope: Scope) -> tuple[Panel, ...]:
    buckets = total(scope.rate(REQUEST_MISSES), "le")
    quantiles = tuple(Query(quantile(level, buckets), f"p{level * 100:g}") for level in (0.5, 0.9, 0.99))
    return (
        Panel(
            "Hit ratio",
            "stat",
            "percentunit",
            (SELECTIONS,),
            (Query(hit_ratio(scope), "hit ratio"),),
            "Hits over hits and misses, all engines and groups together.",
            width=4,
        ),
        Panel(
            "Hit ratio by index group (layers of one group share its selection)",
            "timeseries",
            "percentunit",
            (SELECTIONS,),
            (Query(hit_ratio(scope, "group"), "group {{group}}"),),
            "A group is named by its first layer; its other layers read the same rows, so they have the same ratio.",
            width=10,
        ),
        Panel(
            "Selections by outcome",
            "timeseries",
            "cps",
            (SELECTIONS,),
            (Query(total(scope.rate(SELECTIONS), "outcome"), "{{outcome}}"),),
            "The four outcomes add up to all selections.",
            width=10,
            is_stacked=True,
        ),
        Panel(
            "Misses of a request in one step",
            "timeseries",
            "none",
            (REQUEST_MISSES,),
            quantiles,
            "Quantiles over requests, steps and index groups, in rows.",
            width=12,
        ),
        _heat("Gather time", GATHER, total(scope.increase(GATHER), "le"), width=12),
    )


def _host(scope: Scope) -> tuple[Panel, ...]:
    copied = scope.rate(COPIED, direction="host_to_device")
    pool = {what: f"hisparse_host_{what}_bytes" for what in ("used", "reserved", "capacity")}
    pending = "vllm:hisparse_pending_page_transfers"
    return (
        Panel(
            "Link use",
            "stat",
            "percentunit",
            (COPIED, LINK),
            (Query(link_use(scope), "link use"),),
            "Copied bytes a second over the measured speed of the link, of the engines where it was measured; "
            "no value where none was.",
            width=4,
        ),
        Panel(
            "Bytes to the device per second of time, and the limit",
            "timeseries",
            "Bps",
            (COPIED, LINK),
            (
                Query(total(copied), "all engines"),
                Query(total(measured_copies(scope)), "engines with a measured link"),
                Query(f"{total(scope.level(LINK))} > 0", "limit of those"),
            ),
            "Idle time counts: this is the load of the link. The speed of the copies alone is beside it.",
            width=10,
        ),
        Panel(
            "Speed of copies to the device, idle time left out",
            "timeseries",
            "Bps",
            (COPIED, GATHER),
            (Query(share(total(copied), total(scope.rate(GATHER, part="_sum"))), "one copy"),),
            "Bytes over the time that gathers took: what one layer's copy gets, whatever the load.",
            width=10,
        ),
        Panel("Copies by layer", "timeseries", "Bps", (COPIED,), (Query(total(copied, "layer"), "layer {{layer}}"),),
              is_stacked=True),
        Panel("Host pool that is open now", "timeseries", "bytes", tuple(pool.values()),
              tuple(Query(total(scope.level(name)), what) for what, name in pool.items()),
              "All three are 0 while no pool is open, for example between two batches of a cache."),
        Panel("Page transfers under way", "timeseries", "none", (pending,),
              (Query(total(scope.level(pending), "instance", "engine"), "{{instance}} engine {{engine}}"),)),
    )  # fmt: skip


def _offload(scope: Scope) -> tuple[Panel, ...]:
    moved = scope.rate(TRANSFER_SIZE, part="_sum")
    return (
        *(
            _heat(
                f"Time of a {way}",
                TRANSFER_TIME,
                total(scope.increase(TRANSFER_TIME, direction=way), "le"),
                width=12,
            )
            for way in ("load", "store")
        ),
        Panel("Transfers by outcome", "timeseries", "ops", (TRANSFERS,),
              (Query(total(scope.rate(TRANSFERS), "direction", "outcome"), "{{direction}} {{outcome}}"),)),
        Panel("Failures by reason", "timeseries", "ops", (FAILURES,),
              (Query(total(scope.rate(FAILURES), "direction", "reason"), "{{direction}}: {{reason}}"),),
              is_stacked=True),
        Panel("Offloaded bytes per second of time", "timeseries", "Bps", (TRANSFER_SIZE,),
              (Query(total(moved, "direction"), "{{direction}}"),),
              "Idle time counts: this is the load of the tiers."),
        Panel("Speed of offload, idle time left out", "timeseries", "Bps", (TRANSFER_SIZE, BUSY),
              (Query(share(total(moved, "direction"), total(scope.rate(BUSY), "direction")), "{{direction}}"),),
              "Bytes over the seconds in which at least one transfer was under way: the speed of one worker."),
    )  # fmt: skip


def _telemetry(scope: Scope) -> tuple[Panel, ...]:
    engine, legend = ("instance", "engine"), "{{instance}} engine {{engine}}"
    arrived = f"max by ({', '.join(engine)}) ({scope.level(LAST_SAMPLE)} > 0)"
    waiting = f"max by ({', '.join(engine)}) ({scope.level(SAMPLE_AGE)})"
    return (
        Panel("Skipped items by reason", "timeseries", "cps", (ERRORS,),
              (Query(total(scope.rate(ERRORS), "reason"), "{{reason}}"),),
              "Anything but zero: some counter is too low; the log names the first item of each reason."),
        Panel("Age of the statistics", "timeseries", "s", (LAST_SAMPLE, SAMPLE_AGE),
              (Query(f"time() - {arrived}", f"arrived, {legend}"), Query(waiting, f"waiting, {legend}")),
              "An engine without work sends nothing, so only a waiting sample is a fault by itself."),
        Panel("Samples of device counters", "timeseries", "cps", (SAMPLES,),
              (Query(total(scope.rate(SAMPLES), "outcome"), "{{outcome}}"),)),
        Panel("Configuration", "table", "none", (CONFIG,), (Query(scope.level(CONFIG)),), width=24),
    )  # fmt: skip


def _heat(title: str, metric: str, expression: str, *, width: int) -> Panel:
    return Panel(title, "heatmap", "s", (metric,), (Query(expression, "{{le}}"),), width=width)
