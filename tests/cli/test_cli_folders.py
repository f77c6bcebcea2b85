"""Model folders with something wrong in one file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from hisparse.cli.folders import read_model, reading
from hisparse.cli.models import LoadedModel
from hisparse.data import tiny_dsa_path
from hisparse.errors import SettingError, StorageError

DEEP = b"[" * 100_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The shipped model, file by file linked."""
    for file in tiny_dsa_path().iterdir():
        (tmp_path / file.name).symlink_to(file)
    return tmp_path


def put(folder: Path, name: str, content: bytes | None) -> None:
    """Replace one file, by nothing if `content` is None."""
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)


def put_json(folder: Path, name: str, **changes: object) -> None:
    """Change keys of one JSON file."""
    put(folder, name, json.dumps(json.loads((tiny_dsa_path() / name).read_text()) | changes).encode())


def refusal(result: Result) -> str:
    """The one sentence of a run that was refused."""
    assert result.exit_code == 2, result.exception
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"null", b"[1, 2]", DEEP, "half", None])
@pytest.mark.parametrize(
    "place",
    [
        ("config.json", "config.json"),
        ("tokenizer.json", "has no tokenizer that loads"),
        ("model.safetensors", "does not load as a model"),
    ],
)
def test_broken_file_is_one_sentence(
    run_cli: Callable[..., Result], folder: Path, place: tuple[str, str], content: bytes | str | None
) -> None:
    """Whatever a file holds instead of what it should, and whatever a library raises for it, it is said once."""
    name, sentence = place
    whole = (tiny_dsa_path() / name).read_bytes()
    put(folder, name, whole[: len(whole) // 2] if isinstance(content, str) else content)
    said = refusal(run_cli("generate", "--model", folder, "--prompt", "x"))
    assert sentence in said
    assert "--model" in said


@pytest.mark.parametrize("value", [0, -1, 1.5, "many", None, True, 10**30])
@pytest.mark.parametrize("name", ["index_topk", "max_position_embeddings", "num_hidden_layers"])
def test_config_without_a_count_names_it(
    run_cli: Callable[..., Result], folder: Path, name: str, value: object
) -> None:
    """A count of the config that is none is refused by the config's own name for it."""
    put_json(folder, "config.json", **{name: value})
    said = refusal(run_cli("generate", "--model", folder, "--prompt", "x"))
    assert name in said or "layer" in said
    assert "config.json" in said


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    """Weights that do not fit the config are refused with the first of them, not replaced by random numbers."""
    put_json(folder, "config.json", intermediate_size=100)
    with pytest.raises(SettingError, match=r"model\.layers\.0\.mlp\.\S+ is of another shape, as are \d+ more"):
        read_model(folder, dtype="auto")


def test_missing_weights_are_refused(folder: Path) -> None:
    """Weights under another name are missing ones, and refused as well."""
    whole = (tiny_dsa_path() / "model.safetensors").read_bytes()
    put(folder, "model.safetensors", whole.replace(b"self_attn.kv_b_proj", b"self_attn.kv_c_proj"))
    with pytest.raises(SettingError, match=r"self_attn\.kv_b_proj\.weight is missing, as are 5 more"):
        read_model(folder, dtype="auto")


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"eos_token_id": "end"}, "eos_token_id must be a token id or a list of them, got 'end'"),
        ({"pad_token_id": 10**30}, "pad_token_id must be a token id"),
        ({"top_k": 1.5}, "top_k must be a whole number"),
        ({"top_p": 2.0}, "top_p must be a number from 0 to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a number from 0.01"),
    ],
)
def test_sampling_settings_are_checked(folder: Path, setting: dict[str, object], sentence: str) -> None:
    """What a folder says about tokens and sampling is refused before anything is decoded."""
    put_json(folder, "generation_config.json", **setting)
    with pytest.raises(SettingError, match=sentence):
        read_model(folder, dtype="auto")


def test_only_tokens_and_sampling_come_from_the_folder(folder: Path) -> None:
    """End tokens and filters are taken over; beams, stop strings and assistants are not."""
    given = {"eos_token_id": [3, 5], "top_k": 7, "num_beams": 4, "stop_strings": ["x"], "assistant_early_exit": 2}
    put_json(folder, "generation_config.json", **given)
    config = read_model(folder, dtype="auto").generation_config
    assert (config.eos_token_id, config.top_k) == ([3, 5], 7)
    assert [config.num_beams, config.stop_strings, config.assistant_early_exit] == [None] * 3


class Embeddings:
    """A model with ten embeddings and 20 positions."""

    def __init__(self) -> None:
        self.weight = type("Weight", (), {"shape": (10, 4)})()
        self.max_position_embeddings = 20
        self.config = self

    def get_input_embeddings(self) -> "Embeddings":
        """Itself."""
        return self

    def get_text_config(self, **_which: object) -> "Embeddings":
        """Itself."""
        return self


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [([], "finds no token in a prompt of 4 characters"), ([3, 10], "gives token 10, the model has 10")],
)
def test_tokenizer_of_another_model_is_refused(tokens: list[int], sentence: str) -> None:
    """A tokenizer that gives nothing, or a token without an embedding, is refused before the model runs."""

    def tokenizer(_text: str, **_settings: Any) -> dict[str, list[int]]:
        return {"input_ids": tokens}

    loaded = LoadedModel("ten", Embeddings(), tokenizer, hot_slots=1, host_pool="ram")
    with pytest.raises(SettingError, match=sentence):
        loaded.tokenize("text")


def test_length_is_limited_by_positions() -> None:
    """A request may fill the model's positions and not exceed them."""
    loaded = LoadedModel("ten", Embeddings(), None, hot_slots=1, host_pool="ram")
    loaded.check_length(12, 8, knobs="do less")
    with pytest.raises(SettingError, match="need 21 positions, the model has 20: do less"):
        loaded.check_length(13, 8, knobs="do less")


def test_own_errors_and_missing_packages_pass() -> None:
    """Errors that have a sentence keep it, and a missing engine is not blamed on the folder."""
    for error in (StorageError("full"), ModuleNotFoundError("no", name="torch")):
        with pytest.raises(type(error)) as caught, reading("a folder"):
            raise error
        assert caught.value is error
