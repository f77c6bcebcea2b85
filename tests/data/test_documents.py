"""Long documents from the running Python."""

import importlib.util
from types import SimpleNamespace

import pytest

from hisparse.data import long_documents
from hisparse.data.documents import DOCUMENT_MODULES
from hisparse.errors import SettingError, StorageError


def test_every_document_is_long_and_named() -> None:
    """Each document is at least 25,000 characters of the module that it is named after."""
    documents = long_documents(len(DOCUMENT_MODULES))
    assert [document.name for document in documents] == list(DOCUMENT_MODULES)
    assert min(len(document.text) for document in documents) >= 25_000
    assert "ArgumentParser" in documents[0].text


def test_two_calls_agree() -> None:
    """Documents are the same in every call of one Python."""
    assert long_documents(3) == long_documents(4)[:3]


@pytest.mark.parametrize("count", [-1, len(DOCUMENT_MODULES) + 1])
def test_count_out_of_range_is_refused(count: int) -> None:
    """A count outside the list is refused with the limit."""
    with pytest.raises(SettingError, match=rf"0 to {len(DOCUMENT_MODULES)} documents, got {count}"):
        long_documents(count)


@pytest.mark.parametrize("outcome", [None, OSError("source gone")])
def test_python_without_sources_is_said(outcome: OSError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python of compiled files only gives one sentence with the way out."""

    def get_source(_name: str) -> None:
        if outcome is not None:
            raise outcome

    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda _name: SimpleNamespace(loader=SimpleNamespace(get_source=get_source)),
    )
    with pytest.raises(StorageError, match=r"no source text of its module 'argparse'.*--prompt-file"):
        long_documents(1)
