"""Where the shipped model lies."""

from importlib.resources import files
from pathlib import Path

from hisparse.errors import StorageError

MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
"""What a complete model folder holds, its card aside."""


def tiny_dsa_path() -> Path:
    """Folder of the shipped small model, ready for ``from_pretrained``. Reads only.

    Returns:
        An absolute path with `MODEL_FILES` and ``MODEL_CARD.md`` in it.

    Raises:
        StorageError: a file is missing, or the package is imported from an archive (engines need real files).
    """
    folder = Path(str(files("hisparse.data") / "tiny_dsa")).resolve()
    missing = [name for name in MODEL_FILES if not (folder / name).is_file()]
    if missing:
        raise StorageError(
            f"the shipped model in {folder} lacks {', '.join(missing)}; "
            "install hisparse again, as files rather than as an archive"
        )
    return folder
