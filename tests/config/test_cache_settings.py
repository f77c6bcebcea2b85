"""Settings are checked where they are made, each by its name."""

import dataclasses
from typing import Any

import pytest

from hisparse.config import CacheSettings
from hisparse.errors import HotBufferError, SettingError


def test_defaults_are_valid() -> None:
    """Nothing has to be set; the hot buffer is then twice a selection."""
    settings = CacheSettings()
    assert (settings.host_pool, settings.page_rows, settings.order) == ("ram", 64, "stack")
    assert settings.slots_for(2048) == 4096


@pytest.mark.parametrize("name", ["hot_slots", "host_pool_bytes", "max_positions", "page_rows"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "64", True])
def test_a_number_must_be_a_positive_whole_one(name: str, value: Any) -> None:
    """Zero, negative numbers, fractions, text and truth values are refused by the setting's name and value."""
    with pytest.raises(SettingError, match=f"{name} must be a positive whole number, got {value!r}"):
        CacheSettings(**{name: value})


@pytest.mark.parametrize("name", ["hot_slots", "host_pool_bytes", "max_positions"])
def test_none_leaves_a_number_to_the_model(name: str) -> None:
    """A size that is not set is None, which page_rows can't be."""
    assert getattr(CacheSettings(**{name: None}), name) is None
    with pytest.raises(SettingError, match="page_rows must be a positive whole number, got None"):
        CacheSettings(page_rows=None)  # type: ignore[arg-type] # the wrong value is the test


@pytest.mark.parametrize("place", ["tape", "", "disk", "Disk:/here", "disk:", "disk:  ", None, 7])
def test_a_place_must_be_memory_or_a_directory(place: Any) -> None:
    """Any other place for the pool is refused with the two forms there are."""
    with pytest.raises(SettingError, match='host_pool must be "ram" or "disk:DIR", got'):
        CacheSettings(host_pool=place)


@pytest.mark.parametrize("place", ["ram", "disk:here", "disk:/some/where", "disk:ram"])
def test_a_place_is_kept_as_it_was_given(place: str) -> None:
    """Memory and directories are accepted, with nothing created yet."""
    assert CacheSettings(host_pool=place).host_pool == place


@pytest.mark.parametrize("order", ["fifo", "", None])
def test_an_unknown_order_is_refused(order: Any) -> None:
    """A recency order is one of two."""
    with pytest.raises(SettingError, match='order must be "stack" or "vllm", got'):
        CacheSettings(order=order)


def test_a_hot_buffer_holds_at_least_one_selection() -> None:
    """As many slots as a selection are enough; one less is refused with both numbers."""
    assert CacheSettings(hot_slots=16).slots_for(16) == 16
    with pytest.raises(HotBufferError, match="hot_slots is 15, expected at least 16"):
        CacheSettings(hot_slots=15).slots_for(16)


def test_settings_do_not_change() -> None:
    """Settings are fixed once made, and only named ones are taken."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        CacheSettings().page_rows = 1  # type: ignore[misc] # assigning is the test
    with pytest.raises(TypeError):
        CacheSettings(16)  # type: ignore[misc] # a bare number is the test


@pytest.mark.parametrize("speed", [0, -1.0, float("inf"), float("nan"), True, "fast"])
def test_a_speed_must_be_a_positive_number(speed: Any) -> None:
    """What is no finite positive number is no speed of a link."""
    with pytest.raises(SettingError, match="link_bytes_per_second must be a positive number of bytes, got"):
        CacheSettings(link_bytes_per_second=speed)
    assert CacheSettings(link_bytes_per_second=5e9).link_bytes_per_second == 5e9
