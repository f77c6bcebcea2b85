"""vLLM's own statistics classes as a contender; they import without a GPU from an unpacked wheel."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from prometheus_client import Counter, Gauge, Histogram

LABELNAMES = ["model_name", "engine"]


class VllmSteps:
    """One step of statistics in vLLM's classes, stage by stage.

    Attributes:
        version: vLLM's version.
    """

    def __init__(self, folder: Path, counters: Sequence[str], histograms: Mapping[str, Sequence[float]]) -> None:
        """Import from `folder`, declare the metrics, and create them for one engine."""
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        sys.path.insert(0, str(folder))
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading import metrics  # noqa: PLC0415  a peer, if any
        from vllm.v1.kv_offload import base  # noqa: PLC0415  same reason
        from vllm.v1.kv_offload.factory import OffloadingSpecFactory  # noqa: PLC0415  same reason

        definitions = {name: base.OffloadingCounterMetadata(documentation=name) for name in counters}
        definitions |= {
            name: base.OffloadingHistogramMetadata(documentation=name, buckets=tuple(bounds))
            for name, bounds in histograms.items()
        }
        spec = SimpleNamespace(config_info_keys=lambda _: (), build_metric_definitions=lambda _: definitions)
        spec_class = type("Spec", (), vars(spec))
        # As the front end does it: the connector's configuration names the spec that declares the metrics.
        OffloadingSpecFactory.get_spec_cls = lambda _config: spec_class
        config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config={}))
        types = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
        self._stats = metrics.OffloadingConnectorStats
        self._exporter = metrics.OffloadPromMetrics(config, types, LABELNAMES, {0: ["m", "0"]})
        self.version = next(folder.glob("vllm-*.dist-info"), folder).name.removesuffix(".dist-info")

    def build(self, counts: Mapping[str, int], samples: Mapping[str, list[float]]) -> Any:
        """Record one rank's step."""
        stats = self._stats()
        for name, count in counts.items():
            stats.increase_counter(name, count)
        for name, values in samples.items():
            for value in values:
                stats.observe_histogram(name, value)
        return stats

    @staticmethod
    def merge(per_rank: Sequence[Any]) -> Any:
        """Merge as the output aggregator does: the first rank's object accumulates the others."""
        first, *others = per_rank
        for other in others:
            first = first.aggregate(other)
        return first

    @staticmethod
    def encode(stats: Any) -> bytes:
        """Return msgpack, by the library that vLLM uses, without the rest of its message."""
        return msgspec.msgpack.encode(stats.to_dict())

    def decode(self, payload: bytes) -> Any:
        """Return the container of the bytes."""
        return self._stats(data=msgspec.msgpack.decode(payload))

    def observe(self, stats: Any) -> None:
        """Add the step to Prometheus metrics."""
        self._exporter.observe(stats.data, 0)


def vllm_folder(option: str | None) -> Path | None:
    """Return the folder of an unpacked wheel, from the option or HISPARSE_BENCH_VLLM; None where there is none."""
    named = option or os.environ.get("HISPARSE_BENCH_VLLM")
    return Path(named) if named else None
