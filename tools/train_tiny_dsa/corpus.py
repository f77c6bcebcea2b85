"""Which texts are learned, and which are held out to measure on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_EVERY = 25
HELD_OUT_PHASE = 7

SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "lib2to3", "pydoc_data"}
)
"""Folders of a standard library that hold tables, test data or other people's code."""


@dataclass(frozen=True)
class Corpus:
    """Texts to learn from and texts that training never sees."""

    training: tuple[str, ...]
    held_out: tuple[str, ...]


def read_corpus(folders: Sequence[Path]) -> Corpus:
    """Read every ``.txt``, ``.rst`` and ``.py`` file under the folders; every 25th is held out. Reads only.

    Files are taken in sorted order, so that the split depends on nothing but their names.

    Raises:
        ValueError: a folder does not exist, or too few files were found to hold one out.
    """
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"corpus folder {folder} does not exist")
    texts = [text for folder in folders for text in _texts(folder)]
    held_out = tuple(text for i, text in enumerate(texts) if i % HELD_OUT_EVERY == HELD_OUT_PHASE)
    training = tuple(text for i, text in enumerate(texts) if i % HELD_OUT_EVERY != HELD_OUT_PHASE)
    if not held_out:
        raise ValueError(f"a corpus needs at least {HELD_OUT_PHASE + 1} readable texts, found {len(texts)}")
    return Corpus(training, held_out)


def _texts(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.suffix not in {".txt", ".rst", ".py"} or SKIPPED_FOLDERS & set(inside.parts[:-1]):
            continue
        if "changelog" in inside.name or not path.is_file():
            continue
        try:
            yield path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
