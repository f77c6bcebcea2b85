"""Connectors for the tests of several at once, among them one of somebody else's."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from hisparse.connectors import KVConnector
from hisparse.telemetry import (
    Catalogue,
    CounterMetadata,
    Histogram,
    HistogramMetadata,
    KVConnectorStats,
    OffloadingConnectorStats,
    Sample,
)

XFER_BUCKETS = (0.005, 0.05, 0.5, 5.0)


class Recording(KVConnector):
    """A connector whose statistics a test records directly."""

    def __init__(self, name: str = "Recording") -> None:
        self.name = name
        self.stats = OffloadingConnectorStats()
        self.calls: list[str] = []

    def get_kv_connector_stats(self) -> OffloadingConnectorStats | None:
        """Return what the test recorded."""
        return None if self.stats.is_empty() else OffloadingConnectorStats(self.stats.take())

    def flush(self) -> None:
        """Note the call."""
        self.calls.append("flush")

    def reset_cache(self) -> None:
        """Note the call."""
        self.calls.append("reset_cache")

    def shutdown(self) -> None:
        """Note the call."""
        self.calls.append("shutdown")


class Failing(Recording):
    """A connector that raises at every call."""

    def get_kv_connector_stats(self) -> OffloadingConnectorStats | None:
        """Raise."""
        raise ValueError("no statistics today")

    def flush(self) -> None:
        """Raise."""
        raise ValueError("no flush today")

    def reset_cache(self) -> None:
        """Raise."""
        raise ValueError("no reset today")

    def shutdown(self) -> None:
        """Raise."""
        raise ValueError("no end today")


# Somebody else's connector from here on: metrics, statistics and hooks, by the public names alone.


class NixlStats(KVConnectorStats):
    """Transfers between nodes: lists of times, and three kinds of failures."""

    FAILURES = ("failed_transfers", "failed_handshakes", "failed_notifications")

    def _empty(self) -> dict[str, Any]:
        return {"xfer_seconds": [], **dict.fromkeys(self.FAILURES, 0)}

    def _merge(self, data: Mapping[str, Any]) -> None:
        for key, value in data.items():
            self.data[key] = self.data[key] + (list(map(float, value)) if key == "xfer_seconds" else int(value))

    def _plain(self) -> dict[str, Any]:
        return {**self.data, "xfer_seconds": list(self.data["xfer_seconds"])}

    def samples(self) -> Iterator[Sample]:
        """Yield the times and the failures."""
        times = Histogram.empty(XFER_BUCKETS)
        for seconds in self.data["xfer_seconds"]:
            times.observe(seconds)
        yield Sample("nixl_xfer_seconds", "histogram", (), times)
        yield Sample("nixl_failed_transfers_total", "counter", (), self.reduce()["Num failed transfers"])

    def reduce(self) -> dict[str, int | float]:
        """Return the number of transfers and of failures of all three kinds."""
        failed = sum(self.data[kind] for kind in self.FAILURES)
        return {"Num transfers": len(self.data["xfer_seconds"]), "Num failed transfers": failed}


class NixlConnector(KVConnector):
    """Hands out `NixlStats`."""

    catalogue: ClassVar = Catalogue(
        {
            "nixl_xfer_seconds": HistogramMetadata("Time of a transfer.", unit="seconds", buckets=XFER_BUCKETS),
            "nixl_failed_transfers_total": CounterMetadata("Failures.", unit="transfers", log="NIXL failures"),
        }
    )

    def __init__(self) -> None:
        self.name = "Nixl"
        self.stats = NixlStats()

    def get_kv_connector_stats(self) -> NixlStats | None:
        """Return what happened since the last call."""
        return None if self.stats.is_empty() else NixlStats(self.stats.take())

    @classmethod
    def build_kv_connector_stats(cls, data: Any = None) -> NixlStats | None:
        """Return `NixlStats` where `data` is their plain form."""
        return NixlStats(data) if data is None or "xfer_seconds" in data else None
