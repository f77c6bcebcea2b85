"""Plain statistics of any connector back into the container its class made."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from hisparse.connectors.base import KVConnector
from hisparse.connectors.hisparse import HiSparseConnector
from hisparse.connectors.multi.hearing import heard
from hisparse.connectors.multi.stats import CHILDREN_KEY, MultiKVConnectorStats, unwrapped
from hisparse.connectors.offloading import OffloadingConnectorScheduler
from hisparse.telemetry import CATALOGUE, Catalogue, KVConnectorStats, build_kv_connector_stats


class StatsBuilder:
    """Builds containers at the front end: the ``build`` of a `TelemetryPipeline`.

    A payload of this package is known by its form. A child of a class given here is built by that class, found
    by the child's name (``name``, the class's own name, either with ``#0`` and so on), or else because the class
    reads the payload without skipping anything.
    """

    def __init__(self, connectors: Iterable[type[KVConnector] | KVConnector] = ()) -> None:
        """Know the classes of `connectors`, and the names of those that are objects."""
        # Classes alone: statistics carry this with them, and no connector, into copies and other processes.
        self._given: list[type[KVConnector]] = []
        self._classes: dict[str, type[KVConnector]] = {}
        for connector in connectors:
            cls = connector if isinstance(connector, type) else type(connector)
            self._given += [] if cls in self._given else [cls]
            for name in (cls.__name__, getattr(connector, "name", None)):
                if isinstance(name, str):
                    self._classes.setdefault(name, cls)
        # Known without being given, under the names by which engines know them too.
        for name, own in (("HiSparse", HiSparseConnector), ("Offloading", OffloadingConnectorScheduler)):
            self._classes.setdefault(name, own)
            self._classes.setdefault(f"{name}Connector", own)

    def __call__(self, data: Any, catalogue: Catalogue = CATALOGUE) -> KVConnectorStats | None:
        """Return the container with the plain form `data`, None for none that is known."""
        inner = unwrapped(data)
        if inner is not data and (claimed := self._claimed(data)) is not None:
            return self._alone(claimed, catalogue)
        return self._built("", inner, catalogue)

    def child(self, name: str, data: Any, catalogue: Catalogue = CATALOGUE) -> KVConnectorStats | None:
        """Return the container of the child `name` with the plain form `data`, None for an unknown child."""
        connector = self._classes.get(name) or self._classes.get(name.rpartition("#")[0])
        built = None if connector is None else connector.build_kv_connector_stats(data)
        return self._built(name, data, catalogue) if built is None else built

    def _built(self, name: str, data: Any, catalogue: Catalogue) -> KVConnectorStats | None:
        built = build_kv_connector_stats(data, catalogue)
        if built is not None or not isinstance(data, Mapping):
            return built
        is_multiple = CHILDREN_KEY in data or (not name and any(key in self._classes for key in data))
        if not is_multiple and (built := self._claimed(data)) is not None:
            return built if name else self._alone(built, catalogue)
        # Children of classes unknown here; a child that has children of its own says so.
        if is_multiple or (not name and all(map(_is_payload, data.values()))):
            return MultiKVConnectorStats(data, build=_Children(self, catalogue), catalogue=catalogue)
        return None

    def _alone(self, built: KVConnectorStats, catalogue: Catalogue) -> KVConnectorStats:
        # By itself it would reach the sinks as it is; as a child it is held to what they can take.
        alone = {CHILDREN_KEY: {type(built).__name__: built}}
        return MultiKVConnectorStats(alone, build=_Children(self, catalogue), catalogue=catalogue)

    def _claimed(self, data: Mapping[str, Any]) -> KVConnectorStats | None:
        for connector in self._given:
            built = heard(partial(connector.build_kv_connector_stats, data), other=None)
            # A class that takes anything skips what is not its own.
            if built is not None and not built.errors:
                return built
        return None


class _Children:
    """A `StatsBuilder` for the children of one payload."""

    def __init__(self, builder: StatsBuilder, catalogue: Catalogue) -> None:
        self._builder = builder
        self._catalogue = catalogue

    def __call__(self, name: str, data: Any) -> KVConnectorStats | None:
        return self._builder.child(name, data, self._catalogue)


def _is_payload(value: Any) -> bool:
    return value is None or isinstance(value, Mapping | KVConnectorStats)
