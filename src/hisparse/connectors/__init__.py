"""Connectors: parts of an engine that move KV rows or blocks, and their way into one telemetry pipeline.

A connector has a scheduler side, which plans and owns no memory, and a worker side, which moves bytes and
decides nothing. Neither knows the engine: an integration is a thin shim over the classes here.
"""

from hisparse.connectors.base import KVConnector, PromMetrics

__all__ = ["KVConnector", "PromMetrics"]
