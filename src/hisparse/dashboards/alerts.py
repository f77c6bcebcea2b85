"""Alert rules for Prometheus: every threshold is a setting, every alert has a paragraph in the runbook."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hisparse.dashboards.panels import (
    COPIED,
    ERRORS,
    LAST_SAMPLE,
    LINK,
    SAMPLE_AGE,
    SELECTIONS,
    TRANSFERS,
    hit_ratio,
    link_use,
)
from hisparse.dashboards.queries import IDENTITY, Scope, share, total
from hisparse.errors import SettingError

USED, RESERVED = "hisparse_host_used_bytes", "hisparse_host_reserved_bytes"
RUNBOOK = "docs/runbook.md"
TARGET = ("job", "instance")
# An endpoint that last served metrics of this package longer ago is no longer missed.
KNOWN_WINDOW = "1d"
# What Prometheus takes for a duration: units from large to small, each at most once.
_DURATION = re.compile(r"(?=\d)(\d+y)?(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?")
_PENDINGS = ("pending", "failures_pending", "stale_pending")
_RATIOS = ("hit_ratio", "link_ratio", "load_failure_ratio")
_AMOUNTS = ("misses_per_second", "failed_loads", "stale_seconds", "skipped_items")


@dataclass(frozen=True)
class AlertSettings:
    """When the alerts fire. Durations are Prometheus's, for example ``5m``.

    Attributes:
        window: Time over which rates are taken; at least four scrape intervals.
        errors_window: Time for which one skipped item of statistics is held against the sender.
        pending: How long thrashing and a saturated link must last.
        failures_pending: How long loads must fail, or an endpoint not answer.
        stale_pending: How long statistics must be stale, beyond `stale_seconds`.
        hit_ratio: The hot buffer thrashes below it.
        misses_per_second: Fewer missed rows a second of one engine are no load, whatever the ratio.
        link_ratio: Share of the measured link speed above which the link is saturated.
        load_failure_ratio: Share of loads from a tier above which failures matter.
        failed_loads: As many failed loads of one engine in `window` do not matter, whatever their share.
        stale_seconds: Age of statistics above which they are stale.
        skipped_items: Items of statistics that may be skipped in `errors_window`.
    """

    window: str = "5m"
    errors_window: str = "15m"
    pending: str = "10m"
    failures_pending: str = "5m"
    stale_pending: str = "1m"
    hit_ratio: float = 0.5
    misses_per_second: float = 1000
    link_ratio: float = 0.9
    load_failure_ratio: float = 0.01
    failed_loads: float = 5
    stale_seconds: float = 120
    skipped_items: float = 0

    def __post_init__(self) -> None:
        """Refuse what Prometheus would not take, and thresholds that nothing or everything reaches.

        Raises:
            SettingError: A duration, a ratio or an amount is none.
        """
        for name in ("window", "errors_window", *_PENDINGS):
            _check_duration(name, getattr(self, name), may_be_zero=name in _PENDINGS)
        for name in (*_RATIOS, *_AMOUNTS):
            _check_number(name, getattr(self, name), most=1 if name in _RATIOS else math.inf)


def _check_duration(name: str, value: Any, *, may_be_zero: bool) -> None:
    is_duration = isinstance(value, str) and _DURATION.fullmatch(value)
    if not is_duration or not (may_be_zero or re.search("[1-9]", value)):
        least = "" if may_be_zero else " longer than 0s"
        raise SettingError(f"{name} must be a duration of Prometheus{least}, such as '5m' or '1h30m', got {value!r}")


def _check_number(name: str, value: Any, *, most: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most or not math.isfinite(value):
        limit = "0 to 1" if most == 1 else "a finite number >= 0"
        raise SettingError(f"{name} must be {limit}, got {value!r}")


@dataclass(frozen=True)
class Alert:
    """One alert rule.

    Attributes:
        name: What Alertmanager shows; the heading of its paragraph in the runbook.
        severity: ``critical`` where requests suffer or fail, ``warning`` where numbers or headroom do.
        expression: Series for which it holds.
        pending: How long it must hold.
        summary: One sentence with the value, in Prometheus's template language.
        metrics: Names of the catalogue that it reads.
    """

    name: str
    severity: str
    expression: str
    pending: str
    summary: str
    metrics: tuple[str, ...]


def alerts(settings: AlertSettings | None = None) -> tuple[Alert, ...]:
    """Return all alerts."""
    chosen = settings or AlertSettings()
    return (
        _thrashing(chosen),
        _saturated(chosen),
        _load_failures(chosen),
        _stale(chosen),
        _telemetry_errors(chosen),
        _down(chosen),
    )


def rules_yaml(settings: AlertSettings | None = None, *, runbook: str = RUNBOOK) -> str:
    """Return the rules file, the same for the same settings.

    Args:
        settings: When the alerts fire; the defaults where None.
        runbook: Address of the page with one paragraph for each alert.

    Raises:
        SettingError: The address is empty.
    """
    if not isinstance(runbook, str) or not runbook:
        raise SettingError(f"runbook must be the address of a page, got {runbook!r}")
    lines = [
        "# Generated by tools/generate_dashboards.py from hisparse.dashboards; do not edit.",
        "groups:",
        "  - name: hisparse",
        "    rules:",
    ]
    for alert in alerts(settings):
        lines += _rule(alert, runbook)
    return "\n".join(lines) + "\n"


def _rule(alert: Alert, runbook: str) -> Iterator[str]:
    yield f"      - alert: {alert.name}"
    yield "        expr: |-"
    yield from (f"          {line}" for line in alert.expression.splitlines())
    yield f"        for: {alert.pending}"
    yield "        labels:"
    yield f"          severity: {alert.severity}"
    yield "        annotations:"
    # JSON's quoting of text is YAML's.
    yield f"          summary: {json.dumps(alert.summary)}"
    yield f"          runbook_url: {json.dumps(f'{runbook}#{alert.name.lower()}')}"


def _thrashing(settings: AlertSettings) -> Alert:
    scope = Scope("", settings.window)
    misses = total(scope.rate(SELECTIONS, outcome="miss"), *IDENTITY)
    return Alert(
        "HiSparseHotBufferThrashing",
        "warning",
        f"{hit_ratio(scope, *IDENTITY)} < {settings.hit_ratio:g}\nand\n{misses} > {settings.misses_per_second:g}",
        settings.pending,
        f"Hot buffers of {_ENGINE} hit only {_SHARE} of the selected rows: they are smaller than the working set.",
        (SELECTIONS,),
    )


def _saturated(settings: AlertSettings) -> Alert:
    return Alert(
        "HiSparseLinkSaturated",
        "warning",
        f"{link_use(Scope('', settings.window), *IDENTITY)} > {settings.link_ratio:g}",
        settings.pending,
        f"Copies to the device of {_ENGINE} take {_SHARE} of the measured speed of the link: steps wait for it.",
        (COPIED, LINK),
    )


def _load_failures(settings: AlertSettings) -> Alert:
    scope = Scope("", settings.window)
    failed = total(scope.rate(TRANSFERS, direction="load", outcome="failure"), *IDENTITY)
    loads = total(scope.rate(TRANSFERS, direction="load"), *IDENTITY)
    number = total(scope.increase(TRANSFERS, direction="load", outcome="failure"), *IDENTITY)
    return Alert(
        "HiSparseLoadFailures",
        "critical",
        f"{share(failed, loads)} > {settings.load_failure_ratio:g}\nand\n{number} > {settings.failed_loads:g}",
        settings.failures_pending,
        f"{_SHARE} of the loads of {_ENGINE} fail: what should have come from a tier is computed again.",
        (TRANSFERS,),
    )


def _stale(settings: AlertSettings) -> Alert:
    scope, limit = Scope("", settings.window), f"{settings.stale_seconds:g}"
    by = f"by ({', '.join(IDENTITY)})"
    waiting = f"max {by} ({scope.level(SAMPLE_AGE)}) > {limit}"
    silent = f"time() - max {by} ({scope.level(LAST_SAMPLE)} > 0) > {limit}"
    # An engine without requests has nothing to send; pages that one has, or was promised, say that there are some.
    busy = f"max {by} ({scope.level(USED)}) > 0\n    or\n    max {by} ({scope.level(RESERVED)}) > 0"
    return Alert(
        "HiSparseStatsStale",
        "warning",
        f"{waiting}\nor\n(\n  {silent}\n  and\n  (\n    {busy}\n  )\n)",
        settings.stale_pending,
        f"Statistics of {_ENGINE} are {{{{ $value | humanizeDuration }}}} old while it works: "
        "its other numbers stand still.",
        (SAMPLE_AGE, LAST_SAMPLE, USED, RESERVED),
    )


def _telemetry_errors(settings: AlertSettings) -> Alert:
    grown = total(Scope("", settings.errors_window).increase(ERRORS), *IDENTITY, "reason")
    return Alert(
        "HiSparseTelemetryErrors",
        "warning",
        f"{grown} > {settings.skipped_items:g}",
        "0s",
        f"{{{{ $value | humanize }}}} items of statistics of {_ENGINE} were skipped ({{{{ $labels.reason }}}}): "
        "its counters are too low by what was in them.",
        (ERRORS,),
    )


def _down(settings: AlertSettings) -> Alert:
    # Whatever the job is called: an endpoint is this package's if it has served metrics of this package.
    by = ", ".join(TARGET)
    known = f"max by ({by}) ({Scope('', KNOWN_WINDOW).last(LAST_SAMPLE)})"
    return Alert(
        "HiSparseDown",
        "critical",
        f"up == 0\nand on ({by})\n{known}",
        settings.failures_pending,
        "{{ $labels.instance }} of job {{ $labels.job }} served metrics of HiSparse and does not answer any more: "
        "the process has ended, hangs, or cannot be reached.",
        (LAST_SAMPLE,),
    )


_ENGINE = "{{ $labels.model_name }} on {{ $labels.instance }}, engine {{ $labels.engine }},"
_SHARE = "{{ $value | humanizePercentage }}"
