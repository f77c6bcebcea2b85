"""What is missing is said before anything fails for the lack of it."""

from importlib.metadata import PackageNotFoundError

import pytest

from hisparse.integrations.transformers import requirements


def installed(versions: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine have only these packages."""

    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(requirements, "version", version)


@pytest.mark.parametrize("release", ["5.18.0", "5.24.0", "5.100.1", "6.0.0.dev0"])
def test_newer_releases_are_taken(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest supported release and every later one pass."""
    installed({"torch": "2.13.0+cpu", "transformers": release}, monkeypatch)
    requirements.check_requirements()


@pytest.mark.parametrize("release", ["5.17.9", "5.9.0", "4.57.6"])
def test_an_older_release_is_named(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that is too old is named with the one that is needed."""
    installed({"torch": "2.13.0", "transformers": release}, monkeypatch)
    with pytest.raises(ImportError, match=f"transformers {release} is installed, at least 5.18 is needed"):
        requirements.check_requirements()


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_a_missing_package_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is not there is named with the command that installs it."""
    present = {"torch": "2.13.0", "transformers": "5.24.0"}
    del present[missing]
    installed(present, monkeypatch)
    with pytest.raises(ImportError, match=rf"{missing} is not installed.*hisparse\[transformers\]"):
        requirements.check_requirements()
