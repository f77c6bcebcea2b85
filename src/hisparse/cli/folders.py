"""Reading a model folder: whatever is wrong with a file of it becomes one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from hisparse.cli.failures import ENGINE_PACKAGES, first_line
from hisparse.cli.options import MAX_COUNT
from hisparse.errors import HiSparseError, SettingError

LOCAL = {"local_files_only": True, "trust_remote_code": False}
"""A folder is complete or refused: nothing is fetched, and no question is asked about code in it."""

TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
SAMPLING: dict[str, tuple[type | tuple[type, ...], float, float]] = {
    "top_k": (int, 0, MAX_COUNT),
    "top_p": ((int, float), 0.0, 1.0),
    "repetition_penalty": ((int, float), 0.01, 100.0),
}
"""Type and range of what a folder may say about sampling."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn anything a library raises while it reads into a `SettingError` that begins with `what`."""
    try:
        yield
    except HiSparseError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in ENGINE_PACKAGES:
            raise
        raise SettingError(f"{what}: {first_line(error)} (--model)") from error


def read_config(folder: Path) -> Any:
    """The model's config; counts that this package reads from it are whole numbers in range.

    Raises:
        SettingError: there is no folder or no config in it, or it is not one.
    """
    file = folder / "config.json"
    with reading(f"model folder {folder} cannot be read"):
        if not folder.is_dir():
            raise SettingError(f"model folder {folder} does not exist (--model)")
        if not file.is_file():
            raise SettingError(f"model folder {folder} has no config.json (--model)")
    with reading(f"{file} is not a model config"):
        config = AutoConfig.from_pretrained(folder, **LOCAL)
        text = config.get_text_config(decoder=True)
    for name in ("index_topk", "max_position_embeddings", "vocab_size", "num_hidden_layers"):
        value = getattr(text, name, 1)
        if not _is_number(value, int) or not 1 <= value <= MAX_COUNT:
            raise SettingError(f"{name} must be a positive whole number, got {value!r} ({file})")
    return config


def read_tokenizer(folder: Path) -> Any:
    """The model's tokenizer.

    Raises:
        SettingError: its files are missing or broken.
    """
    with reading(f"{folder} has no tokenizer that loads"):
        return AutoTokenizer.from_pretrained(folder, **LOCAL)


def read_model(folder: Path, *, dtype: Any) -> Any:
    """The model with every weight its config asks for, on the CPU.

    Raises:
        SettingError: its files are missing or broken, or its weights are not those of its config.
    """
    with reading(f"{folder} does not load as a model"):
        # Typed as a model alone, it is a pair with the report that is asked for.
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **LOCAL
        )
        model, report = loaded
    # transformers fills both kinds with random numbers and decodes nonsense.
    missing = sorted(report["missing_keys"])
    misshapen = sorted(key for key, *_shapes in report["mismatched_keys"])
    for names, fault in ((misshapen, "of another shape"), (missing, "missing")):
        if names:
            raise SettingError(
                f"{folder} has weights that do not fit its config.json: "
                f"{names[0]} is {fault}, as are {len(names) - 1} more (--model)"
            )
    model.generation_config = _generation_config(model.generation_config, folder / "generation_config.json")
    return model


def _generation_config(given: Any, file: Path) -> Any:
    """End tokens and what sampling is confined to; how to search is not the folder's to say.

    Beams, assistants, stop strings and the like need more than one request, model or cache.
    """
    kept: dict[str, Any] = {name: getattr(given, name, None) for name in (*TOKEN_IDS, *SAMPLING)}
    for name in TOKEN_IDS:
        ids = kept[name] if isinstance(kept[name], list) else [kept[name]]
        if not all(one is None or (_is_number(one, int) and abs(one) <= MAX_COUNT) for one in ids):
            raise SettingError(f"{name} must be a token id or a list of them, got {kept[name]!r} ({file})")
    for name, (types, least, most) in SAMPLING.items():
        value = kept[name]
        if value is not None and not (_is_number(value, types) and least <= value <= most):
            kind = "a whole number" if types is int else "a number"
            raise SettingError(f"{name} must be {kind} from {least:g} to {most:,}, got {value!r} ({file})")
    with reading(f"{file} has settings that transformers refuses"):
        config: Any = GenerationConfig
        return config(**kept)


def _is_number(value: Any, types: type | tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)
