"""The levels that several children of one connector know, as of the last time each of them spoke."""

from collections.abc import Mapping
from typing import Any

from hisparse.connectors.multi.stats import combined_info, combined_level
from hisparse.telemetry import KVConnectorStats, MetricMetadata
from hisparse.telemetry.values import MAX_SERIES, LabelValues, encode_labels

_Key = tuple[str, LabelValues]
_Info = dict[str, list[dict[str, str]]]


class ChildLevels:
    """Remembers each child's gauges and info, so that a child that is silent still counts in the combination."""

    def __init__(self, catalogue: Mapping[str, MetricMetadata]) -> None:
        """Know no level; `catalogue` says how they combine."""
        self._catalogue = catalogue
        self._levels: dict[str, dict[_Key, Any]] = {}
        self._info: dict[str, _Info] = {}

    def combine(self, children: Mapping[str, KVConnectorStats]) -> dict[str, Any]:
        """Take what `children` say, and return what it means with the others', as self-describing statistics.

        Only what one of `children` says now and more than one child has ever said is in it.
        """
        spoken: set[_Key] = set()
        names: set[str] = set()
        for child, stats in children.items():
            spoken |= self._take(child, stats)
            names |= stats.info().keys()
        series: dict[str, dict[str, Any]] = {}
        for name, labels in spoken:
            values = [known[name, labels] for known in self._levels.values() if (name, labels) in known]
            if len(values) > 1:
                level = combined_level(self._catalogue, name, values)
                series.setdefault(name, {})[encode_labels(labels)] = level
        shared: dict[str, Any] = {"types": dict.fromkeys(series, "gauge"), "data": series} if series else {}
        return {**shared, **self._shared_info(names)}

    def _take(self, child: str, stats: KVConnectorStats) -> set[_Key]:
        levels = self._levels.setdefault(child, {})
        said = {(name, labels): value for name, kind, labels, value in stats.samples() if kind == "gauge"}
        # What is beyond the bound is not remembered; it then shows what the last child said.
        levels.update({key: value for key, value in said.items() if key in levels or len(levels) < MAX_SERIES})
        self._info.setdefault(child, {}).update(stats.info())
        return set(said)

    def _shared_info(self, names: set[str]) -> dict[str, Any]:
        tellers = {name: [info for info in self._info.values() if name in info] for name in names}
        shared = {
            name: combined_info({name: info[name]} for info in infos)[name]
            for name, infos in tellers.items()
            if len(infos) > 1
        }
        return {"info": shared} if shared else {}
