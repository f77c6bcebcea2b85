"""Where a pipeline begins, meets an engine, and ends."""

import logging
from typing import Any

import numpy as np
import pytest
from authors import HITS, MOVED, errors, pipe, total
from prometheus_client import CollectorRegistry

from hisparse.errors import SettingError
from hisparse.telemetry import TelemetryPipeline
from hisparse.telemetry.interval import MIN_RATE_SECONDS

PAYLOAD = {"cache_hits": [5], "cache_misses": [1], "host_to_device_bytes": [2**20]}


class Clock:
    """Seconds as a test sets them."""

    seconds = 0.0

    def __call__(self) -> float:
        """Return them."""
        return self.seconds


def engines(registry: CollectorRegistry) -> set[str]:
    """Return the engines that have series."""
    return {sample.labels["engine"] for family in registry.collect() for sample in family.samples}


@pytest.mark.parametrize("engine", [True, False, "1", None, 1.5, -1, 2**30, np.array([0, 1]), [0]])
def test_an_engine_that_is_none_is_refused(engine: Any) -> None:
    """What is no whole number makes no engine: counted when publishing, refused when a pipeline is made."""
    with pipe() as pipeline:
        pipeline.publish({"a": PAYLOAD}, engine=engine)
        assert engines(pipeline.registry) == {"0"}
        assert errors(pipeline) == {"unknown_engine": 1}
    with pytest.raises(SettingError, match="engine"):
        pipe(engines=[0, engine])


@pytest.mark.parametrize("engine", [np.int64(1), np.uint8(1), 1])
def test_an_engine_may_be_a_number_of_numpy(engine: Any) -> None:
    """A whole number of another type is the engine it equals."""
    with pipe(engines=[engine]) as pipeline:
        pipeline.publish({"a": PAYLOAD}, engine=engine)
        assert engines(pipeline.registry) == {"1"}
        assert errors(pipeline) == {}


def test_the_past_of_an_engine_met_late_is_no_growth(caplog: pytest.LogCaptureFixture) -> None:
    """A second pipeline that meets a running engine logs what happens from then on, not the engine's whole past."""
    registry = CollectorRegistry()
    first, clock = TelemetryPipeline(registry=registry, engines=[1]), Clock()
    first.publish({"a": {"cache_hits": [1000], "cache_misses": [0]}}, engine=1)
    second = TelemetryPipeline(registry=registry, engines=[0], clock=clock, log_interval_seconds=1e9)
    second.publish({"a": PAYLOAD}, engine=1)
    clock.seconds = 1.0
    with caplog.at_level(logging.INFO, "hisparse"):
        second.flush()
    assert "HiSparse hot-buffer hits=5," in caplog.text
    second.close()
    first.close()


@pytest.mark.parametrize(
    ("seconds", "has_rate"), [(0.0, False), (MIN_RATE_SECONDS / 2, False), (2.0, True), (-1.0, False)]
)
def test_an_interval_without_length_has_no_rates(
    caplog: pytest.LogCaptureFixture, seconds: float, *, has_rate: bool
) -> None:
    """A line right after another one, or after a clock ran back, gives amounts alone."""
    clock = Clock()
    with pipe(clock=clock, log_interval_seconds=1e9) as pipeline:
        pipeline.publish({"a": PAYLOAD})
        clock.seconds = seconds
        with caplog.at_level(logging.INFO, "hisparse"):
            pipeline.flush()
        assert "HiSparse host-to-device GiB=0.0009766" in caplog.text
        assert ("GiB/s=" in caplog.text) == has_rate


def test_what_comes_after_the_end_is_counted_where_it_can_be(caplog: pytest.LogCaptureFixture) -> None:
    """A payload for a closed pipeline is counted on the engine that another one still has; an idle tick is nothing."""
    registry = CollectorRegistry()
    first, second = TelemetryPipeline(registry=registry), TelemetryPipeline(registry=registry)
    first.publish({"a": PAYLOAD})
    first.close()
    first.publish({})
    assert errors(second) == {}
    with caplog.at_level(logging.WARNING, "hisparse"):
        for _ in range(3):
            first.publish({"a": PAYLOAD})
    assert errors(second) == {"unknown_engine": 3}
    assert [record.getMessage() for record in caplog.records if "closed" in record.getMessage()] == caplog.messages
    assert len(caplog.records) == 1
    assert total(second, f"{HITS}_total") == 5
    second.close()


def test_a_closed_pipeline_brings_no_series_back(caplog: pytest.LogCaptureFixture) -> None:
    """A payload after the last pipeline's end makes no engine again, and is named once."""
    pipeline = pipe()
    pipeline.close()
    with caplog.at_level(logging.WARNING, "hisparse"):
        for engine in (0, 0, 1):
            pipeline.publish({"a": PAYLOAD}, engine=engine)
        pipeline.flush()
    assert total(pipeline, f"{MOVED}_total") is None
    assert len(caplog.records) == 1
