"""Several connectors in one engine, kept apart by object."""

from hisparse.connectors.multi.builder import StatsBuilder
from hisparse.connectors.multi.connector import MultiConnector
from hisparse.connectors.multi.stats import MultiKVConnectorStats

__all__ = ["MultiConnector", "MultiKVConnectorStats", "StatsBuilder"]
