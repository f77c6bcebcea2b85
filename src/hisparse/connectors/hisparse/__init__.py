"""Rows on the host: levels of the host pool, and two-phase samples of what workers count."""

from hisparse.connectors.hisparse.connector import HiSparseConnector
from hisparse.connectors.hisparse.levels import HostLevels, LevelSource
from hisparse.connectors.hisparse.source import CounterSource, GroupCounterSource, PendingSample
from hisparse.connectors.hisparse.totals import CounterTotals
from hisparse.connectors.hisparse.worker import HiSparseConnectorWorker

__all__ = [
    "CounterSource",
    "CounterTotals",
    "GroupCounterSource",
    "HiSparseConnector",
    "HiSparseConnectorWorker",
    "HostLevels",
    "LevelSource",
    "PendingSample",
]
