"""Connectors: parts of an engine that move KV rows or blocks, and their way into one telemetry pipeline.

A connector has a scheduler side, which plans and owns no memory, and a worker side, which moves bytes and
decides nothing. Neither knows the engine: an integration is a thin shim over the classes here.
"""

from hisparse.connectors.base import KVConnector, PromMetrics
from hisparse.connectors.hisparse import (
    CounterSource,
    CounterTotals,
    GroupCounterSource,
    HiSparseConnector,
    HiSparseConnectorWorker,
    HostLevels,
    LevelSource,
    PendingSample,
)
from hisparse.connectors.multi import MultiConnector, MultiKVConnectorStats, StatsBuilder
from hisparse.connectors.offloading import (
    DirectionalTransferStats,
    ManagerTelemetry,
    OffloadingConnectorScheduler,
    OffloadingWorkerMetadata,
    OffloadPromMetrics,
    TransferStats,
)

__all__ = [
    "CounterSource",
    "CounterTotals",
    "DirectionalTransferStats",
    "GroupCounterSource",
    "HiSparseConnector",
    "HiSparseConnectorWorker",
    "HostLevels",
    "KVConnector",
    "LevelSource",
    "ManagerTelemetry",
    "MultiConnector",
    "MultiKVConnectorStats",
    "OffloadPromMetrics",
    "OffloadingConnectorScheduler",
    "OffloadingWorkerMetadata",
    "PendingSample",
    "PromMetrics",
    "StatsBuilder",
    "TransferStats",
]
