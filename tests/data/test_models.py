"""The shipped model folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hisparse.data import models, tiny_dsa_path
from hisparse.errors import StorageError


def test_folder_is_complete() -> None:
    """The shipped folder holds every model file and the model card."""
    folder = tiny_dsa_path()
    assert folder.is_absolute()
    assert {path.name for path in folder.iterdir()} == {*models.MODEL_FILES, "MODEL_CARD.md"}


def test_weights_match_the_geometry_of_the_card() -> None:
    """The safetensors header names 9.6 M bfloat16 parameters, and the config gives rows of 576 elements."""
    folder = tiny_dsa_path()
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    assert {entry["dtype"] for entry in tensors} == {"BF16"}
    parameters = sum((entry["data_offsets"][1] - entry["data_offsets"][0]) // 2 for entry in tensors)
    assert round(parameters / 1e6, 1) == 9.6
    config = json.loads((folder / "config.json").read_text())
    assert config["kv_lora_rank"] + config["qk_rope_head_dim"] == 576
    assert config["index_topk"] == 128


def test_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without weights is an error that names the missing file."""
    (tmp_path / "tiny_dsa").mkdir()
    for name in models.MODEL_FILES:
        if name != "model.safetensors":
            (tmp_path / "tiny_dsa" / name).touch()
    monkeypatch.setattr(models, "files", lambda _package: tmp_path)
    with pytest.raises(StorageError, match=r"lacks model\.safetensors; install hisparse again"):
        tiny_dsa_path()


def test_import_stays_light() -> None:
    """Importing the package data and locating the model loads neither torch nor transformers."""
    code = (
        "import sys, hisparse.data; hisparse.data.tiny_dsa_path(); hisparse.data.long_documents(1); "
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
