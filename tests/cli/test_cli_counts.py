"""Counts of caches and the sums that must hold."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.cli.counts import OUTCOMES, CacheCounts, LayerCounts, Selections

STATS = {
    "selections": {"hit": 7, "miss": 3, "resident": 1, "padding": 5},
    "host_to_device_bytes": 60,
    "device_kv_bytes": 1000,
    "layers": [
        {"layer": 0, "group": 0, "hit": 4, "miss": 2, "resident": 0, "padding": 2, "bytes": 20},
        {"layer": 1, "group": 0, "hit": 4, "miss": 2, "resident": 0, "padding": 2, "bytes": 30},
        {"layer": 2, "group": 1, "hit": 3, "miss": 1, "resident": 1, "padding": 3, "bytes": 10},
    ],
}

selections = st.builds(Selections, *[st.integers(0, 10**12)] * 4)


def test_counts_that_agree_have_no_violations() -> None:
    """Groups of several layers count once, and the four outcomes make the selections."""
    assert CacheCounts.from_stats(STATS).violations(16) == ()


def test_each_broken_sum_is_printed() -> None:
    """A wrong total, a wrong group, a layer that disagrees and wrong bytes are each named with their numbers."""
    counts = CacheCounts.from_stats(STATS)
    assert counts.violations(17) == ("hit 7 + miss 3 + resident 1 + padding 5 = 16, expected 17 selections",)
    moved = replace(counts, selections=Selections(8, 2, 1, 5))
    assert moved.violations(16) == (
        "hit of all index groups 7 != 8 in total",
        "miss of all index groups 3 != 2 in total",
    )
    copied = replace(counts, host_to_device_bytes=61)
    assert copied.violations(16) == ("bytes of all layers 60 != 61 in total",)
    odd = replace(counts, layers=(LayerCounts(0, 0, Selections(9), 20), *counts.layers[1:]))
    assert any(text.startswith("layer 0 disagrees with its index group 0") for text in odd.violations(16))


def test_counts_of_two_caches_add_up() -> None:
    """The sum of two caches' counts is their sum in every field, and still agrees with itself."""
    counts = CacheCounts.from_stats(STATS)
    double = counts.plus(counts)
    assert double.violations(32) == ()
    assert double.host_to_device_bytes == 120
    assert double.device_kv_bytes == 2000
    assert [layer.copied_bytes for layer in double.layers] == [40, 60, 20]


@settings(deadline=None)
@given(selections, selections)
def test_totals_add_up(left: Selections, right: Selections) -> None:
    """The total of a sum is the sum of the totals."""
    assert left.plus(right).total == left.total + right.total


@settings(deadline=None)
@given(selections)
def test_hit_ratio_is_a_ratio(counted: Selections) -> None:
    """The hit ratio leaves resident and padding out and stays between 0 and 1."""
    assert 0.0 <= counted.hit_ratio <= 1.0
    assert counted.hit_ratio == replace(counted, resident=0, padding=0).hit_ratio


def test_nothing_counted_has_ratio_zero() -> None:
    """Before the first selection the hit ratio is 0, not an error."""
    assert Selections().hit_ratio == 0.0


@pytest.mark.parametrize("name", OUTCOMES)
def test_layer_is_flat_in_json(name: str) -> None:
    """A layer's JSON has its outcomes beside its number, group and bytes."""
    layer = CacheCounts.from_stats(STATS).layers[2]
    assert list(layer.to_dict()) == ["layer", "group", *OUTCOMES, "bytes"]
    assert layer.to_dict()[name] == STATS["layers"][2][name]
