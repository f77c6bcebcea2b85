"""Metrics of the host tier: where pages are, what moves between the levels, who is let in."""

from hisparse.telemetry.metadata import CounterMetadata, GaugeMetadata, MetricMetadata

PAGE_STATES = ("dirty", "spilling", "clean", "loose", "host", "restoring")
DEVICE_USES = ("blank", "loose", "resident", "hot", "leaving")
REQUEST_PHASES = ("running", "waiting", "ending")
SPILL_REASONS = ("eager", "pressure", "finish", "preempt")
PAGE_TRANSFERS = ("spill", "restore")
REFUSALS = ("host", "device")
IGNORED = ("duplicate", "unknown")


def _counter(text: str, unit: str, **labels: tuple[str, ...]) -> CounterMetadata:
    return CounterMetadata(text, unit=unit, labelnames=tuple(labels), labelvalues=labels, log=None)


def _gauge(text: str, unit: str, **labels: tuple[str, ...]) -> GaugeMetadata:
    return GaugeMetadata(text, unit=unit, labelnames=tuple(labels), labelvalues=labels, across_ranks="sum", log=None)


def _levels() -> dict[str, MetricMetadata]:
    return {
        "hisparse_host_state_pages": _gauge(
            "Pages of requests by state: dirty and spilling ones are not wholly on the host yet.",
            "pages",
            state=PAGE_STATES,
        ),
        "hisparse_host_device_pages": _gauge(
            "Pages of the device by use, which add up to all: blank and loose ones can be taken; resident and hot "
            "ones are pinned by requests that run, leaving ones until their copies have landed.",
            "pages",
            use=DEVICE_USES,
        ),
        "hisparse_host_cached_bytes": _gauge(
            "Bytes of host pool pages that only the prefix index has: occupied, and not pinned.", "bytes"
        ),
        "hisparse_host_admitted_requests": _gauge(
            "Requests that run, wait after a preemption, or ended and have copies to land.",
            "requests",
            phase=REQUEST_PHASES,
        ),
    }


def _moves() -> dict[str, MetricMetadata]:
    return {
        "hisparse_host_spilled_pages_total": _counter(
            "Pages that came to be wholly on the host, by why they were copied.", "pages", reason=SPILL_REASONS
        ),
        "hisparse_host_spilled_bytes_total": _counter(
            "Bytes copied from device pages to the host, by why.", "bytes", reason=SPILL_REASONS
        ),
        "hisparse_host_restored_pages_total": _counter("Pages copied back from the host to device pages.", "pages"),
        "hisparse_host_restored_bytes_total": _counter("Bytes copied back from the host to device pages.", "bytes"),
        "hisparse_host_reused_pages_total": _counter(
            "Device pages taken from requests that could still read them.", "pages"
        ),
        "hisparse_host_adopted_pages_total": _counter(
            "Pages of a prefix that were still on the device when their request came.", "pages"
        ),
        "hisparse_host_failed_transfers_total": _counter(
            "Page transfers that failed, by kind.", "transfers", kind=PAGE_TRANSFERS
        ),
        "hisparse_host_acknowledgement_errors_total": _counter(
            "Acknowledgements of transfers that had landed already, or never were.", "errors", reason=IGNORED
        ),
    }


def _requests() -> dict[str, MetricMetadata]:
    return {
        "hisparse_host_refused_requests_total": _counter(
            "Requests that were not admitted when they first asked, by what was full.", "requests", reason=REFUSALS
        ),
        "hisparse_host_preempted_requests_total": _counter("Running requests taken off the device.", "requests"),
        "hisparse_host_activated_requests_total": _counter(
            "Requests that were given a hot buffer because device pages were short.", "requests"
        ),
    }


def host_tier_metrics() -> dict[str, MetricMetadata]:
    """Return the metrics by name."""
    return {**_levels(), **_moves(), **_requests()}
