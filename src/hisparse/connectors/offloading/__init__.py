"""Offloading of blocks to tiers: what workers and managers measure, on its way to the log and to Prometheus."""

from hisparse.connectors.offloading.direction import DirectionalTransferStats
from hisparse.connectors.offloading.metadata import OffloadingWorkerMetadata
from hisparse.connectors.offloading.scheduler import ManagerTelemetry, OffloadingConnectorScheduler
from hisparse.connectors.offloading.transfers import TransferStats
from hisparse.connectors.prometheus import OffloadPromMetrics

__all__ = [
    "DirectionalTransferStats",
    "ManagerTelemetry",
    "OffloadPromMetrics",
    "OffloadingConnectorScheduler",
    "OffloadingWorkerMetadata",
    "TransferStats",
]
