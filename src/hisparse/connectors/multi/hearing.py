"""What a child says, taken so that no fault of its class reaches the other children."""

from collections.abc import Callable
from typing import TypeVar

from hisparse.connectors.multi.foreign import error_sample, usable
from hisparse.telemetry import KVConnectorStats, OffloadingConnectorStats, Sample, SkipReason
from hisparse.telemetry.store import ERRORS_METRIC

T = TypeVar("T")

Info = dict[str, list[dict[str, str]]]


def samples_of(child: KVConnectorStats) -> list[Sample]:
    """Return what a child means to the sinks; one that raises midway has said what came before, and an error."""
    said: list[Sample] = []
    try:
        # One by one, since the class may raise between two.
        for sample in usable(child.samples()):
            said.append(sample)  # noqa: PERF402  what is there when it raises counts
    except Exception:  # noqa: BLE001  it is somebody else's class
        said.append(error_sample(SkipReason.INTERNAL))
    return said


def info_of(child: KVConnectorStats) -> tuple[Info, list[Sample]]:
    """Return the labels of a child's info gauges, and an error for each that is none."""
    try:
        said = child.info()
        read = OffloadingConnectorStats({"info": said}) if said else None
    except Exception:  # noqa: BLE001  it is somebody else's class
        return {}, [error_sample(SkipReason.INTERNAL)]
    if read is None:
        return {}, []
    wrong = [Sample(ERRORS_METRIC, "counter", (reason,), count) for reason, count in read.errors.items()]
    return {name: list(labels) for name, labels in read.info().items()}, wrong


def heard(call: Callable[[], T], *, other: T) -> T:
    """Return what a child says, or `other` where it raises."""
    try:
        return call()
    except Exception:  # noqa: BLE001  it is somebody else's class
        return other
