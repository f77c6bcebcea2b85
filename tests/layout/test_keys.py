"""Keys: equal exactly when everything that decides the rows is equal."""

import os
import subprocess
import sys
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse.errors import ArrayError, SettingError
from hisparse.layout import RowFormat, page_keys

PARTS: dict[str, Any] = {"model": "m", "revision": "r", "dtype": "bfloat16", "row_format": "fp8_ds_mla"}
LATENT, INDEX = RowFormat.dense("bfloat16", 576), RowFormat.dense("bfloat16", 128)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lora empty": {"lora": ""},
    "lora text 1": {"lora": "1"},
    "lora number 1": {"lora": 1},
    "lora number 0": {"lora": 0},
    "salt empty": {"salt": ""},
    "salt empty bytes": {"salt": b""},
    "salt text": {"salt": "a"},
    "salt bytes": {"salt": b"a"},
    "salt other": {"salt": "b"},
    "salt text None": {"salt": "None"},
    "lora, not salt": {"lora": "a"},
    "both": {"lora": "a", "salt": "b"},
    "both, exchanged": {"lora": "b", "salt": "a"},
    "both, run together": {"lora": "ab", "salt": ""},
    "cut elsewhere": {"model": "mr", "revision": ""},
    "revision none": {"revision": None},
    "other weights of one name": {"revision": "r2"},
    "model and revision exchanged": {"model": "r", "revision": "m"},
    "model": {"model": "n"},
    "dtype": {"dtype": "float16"},
    "row format by name": {"row_format": "bfloat16"},
    "row format": {"row_format": LATENT},
    "wider row format": {"row_format": RowFormat.dense("bfloat16", 577)},
    "a layer's row format": {"row_format": [LATENT]},
    "row formats": {"row_format": [LATENT, INDEX]},
    "row formats exchanged": {"row_format": [INDEX, LATENT]},
    "rank 0 of 2": {"world_size": 2},
    "rank 1 of 2": {"rank": 1, "world_size": 2},
    "rank 1 of 21": {"rank": 1, "world_size": 21},
    "rank 12 of 21": {"rank": 12, "world_size": 21},
    "separators in text": {"lora": "\x00,|/", "salt": "\x00"},
    "parent": {"parent": bytes(32)},
    "other parent": {"parent": bytes(31) + b"\x01"},
}


def keys_of(tokens: Any, page_rows: int = 4, **parts: Any) -> list[bytes]:
    """Return the keys of tokens under the usual parts, some of them replaced."""
    return page_keys(tokens, page_rows, **{**PARTS, **parts})


def test_no_two_identities_share_a_key() -> None:
    """The same tokens under any two different sets of parts have no key in common, on any page."""
    keys = {name: set(keys_of(range(12), **parts)) for name, parts in VARIANTS.items()}
    assert all(len(found) == 3 for found in keys.values())
    assert [(a, b) for a, b in combinations(keys, 2) if keys[a] & keys[b]] == []


def test_the_page_size_is_part_of_the_key() -> None:
    """Pages of 4 and pages of 2 tokens never meet, also where they end at the same token."""
    assert not set(keys_of(range(8), 4)) & set(keys_of(range(8), 2))
    assert not set(keys_of([1, 2, 3, 4], 4)) & set(keys_of([1, 2, 3, 4] * 2, 8))


def test_a_key_stands_for_all_pages_before() -> None:
    """Equal pages after different ones, or in another order, have different keys."""
    one, other = keys_of([1, 2, 3, 4, 5, 6, 7, 8]), keys_of([1, 2, 3, 9, 5, 6, 7, 8])
    assert not set(one) & set(other)
    assert not set(one) & set(keys_of([5, 6, 7, 8, 1, 2, 3, 4]))
    assert len(set(keys_of([0] * 40))) == 10


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40), st.integers(1, 7))
@settings(deadline=None)
def test_only_full_pages_have_keys(tokens: list[int], page_rows: int) -> None:
    """There are as many keys as full pages, each of 32 bytes, and tokens after them change nothing."""
    keys = keys_of(np.array(tokens, np.int64), page_rows)
    full = len(tokens) // page_rows
    assert [len(key) for key in keys] == [32] * full
    assert keys == keys_of(np.array(tokens[: full * page_rows], np.int64), page_rows)


@given(st.lists(st.integers(-5, 2**40), max_size=40), st.integers(1, 7), st.data())
@settings(deadline=None)
def test_a_chain_goes_on_from_its_last_key(tokens: list[int], page_rows: int, data: st.DataObject) -> None:
    """Keys made piece by piece, each with the last key as parent, are those of one call."""
    whole = keys_of(tokens, page_rows)
    cut = data.draw(st.integers(0, len(whole)))
    first = keys_of(tokens[: cut * page_rows], page_rows)
    rest = keys_of(tokens[cut * page_rows :], page_rows, parent=first[-1] if first else None)
    assert first + rest == whole


def test_tokens_count_by_value_not_by_type() -> None:
    """Lists, ranges and arrays of every width and byte order give the same keys."""
    whole = keys_of(range(8))
    for kind in ("int8", "uint8", "int16", ">i4", "int32", "uint32", "int64", ">i8", "uint64"):
        assert keys_of(np.arange(8, dtype=kind)) == whole
    assert keys_of(np.arange(16)[::2]) == keys_of([0, 2, 4, 6, 8, 10, 12, 14])


def test_large_and_negative_tokens_are_told_apart() -> None:
    """Tokens that agree in their low 32 bits, or up to sign, have different keys."""
    variants = [7, 7 + 2**31, 7 + 2**32, -7, 7 - 2**32, 7 + 2**62, -(2**63)]
    assert len({keys_of([token] * 4)[0] for token in variants}) == len(variants)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([1.0, 2.0], r"tokens must be int\[N\], got float64\[2\]"),
        ([[1, 2]], r"tokens must be int\[N\], got int64\[1, 2\]"),
        ([True], r"tokens must be int\[N\], got bool\[1\]"),
        (np.array([2**63, 1], np.uint64), r"tokens must fit int64, got 9223372036854775808"),
        ([2**64], r"tokens must be int\[N\], got object\[1\]"),
    ],
)
def test_tokens_that_are_no_integers_are_refused(tokens: Any, message: str) -> None:
    """Anything but a vector of 64-bit integers is refused, never rounded or wrapped."""
    with pytest.raises(ArrayError, match=message):
        keys_of(tokens)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"page_rows": 0}, "page_rows must be at least 1, got 0"),
        ({"rank": 2, "world_size": 2}, "rank 2 is outside 0 to world_size 2 - 1"),
        ({"rank": -1}, "rank -1 is outside"),
        ({"parent": b"short"}, "parent must be a page key of 32 bytes, got b'short'"),
        ({"parent": "x" * 32}, "parent must be a page key of 32 bytes"),
        ({"salt": 1.5}, "salt must be text, bytes, a whole number or None, got 1.5"),
        ({"lora": True}, "lora must be text, bytes, a whole number or None, got True"),
    ],
)
def test_parts_without_meaning_are_refused(parts: dict[str, Any], message: str) -> None:
    """A part that could be confused with another value is refused by name."""
    with pytest.raises(SettingError, match=message):
        keys_of(range(8), **parts)


def test_keys_are_equal_across_processes() -> None:
    """Processes with other hash seeds make the same keys, and a stored key stays what it is."""
    code = (
        "from hisparse.layout import RowFormat, page_keys\n"
        "keys = page_keys([1, -2, 2**40, 4], 2, model='m', revision=None, dtype='bfloat16',"
        " row_format=RowFormat.dense('bfloat16', 576), lora='é', salt=b'x')\n"
        "print(keys[-1].hex())"
    )
    found = set()
    for seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True)
        found.add(done.stdout.strip())
    assert found == {"89f32b6455cd88c71b166f1091334f0a06a1d175adc588de4350871e14094b3d"}
