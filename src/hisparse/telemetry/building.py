"""From plain data to the container it came from."""

from collections.abc import Mapping
from typing import Any

from hisparse.telemetry.catalogue import CATALOGUE, Catalogue
from hisparse.telemetry.connector_stats import METRICS_KEY, HiSparseConnectorStats
from hisparse.telemetry.hisparse_stats import DELTAS, LEVELS, RESIDENCY
from hisparse.telemetry.offload_stats import OffloadingConnectorStats
from hisparse.telemetry.stats import ERRORS_KEY, RANK_KEY, RANKS_KEY, KVConnectorStats

# What the warning about an unknown payload tells its reader to do.
UNKNOWN_HELP = "give build=StatsBuilder([...]) of hisparse.connectors the class of its connector"


def build_kv_connector_stats(data: Any, catalogue: Catalogue = CATALOGUE) -> KVConnectorStats | None:
    """Return a container of what `data`, a plain form, says, or None where no container of this package has it.

    It holds what any later payload of the same sender says: a HiSparse connector's metrics section comes with some
    payloads and not with others, so what may be one is always `HiSparseConnectorStats`.
    """
    if isinstance(data, Mapping):
        if "types" in data or "info" in data:
            return OffloadingConnectorStats(data, catalogue=catalogue)
        is_known = any(field in data for field in (METRICS_KEY, *DELTAS, *LEVELS, *RESIDENCY))
        if is_known or not data.keys() - {RANK_KEY, RANKS_KEY, ERRORS_KEY}:
            return HiSparseConnectorStats(data, catalogue=catalogue)
    return None
