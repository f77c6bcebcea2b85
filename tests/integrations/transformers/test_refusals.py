"""A wrong call is refused with a sentence, before anything is done, and the cache stays usable."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo

from hisparse.errors import (
    DiskFullError,
    HiSparseError,
    HostPoolFullError,
    HotBufferError,
    PositionError,
    SettingError,
    StateError,
    StorageError,
)
from hisparse.integrations.transformers import HiSparseCache, ResidentCache, enable

SHORT = 20


def assert_still_serves(shelf: Any, model: Any, case: zoo.ModelCase, *, cache: HiSparseCache, length: int) -> None:
    """Assert that a cache that refused recounts right and, after a reset, decodes a prompt of `length` tokens."""
    cache.check()
    cache.reset()
    cache.check()
    given = zoo.prompt(case, 1, length=length)
    sequences = zoo.generate(model, given, cache=cache, max_new_tokens=SHORT)
    assert torch.equal(sequences, zoo.generate(shelf.stock(case), given, max_new_tokens=SHORT))
    cache.check()


def test_hot_buffer_smaller_than_a_selection(v32: zoo.ModelCase) -> None:
    """A hot buffer that can't hold one selection is refused with both numbers and the knob."""
    with pytest.raises(HotBufferError, match=rf"hot_slots.*{zoo.TOP_K - 1}.*{zoo.TOP_K}"):
        HiSparseCache(zoo.build(v32).config, hot_slots=zoo.TOP_K - 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hot_slots", 0),
        ("hot_slots", 32.0),
        ("max_positions", -1),
        ("page_rows", 0),
        ("host_pool_bytes", 0),
        ("host_pool", "tape"),
        ("host_pool", "disk:"),
        ("order", "fifo"),
        ("backend", "cobol"),
    ],
)
def test_settings_without_a_meaning(v32: zoo.ModelCase, name: str, value: Any) -> None:
    """A setting of the wrong kind or range is refused by its name when the cache is made."""
    with pytest.raises(SettingError, match=name):
        HiSparseCache(zoo.build(v32).config, **{name: value})


def test_attention_mode_without_a_meaning(v32: zoo.ModelCase) -> None:
    """An unknown attention mode is refused with the three that exist."""
    with pytest.raises(SettingError, match=r"auto.*absorbed.*expand.*dense"):
        enable(zoo.build(v32), attention="dense")  # type: ignore[arg-type] # the wrong value is the test


def test_prompt_beyond_capacity(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """A prompt longer than `max_positions` is refused before any of it is kept."""
    model = shelf.served(case)
    cache = make_cache(model, max_positions=128)
    with pytest.raises(PositionError, match=r"128|64"):
        zoo.generate(model, zoo.prompt(case, 3), cache=cache, max_new_tokens=SHORT)
    assert cache.stats()["host_to_device_bytes"] == 0
    assert_still_serves(shelf, model, case, cache=cache, length=100)


def test_decoding_beyond_capacity(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """A step beyond `max_positions` is refused with the limit and the knob, and the counts stay right."""
    model = shelf.served(case)
    cache = make_cache(model, max_positions=case.context + 10)
    with pytest.raises(PositionError, match="max_positions"):
        zoo.generate(model, zoo.prompt(case, 1), cache=cache, max_new_tokens=30)
    assert_still_serves(shelf, model, case, cache=cache, length=200)


def test_exactly_at_capacity(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """The last position that `max_positions` allows is served."""
    model = shelf.served(case)
    cache = make_cache(model, max_positions=case.context + SHORT - 1)
    sequences = zoo.generate(model, zoo.prompt(case, 1), cache=cache, max_new_tokens=SHORT)
    assert torch.equal(sequences, shelf.reference(case, 1, max_new_tokens=SHORT))


@pytest.mark.parametrize("storage", ["ram", "disk"])
def test_pool_too_small_for_the_batch(
    shelf: Any, make_cache: Any, case: zoo.ModelCase, *, storage: str, tmp_path: Path
) -> None:
    """A pool without room for the batch refuses it before it starts, naming pages and knob; one request fits."""
    model = shelf.served(case)
    tokens_per_row = 2 if case.name == "deepseek_v4" else 1
    elements = case.row_elements * sum(len(group) for group in case.groups)
    if case.model_type not in ("deepseek_v4", "dots3_note_text"):
        elements += int(case.settings["index_head_dim"]) * len(case.groups)  # their prefixes can be restored
    room = (320 // tokens_per_row) * elements * 4
    host_pool = "ram" if storage == "ram" else f"disk:{tmp_path}"
    cache = make_cache(model, host_pool=host_pool, host_pool_bytes=room, max_positions=256)
    with pytest.raises(HostPoolFullError, match=r"pages.*host_pool_bytes"):
        zoo.generate(model, zoo.prompt(case, 3, length=200), cache=cache, max_new_tokens=SHORT)
    assert not any(tmp_path.iterdir())
    assert_still_serves(shelf, model, case, cache=cache, length=200)


@pytest.mark.parametrize("case", zoo.CASES + zoo.STOCK_FIRST, ids=lambda case: case.name)
def test_a_refused_prompt_leaves_no_token(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """After a refused batch the cache is empty: a shorter, smaller one is served without a reset."""
    model = shelf.served(case)
    cache = make_cache(model, max_positions=128)
    with pytest.raises(PositionError):
        zoo.generate(model, zoo.prompt(case, 3), cache=cache, max_new_tokens=SHORT)
    assert cache.get_seq_length() == 0
    given = zoo.prompt(case, 1, length=100)
    sequences = zoo.generate(model, given, cache=cache, max_new_tokens=SHORT)
    assert torch.equal(sequences, zoo.generate(shelf.stock(case), given, max_new_tokens=SHORT))


@pytest.mark.parametrize("place", ["under a file", "/proc/hisparse"])
def test_unwritable_directory(v32: zoo.ModelCase, shelf: Any, tmp_path: Path, place: str) -> None:
    """A pool directory that can't be made is refused with its path, before any token is kept."""
    (tmp_path / "file").write_text("not a directory")
    directory = str(tmp_path / "file" / "pool") if place == "under a file" else place
    model = shelf.served(v32)
    cache = HiSparseCache(model.config, host_pool=f"disk:{directory}")
    with pytest.raises(StorageError, match=directory):
        zoo.generate(model, zoo.prompt(v32, 1), cache=cache, max_new_tokens=SHORT)
    cache.check()
    assert cache.get_seq_length() == 0
    cache.close()


def test_full_disk(v32: zoo.ModelCase, shelf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with no room is refused with its size before any token is kept, and its directory stays empty."""
    real = os.statvfs

    def full(place: Any) -> Any:
        found = real(place)
        return os.statvfs_result([*found[:3], 0, 0, *found[5:]])

    monkeypatch.setattr(os, "statvfs", full)
    monkeypatch.setattr(os, "fstatvfs", full)
    model = shelf.served(v32)
    cache = HiSparseCache(model.config, host_pool=f"disk:{tmp_path}")
    with pytest.raises(DiskFullError):
        zoo.generate(model, zoo.prompt(v32, 1), cache=cache, max_new_tokens=SHORT)
    cache.check()
    assert cache.get_seq_length() == 0
    assert not any(tmp_path.iterdir())
    cache.close()


def test_model_that_was_not_enabled(shelf: Any, make_cache: Any, case: zoo.ModelCase) -> None:
    """A cache given to a stock model says that `enable` is missing, and serves an enabled one afterwards."""
    cache = make_cache(shelf.stock(case))
    with pytest.raises(StateError, match="enable"):
        zoo.generate(shelf.stock(case), zoo.prompt(case, 1), cache=cache, max_new_tokens=SHORT)
    assert_still_serves(shelf, shelf.served(case), case, cache=cache, length=200)


@pytest.mark.parametrize("make", [HiSparseCache, ResidentCache])
def test_attention_changed_after_enabling(mla_case: zoo.ModelCase, make: Any) -> None:
    """A model set back to stock attention by hand can't read the cache, and is told so, not served wrongly."""
    model = zoo.build(mla_case)
    enable(model, self_check=False)
    model.set_attn_implementation(mla_case.backend)
    cache = make(model.config)
    with pytest.raises(StateError, match="enable"):
        zoo.generate(model, zoo.prompt(mla_case, 1), cache=cache, max_new_tokens=SHORT)


def test_attention_set_by_name(v32: zoo.ModelCase, make_cache: Any) -> None:
    """Setting our attention by its name instead of enabling is refused with what to call instead."""
    enabled = zoo.build(v32)
    enable(enabled, self_check=False)
    name = enabled.config._attn_implementation
    model = zoo.build(v32)
    model.set_attn_implementation(name)
    with pytest.raises(StateError, match="enable"):
        zoo.generate(model, zoo.prompt(v32, 1), cache=make_cache(model), max_new_tokens=SHORT)


def test_cache_of_another_model(shelf: Any) -> None:
    """A cache made for other row widths or other layers is refused with a sentence of ours."""
    v32, foreign = zoo.BY_NAME["deepseek_v32"], zoo.BY_NAME["glm_moe_dsa-FSSF"]
    for config in (
        zoo.build(v32, kv_lora_rank=16).config,
        shelf.stock(foreign).config,
    ):
        cache = HiSparseCache(config)
        with pytest.raises(HiSparseError):
            zoo.generate(shelf.served(v32), zoo.prompt(v32, 1), cache=cache, max_new_tokens=SHORT)
        cache.close()


def test_another_batch_without_a_reset(shelf: Any, make_cache: Any, v32: zoo.ModelCase) -> None:
    """Rows of another batch size are refused with the way out, and the rows already there stay."""
    model = shelf.served(v32)
    cache = make_cache(model)
    zoo.generate(model, zoo.prompt(v32, 1), cache=cache, max_new_tokens=SHORT)
    held = cache.get_seq_length()
    ids = zoo.prompt(v32, 3, length=1).ids
    with pytest.raises(HiSparseError, match="reset"), torch.no_grad():
        model(input_ids=ids, use_cache=True, **zoo.cache_argument(model, cache))
    assert cache.get_seq_length() == held
    cache.check()


def test_a_closed_cache(shelf: Any, v32: zoo.ModelCase) -> None:
    """A closed cache says that it is closed; closing it again is harmless."""
    model = shelf.served(v32)
    cache = HiSparseCache(model.config)
    cache.close()
    cache.close()
    with pytest.raises(StateError, match="closed"):
        zoo.generate(model, zoo.prompt(v32, 1), cache=cache, max_new_tokens=SHORT)


@pytest.mark.parametrize("tokens", [1, -500])
def test_crop_out_of_range(shelf: Any, make_cache: Any, v32: zoo.ModelCase, tokens: int) -> None:
    """Cropping more than is held, or by a positive number, is refused and removes nothing."""
    model = shelf.served(v32)
    cache = make_cache(model)
    zoo.generate(model, zoo.prompt(v32, 1), cache=cache, max_new_tokens=SHORT)
    held = cache.get_seq_length()
    with pytest.raises(HiSparseError):
        cache.crop(tokens)
    assert cache.get_seq_length() == held
    cache.check()
