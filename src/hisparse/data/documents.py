"""Long documents, taken from the running Python instead of being shipped.

The small model was trained on the standard library, so modules of the standard library are what it continues
best. Their text differs a little between Python versions and is fixed within one.
"""

import importlib.util
from dataclasses import dataclass

from hisparse.errors import SettingError, StorageError

DOCUMENT_MODULES = (
    "argparse",
    "typing",
    "subprocess",
    "logging",
    "enum",
    "statistics",
    "tempfile",
    "functools",
)
"""Modules in the order in which `long_documents` hands them out; each is over 25,000 characters long."""


@dataclass(frozen=True)
class Document:
    """One text and where it came from."""

    name: str
    text: str


def long_documents(count: int) -> tuple[Document, ...]:
    """The sources of the first `count` modules of `DOCUMENT_MODULES`. Reads only; imports none of them.

    Args:
        count: how many documents, 0 to ``len(DOCUMENT_MODULES)``.

    Raises:
        SettingError: `count` is out of range.
        StorageError: this Python has no source text for a module (an installation of compiled files only).
    """
    if not 0 <= count <= len(DOCUMENT_MODULES):
        raise SettingError(f"count must be 0 to {len(DOCUMENT_MODULES)} documents, got {count}")
    return tuple(Document(name, _source_of(name)) for name in DOCUMENT_MODULES[:count])


def _source_of(module: str) -> str:
    spec = importlib.util.find_spec(module)
    get_source = getattr(spec.loader if spec else None, "get_source", None)
    try:
        text = get_source(module) if get_source else None
    except OSError:
        text = None
    if not text:
        raise StorageError(
            f"this Python has no source text of its module {module!r}, which serves as a document; "
            "use a Python with its .py files, or bring your own text (--prompt-file)"
        )
    return str(text)
