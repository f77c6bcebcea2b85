"""Where a pool keeps its rows, as settings write it."""

from pathlib import Path

import pytest

from hisparse.errors import SettingError
from hisparse.host.place import OPTIONS, Place


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("ram", Place()),
        ("disk:/a/b", Place(Path("/a/b"))),
        ("disk:ram", Place(Path("ram"))),
        ("disk:a?persist", Place(Path("a"), persist=True)),
        ("disk:a?persist&fsync", Place(Path("a"), persist=True, fsync=True)),
        ("disk:a?untrusted&persist&replace", Place(Path("a"), persist=True, replace=True, untrusted=True)),
        ("disk:a?b?persist", Place(Path("a?b"), persist=True)),
        ("disk:a?b?", Place(Path("a?b"))),
        ("disk:a?", Place(Path("a"))),
        ("disk:~", Place(Path.home())),
    ],
)
def test_a_place_is_read_as_written(text: str, place: Place) -> None:
    """Memory, a directory, and options after the last question mark, in any order."""
    assert Place.parse(text) == place


@pytest.mark.parametrize("text", ["", "disk", "disk:", "tape:/x", "disk:?persist", "ram?persist", "tape:/x?persist"])
def test_other_forms_are_refused(text: str) -> None:
    """What is neither memory nor a directory is refused with the two forms and what was given."""
    with pytest.raises(SettingError, match=r'^storage must be "ram" or "disk:DIR", got ') as raised:
        Place.parse(text)
    assert str(raised.value).endswith(repr(text))


@pytest.mark.parametrize("option", ["persit", "persist&", "&persist", "Persist", "persist=1", "persist,fsync", "/b"])
def test_unknown_options_are_refused_with_the_known_ones(option: str) -> None:
    """A misspelt option is no directory: the message has the setting, the option and all that are known."""
    with pytest.raises(
        SettingError, match=r"has the option .*, expected persist, fsync, replace, untrusted; if the name"
    ):
        Place.parse(f"disk:a?{option}")


@pytest.mark.parametrize("option", OPTIONS[1:])
def test_options_of_kept_files_need_persist(option: str) -> None:
    """An option that means nothing without ``persist`` is refused by name."""
    with pytest.raises(SettingError, match=f"^{option} means nothing .*; add persist$"):
        Place.parse(f"disk:a?{option}")
