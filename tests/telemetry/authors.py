"""Statistics classes as another author may write them, and a reader of what reached the sinks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from hisparse.telemetry import KVConnectorStats, MetricStore, TelemetryPipeline
from hisparse.telemetry.prometheus import registry_text
from hisparse.telemetry.store import ERRORS_METRIC

HITS, MISSES = "vllm:hisparse_cache_hits", "vllm:hisparse_cache_misses"
MOVED = "vllm:hisparse_host_to_device_bytes"
USAGE = "vllm:hisparse_host_cache_usage_perc"
GATHER = "hisparse_hot_gather_seconds"


class Authors(KVConnectorStats):
    """Yields the samples and the info it is given, or calls what makes them."""

    def __init__(self, samples: Iterable[Any] | Callable[[], Iterable[Any]] = (), info: Any = None) -> None:
        """Keep them."""
        super().__init__()
        self._samples, self._info = samples, info or {}

    def _empty(self) -> dict[str, Any]:
        return {}

    def _merge(self, data: Mapping[str, Any]) -> None:
        pass

    def _plain(self) -> dict[str, Any]:
        return {}

    def samples(self) -> Iterator[Any]:
        """Yield what was given."""
        yield from self._samples() if callable(self._samples) else self._samples

    def reduce(self) -> dict[str, int | float]:
        """Return nothing."""
        return {}

    def info(self) -> Any:
        """Return what was given."""
        return self._info


class Silent(KVConnectorStats):
    """Forgot to call its parent, so it has no attribute that a container has."""

    def __init__(self) -> None:
        """Do nothing."""

    _empty = _merge = _plain = samples = reduce = lambda *_: None  # type: ignore[assignment]  # only its being a container counts


class UnspeakableError(Exception):
    """Cannot say what is wrong."""

    def __str__(self) -> str:
        """Raise."""
        raise RuntimeError("no words")


def fails(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises `error`."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def total(pipeline: TelemetryPipeline, name: str, **labels: str) -> float | None:
    """Return a sample as the registry has it, of engine 0; both forms of the text must be writable."""
    registry = pipeline.registry
    assert registry_text(registry) == generate_latest(registry)
    return registry.get_sample_value(name, {"model_name": "", "engine": "0", **labels})


def errors(source: TelemetryPipeline | MetricStore) -> dict[str, float]:
    """Return the skipped items by reason, of engine 0."""
    if isinstance(source, MetricStore):
        counted = source.snapshot([ERRORS_METRIC])[ERRORS_METRIC]
        return {labels[0]: float(str(value)) for labels, value in counted.items() if value}
    families = [family for family in source.registry.collect() if family.name == ERRORS_METRIC.removesuffix("_total")]
    samples = [sample for family in families for sample in family.samples]
    return {sample.labels["reason"]: sample.value for sample in samples if sample.value}


def pipe(**settings: Any) -> TelemetryPipeline:
    """Return a pipeline with a registry of its own."""
    return TelemetryPipeline(registry=CollectorRegistry(), **settings)
