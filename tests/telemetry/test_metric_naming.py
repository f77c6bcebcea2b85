"""Which names a metric may have."""

import pytest

from hisparse.errors import MetricError
from hisparse.telemetry import Catalogue, CounterMetadata, GaugeMetadata, HistogramMetadata, MetricMetadata
from hisparse.telemetry.naming import OPERATOR_NAMES

COUNTER = CounterMetadata("A count.", unit="bytes")
GAUGE = GaugeMetadata("A level.", unit="bytes")
HISTOGRAM = HistogramMetadata("A distribution.", unit="seconds", buckets=(1,))


@pytest.mark.parametrize(
    ("name", "metadata", "message"),
    [
        ("hisparse_hot_copied_bytes", COUNTER, "must end in _total"),
        ("hisparse_host_used_bytes_total", GAUGE, "must not end in _total"),
        ("hisparse_hot_gather_seconds_total", HISTOGRAM, "must not end in _total"),
        ("hisparse_hot_copied_total", COUNTER, "must end in its unit"),
        ("hisparse_host_used_gib", GAUGE, "must end in its unit"),
        ("hisparse_gpu_used_bytes", GAUGE, "must name its part"),
        ("hisparse_host_used_bytes", GaugeMetadata("x"), "needs a unit"),
        ("hisparse_bytes", GAUGE, "must name its part"),
        ("vllm:hisparse_hits", COUNTER, "no operator name"),
        ("Mine_bytes", GAUGE, "lower_case"),
        ("mine:used", GAUGE, "lower_case"),
        ("mine used", GAUGE, "lower_case"),
        ("1mine", GAUGE, "lower_case"),
        ("", GAUGE, "lower_case"),
        ("mine_count", GAUGE, "must not end in one of"),
        ("mine_created_total", COUNTER, "must not end in one of"),
        ("vllm:hisparse_cache_hits", COUNTER, "as a counter in selections, got a counter in 'bytes'"),
        ("vllm:kv_offload_load_size", COUNTER, "as a histogram in bytes, got a counter in 'bytes'"),
    ],
)
def test_a_wrong_name_is_refused(name: str, metadata: MetricMetadata, message: str) -> None:
    """A name that does not say whose it is, its unit and its kind cannot be declared."""
    with pytest.raises(MetricError, match=message):
        Catalogue({name: metadata})


def test_no_name_that_operators_know_can_change_its_unit() -> None:
    """Every operator name is refused in a unit other than its own."""
    for name, (kind, unit) in OPERATOR_NAMES.items():
        other = "rows" if unit != "rows" else "pages"
        metadata = {
            "counter": CounterMetadata("x", unit=other),
            "gauge": GaugeMetadata("x", unit=other),
            "histogram": HistogramMetadata("x", unit=other, buckets=(1,)),
        }[kind]
        with pytest.raises(MetricError, match=f"as a {kind} in {unit}"):
            Catalogue({name: metadata})
