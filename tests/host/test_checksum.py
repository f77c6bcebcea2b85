"""The checksum equals its formula and finds what it must."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.host._compiled import Region
from hisparse.host.checksum import Expected, checksum_rows, checksum_weights, first_mismatch

sizes = st.integers(1, 60)


def by_formula(data: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the checksums, computed with numpy over zero-padded words."""
    padded = np.zeros((len(data), len(weights) * 8), np.uint8)
    padded[:, : data.shape[1]] = data
    words = padded.view("<u8")
    return ((words ^ (words >> np.uint64(32))) * weights).sum(axis=1, dtype=np.uint64)


@pytest.mark.parametrize("row_bytes", [1, 7, 8, 9, 577, 584, 656, 1152, 2304])
def test_the_checksum_is_its_formula(row_bytes: int) -> None:
    """Rows of any length, also unaligned ones, sum to what numpy computes."""
    data = np.random.default_rng(row_bytes).integers(0, 256, (50, row_bytes), dtype=np.uint8)
    weights = checksum_weights(row_bytes)
    np.testing.assert_array_equal(checksum_rows(data, weights), by_formula(data, weights))


def test_weights_are_odd_and_the_same_everywhere() -> None:
    """Weights have inverses, and a longer row's weights begin with a shorter row's."""
    weights = checksum_weights(2304)
    assert len(weights) == 288
    assert (weights % 2 == 1).all()
    np.testing.assert_array_equal(weights[:73], checksum_weights(577))


@settings(deadline=None)
@given(st.data())
def test_a_changed_word_is_always_found(data: st.DataObject) -> None:
    """Whatever bytes of one word change, and however, the checksum changes."""
    row = np.frombuffer(data.draw(sizes.flatmap(lambda size: st.binary(min_size=size, max_size=size))), np.uint8)
    weights = checksum_weights(row.size)
    word = data.draw(st.integers(0, len(weights) - 1))
    span = slice(8 * word, min(8 * word + 8, row.size))
    changed = row.copy()
    length = span.stop - span.start
    changed[span] = np.frombuffer(data.draw(st.binary(min_size=length, max_size=length)), np.uint8)
    same = bool((changed == row).all())
    assert (checksum_rows(row[None], weights) == checksum_rows(changed[None], weights))[0] == same


def test_paired_changes_are_found() -> None:
    """Two words that change in the same bit, exchange their places, or exchange a byte, do not cancel out."""
    weights = checksum_weights(64)
    row = np.random.default_rng(0).integers(0, 2**64, 8, dtype=np.uint64)
    changed = []
    for one in range(8):
        for other in range(one):
            for bit in range(64):
                both = row.copy()
                both[[one, other]] ^= np.uint64(1 << bit)
                changed.append(both)
            exchanged = row.copy()
            exchanged[[one, other]] = row[[other, one]]
            changed.append(exchanged)
    sums = checksum_rows(np.array(changed).view(np.uint8), weights)
    assert checksum_rows(row.view(np.uint8)[None], weights)[0] not in sums


def test_the_first_wrong_row_of_a_plan_is_named() -> None:
    """Rows outside the plan are not looked at; of two wrong ones the first in plan order is returned."""
    data = np.random.default_rng(0).integers(0, 256, (100, 577), dtype=np.uint8)
    weights = checksum_weights(577)
    expected = Expected(checksum_rows(data, weights), weights)
    region = Region(data.ctypes.data, 577, -1, 0)
    data[7, 576] ^= 1
    data[3, 0] ^= 128
    assert first_mismatch(region, np.array([99, 5, 7, 3]), expected) == 2
    assert first_mismatch(region, np.array([99, 5, 4]), expected) == -1
    assert first_mismatch(region, np.empty(0, np.int64), expected) == -1
