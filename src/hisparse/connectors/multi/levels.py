"""The levels that several children of one connector know, as of the last time each of them spoke."""

from collections.abc import Mapping
from typing import Any

from hisparse.connectors.multi.hearing import Info, info_of, samples_of
from hisparse.connectors.multi.stats import LevelKey, combined_info, combined_level, level_key
from hisparse.telemetry import KVConnectorStats, MetricMetadata
from hisparse.telemetry.values import MAX_NAMES, MAX_SERIES, encode_labels


class ChildLevels:
    """Remembers each child's gauges and info, so that a child that is silent still counts in the combination."""

    def __init__(self, catalogue: Mapping[str, MetricMetadata]) -> None:
        """Know no level; `catalogue` says how they combine."""
        self._catalogue = catalogue
        self._levels: dict[str, dict[LevelKey, Any]] = {}
        self._info: dict[str, Info] = {}

    def combine(self, children: Mapping[str, KVConnectorStats]) -> list[dict[str, Any]]:
        """Take what `children` say, and return what it means with the others', as self-describing statistics.

        Only what one of `children` says now and more than one child has ever said is in them, apart by rank.
        """
        spoken: set[LevelKey] = set()
        names: set[str] = set()
        for child, stats in children.items():
            spoken |= self._take_levels(child, stats)
            names |= self._take_info(child, stats)
        ranks: dict[int | None, dict[str, Any]] = {}
        for key in spoken:
            values = [known[key] for known in self._levels.values() if key in known]
            if len(values) > 1:
                level = combined_level(self._catalogue, key.name, values)
                shared = ranks.setdefault(key.rank, {"types": {}, "data": {}})
                shared["types"][key.name] = "gauge"
                shared["data"].setdefault(key.name, {})[encode_labels(key.labels)] = level
        info = self._shared_info(names)
        told = [shared if rank is None else {**shared, "rank": rank} for rank, shared in ranks.items()]
        return [*told, {"info": info}] if info else told

    def _take_levels(self, child: str, stats: KVConnectorStats) -> set[LevelKey]:
        levels = self._levels.setdefault(child, {})
        said = {level_key(sample): sample.value for sample in samples_of(stats) if sample.kind == "gauge"}
        # What is beyond the bound is not remembered; it then shows what the last child said.
        levels.update({key: value for key, value in said.items() if key in levels or len(levels) < MAX_SERIES})
        return set(said)

    def _take_info(self, child: str, stats: KVConnectorStats) -> set[str]:
        # What is wrong with it is counted where the statistics are read.
        told, _ = info_of(stats)
        known = self._info.setdefault(child, {})
        known.update({name: labels for name, labels in told.items() if name in known or len(known) < MAX_NAMES})
        return set(told)

    def _shared_info(self, names: set[str]) -> Info:
        tellers = {name: [info for info in self._info.values() if name in info] for name in names}
        return {
            name: combined_info({name: info[name]} for info in infos)[name]
            for name, infos in tellers.items()
            if len(infos) > 1
        }
