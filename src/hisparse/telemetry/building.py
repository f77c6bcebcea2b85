"""From plain data to the container it came from."""

from collections.abc import Mapping
from typing import Any

from hisparse.telemetry.catalogue import CATALOGUE, Catalogue
from hisparse.telemetry.connector_stats import METRICS_KEY, HiSparseConnectorStats
from hisparse.telemetry.hisparse_stats import DELTAS, LEVELS, RESIDENCY, HiSparseKVConnectorStats
from hisparse.telemetry.offload_stats import OffloadingConnectorStats
from hisparse.telemetry.stats import RANK_KEY, RANKS_KEY, KVConnectorStats


def build_kv_connector_stats(data: Any, catalogue: Catalogue = CATALOGUE) -> KVConnectorStats | None:
    """Return the container whose plain form `data` is, or None where no container of this package has it."""
    if isinstance(data, Mapping):
        if "types" in data or "info" in data:
            return OffloadingConnectorStats(data, catalogue=catalogue)
        if METRICS_KEY in data:
            return HiSparseConnectorStats(data, catalogue=catalogue)
        if any(field in data for field in DELTAS + LEVELS + RESIDENCY) or not data.keys() - {RANK_KEY, RANKS_KEY}:
            return HiSparseKVConnectorStats(data)
    return None
