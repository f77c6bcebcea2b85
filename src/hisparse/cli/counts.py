"""What caches counted, and whether the counts agree with one another."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

OUTCOMES = ("hit", "miss", "resident", "padding")


@dataclass(frozen=True)
class Selections:
    """Selected positions by what became of them."""

    hit: int = 0
    miss: int = 0
    resident: int = 0
    padding: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.hit + self.miss + self.resident + self.padding

    @property
    def hit_ratio(self) -> float:
        """Hits of hits and misses; 0.0 before the first."""
        referenced = self.hit + self.miss
        return self.hit / referenced if referenced else 0.0

    def plus(self, other: Self) -> "Selections":
        """The sum, outcome by outcome."""
        return Selections(*(getattr(self, name) + getattr(other, name) for name in OUTCOMES))


@dataclass(frozen=True)
class LayerCounts:
    """One layer: its index group's selections, and the bytes that were copied for it."""

    layer: int
    group: int
    selections: Selections
    copied_bytes: int

    def to_dict(self) -> dict[str, int]:
        """Flat, with the field names of the JSON output."""
        return {"layer": self.layer, "group": self.group, **asdict(self.selections), "bytes": self.copied_bytes}


@dataclass(frozen=True)
class CacheCounts:
    """Totals of a cache and the same by layer."""

    selections: Selections
    host_to_device_bytes: int
    device_kv_bytes: int
    layers: tuple[LayerCounts, ...]

    @classmethod
    def from_stats(cls, stats: Mapping[str, Any]) -> Self:
        """Read a cache's ``stats()``."""
        return cls(
            _selections(stats["selections"]),
            stats["host_to_device_bytes"],
            stats["device_kv_bytes"],
            tuple(
                LayerCounts(entry["layer"], entry["group"], _selections(entry), entry["bytes"])
                for entry in stats["layers"]
            ),
        )

    @property
    def groups(self) -> dict[int, Selections]:
        """Selections by index group; every layer of a group reports its group's."""
        return {layer.group: layer.selections for layer in self.layers}

    def plus(self, other: "CacheCounts") -> "CacheCounts":
        """The sum with another cache of the same model, count by count.

        Device bytes add up like the rest: the sum is what both caches hold together.
        """
        return CacheCounts(
            self.selections.plus(other.selections),
            self.host_to_device_bytes + other.host_to_device_bytes,
            self.device_kv_bytes + other.device_kv_bytes,
            tuple(
                LayerCounts(
                    mine.layer,
                    mine.group,
                    mine.selections.plus(theirs.selections),
                    mine.copied_bytes + theirs.copied_bytes,
                )
                for mine, theirs in zip(self.layers, other.layers, strict=True)
            ),
        )

    def violations(self, expected_selections: int) -> tuple[str, ...]:
        """The sums that should hold and do not, each printed; empty when all is well.

        Args:
            expected_selections: queries decoded x index groups x top-k, counted apart from the cache.
        """
        found = []
        totals = self.selections
        if totals.total != expected_selections:
            parts = " + ".join(f"{name} {getattr(totals, name):,}" for name in OUTCOMES)
            found.append(f"{parts} = {totals.total:,}, expected {expected_selections:,} selections")
        for name in OUTCOMES:
            groups = sum(getattr(group, name) for group in self.groups.values())
            if groups != getattr(totals, name):
                found.append(f"{name} of all index groups {groups:,} != {getattr(totals, name):,} in total")
        found += [
            f"layer {layer.layer} disagrees with its index group {layer.group}: {layer.selections}"
            for layer in self.layers
            if layer.selections != self.groups[layer.group]
        ]
        layer_bytes = sum(layer.copied_bytes for layer in self.layers)
        if layer_bytes != self.host_to_device_bytes:
            found.append(f"bytes of all layers {layer_bytes:,} != {self.host_to_device_bytes:,} in total")
        return tuple(found)


def _selections(entry: Mapping[str, Any]) -> Selections:
    return Selections(*(entry[name] for name in OUTCOMES))
