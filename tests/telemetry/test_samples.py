"""The gate before the totals: what a class of another author says never makes a scrape fail or a total wrong."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from authors import GATHER, HITS, MOVED, USAGE, Authors, errors, pipe, total

from hisparse.errors import SettingError
from hisparse.telemetry import CATALOGUE, Histogram, OffloadingConnectorStats, Sample
from hisparse.telemetry.catalogue import GATHER_BUCKETS
from hisparse.telemetry.samples import MAX_SAMPLES, level_limits, read_info, read_sample
from hisparse.telemetry.stats import RankedSample
from hisparse.telemetry.values import MAX_SERIES, ItemError

COPIED = "hisparse_hot_copied_bytes_total"
INFO = "hisparse_hot_config_info"
BOUNDS = tuple(map(float, GATHER_BUCKETS))


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (Sample(HITS, "counter", (), -5), "negative"),
        (Sample(HITS, "counter", (), math.nan), "not_finite"),
        (Sample(HITS, "counter", (), value=True), "wrong_type"),
        (Sample(USAGE, "gauge", (), math.nan), "not_finite"),
        (Sample(USAGE, "gauge", (), Histogram((1.0,), [1, 0], 1.0)), "wrong_type"),
        (Sample(GATHER, "histogram", (), 3), "wrong_type"),
        (Sample(GATHER, "histogram", (), Histogram.of_lanes(BOUNDS, 1, math.nan)), "not_finite"),
        (Sample(GATHER, "histogram", (), Histogram.of_lanes(BOUNDS, 1 << 64 * 30, 1.0)), "bucket_mismatch"),
        (Sample(GATHER, "histogram", (), Histogram.of_lanes(BOUNDS, 0, 1e6)), "bucket_mismatch"),
        (Sample(GATHER, "histogram", (), Histogram((1.0,), [1, 0], 1.0)), "bucket_mismatch"),
        (Sample(COPIED, "counter", {"host_to_device", "0"}, 1), "label_mismatch"),
        (Sample(COPIED, "counter", ("host_to_device", None), 1), "wrong_type"),
        (Sample(["a"], "counter", (), 1), "wrong_type"),
        (Sample(HITS, ["counter"], (), 1), "wrong_type"),
        ((HITS, "counter"), "wrong_type"),
        (7, "wrong_type"),
    ],
)
def test_what_no_sink_can_take_is_counted_in_its_place(sample: Any, reason: str) -> None:
    """One bad sample of another author's class is counted; the good one beside it is added, and scrapes work."""
    with pipe() as pipeline:
        pipeline.publish({"a": Authors([sample, Sample(MOVED, "counter", (), 7)])})
        assert errors(pipeline) == {reason: 1}
        assert total(pipeline, f"{MOVED}_total") == 7


def test_labels_that_are_whole_numbers_are_written() -> None:
    """A label value that is an int becomes its text, as one given to this package's own classes does."""
    with pipe() as pipeline:
        pipeline.publish({"a": Authors([Sample(COPIED, "counter", ("host_to_device", 3), 5)])})  # type: ignore[arg-type]  # the point
        assert total(pipeline, COPIED, direction="host_to_device", layer="3") == 5
        assert errors(pipeline) == {}


def test_numbers_of_numpy_become_plain() -> None:
    """A scalar or an array without axes is the number in it, and its rank stays."""
    said = RankedSample.of(Sample(HITS, "counter", ["a"], np.array(3)), 1)  # type: ignore[arg-type]  # the point
    read = read_sample(said)
    assert read == (HITS, "counter", ("a",), 3)
    assert type(read.value) is int
    assert read.rank == 1


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({INFO: [{"top_k": 4, "order": None}]}, None),
        ({INFO: {"top_k": 4}}, None),
        ({INFO: [{"top_k": "\ud800"}]}, "wrong_type"),
        ({INFO: [{4: "a"}]}, "wrong_type"),
        ({INFO: 3}, "wrong_type"),
        ({("a",): [{}]}, "wrong_type"),
    ],
)
def test_info_of_a_foreign_class_is_read_as_text(info: Any, reason: str | None) -> None:
    """Values of info become text; what has none is counted, and the scrape works."""
    empty = dict.fromkeys(CATALOGUE[INFO].labelnames, "")
    with pipe() as pipeline:
        pipeline.publish({"a": Authors([], info)})
        assert total(pipeline, INFO, **{**empty, "top_k": "4"}) == (1 if reason is None else None)
        assert errors(pipeline) == ({} if reason is None else {reason: 1})


def test_info_is_bounded_and_counts_each_mapping_once() -> None:
    """Equal mappings are one, and more than a metric may have series are refused."""
    assert read_info([{"a": "1"}, {"a": 1}, {"a": "2"}]) == [{"a": "1"}, {"a": "2"}]
    with pytest.raises(ItemError, match="at most"):
        read_info([{"a": str(number)} for number in range(MAX_SERIES + 1)])
    stats = OffloadingConnectorStats()
    stats.aggregate({"info": {INFO: [{"top_k": str(number)} for number in range(MAX_SERIES + 1)]}})
    assert stats.errors == {"too_many_series": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (USAGE, 1.5),
        (USAGE, -0.1),
        ("vllm:hisparse_pending_page_transfers", -1),
        ("hisparse_host_used_bytes", -1),
        ("hisparse_telemetry_sample_age_seconds", -0.5),
    ],
)
def test_a_level_that_its_unit_does_not_allow_is_skipped(name: str, value: float) -> None:
    """A share beyond 1 and less than nothing of anything never become levels, first or later, of either class."""
    stats = OffloadingConnectorStats()
    with pipe() as pipeline:
        for level in (value, 0.5, value):
            stats.set_gauge(name, level)
            pipeline.publish({"a": stats.take()})
        pipeline.publish({"a": Authors([Sample(name, "gauge", (), value)])})
        assert total(pipeline, name) == 0.5
        assert errors(pipeline) == {"out_of_range": 3}


def test_an_info_gauge_is_always_one() -> None:
    """A level sent for an info gauge cannot make it anything but 1."""
    labels = ("1",) * 7
    stats = OffloadingConnectorStats()
    with pipe() as pipeline:
        for level in (1, 42):
            stats.set_gauge(INFO, level, labels)
            pipeline.publish({"a": stats.take()})
        assert total(pipeline, INFO, **dict.fromkeys(CATALOGUE[INFO].labelnames, "1")) == 1
        assert errors(pipeline) == {"out_of_range": 1}
    assert level_limits(CATALOGUE[INFO]) == (1, 1)


def test_a_generator_that_never_ends_is_cut() -> None:
    """No more samples than a bound are taken at once, and the step goes on."""

    def forever() -> Any:
        while True:
            yield Sample(MOVED, "counter", (), 1)

    with pipe() as pipeline:
        pipeline.publish({"a": Authors(forever)})
        assert total(pipeline, f"{MOVED}_total") == MAX_SAMPLES
        assert errors(pipeline) == {"too_many_series": 1}


@pytest.mark.parametrize("name", [Path("x"), "a\ud800", None, 7])
def test_a_model_name_that_no_scrape_can_write_is_refused(name: Any) -> None:
    """A model name is text in UTF-8, or the pipeline is not made."""
    with pytest.raises(SettingError, match="model_name"):
        pipe(model_name=name)
