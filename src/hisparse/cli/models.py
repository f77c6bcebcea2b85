"""Loading a model folder, with a sentence for everything that can be wrong with it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from hisparse.config.cache import DISK_PREFIX
from hisparse.errors import SettingError
from hisparse.host import HostPool
from hisparse.integrations.transformers import HiSparseCache
from hisparse.layout import RowFormat
from hisparse.telemetry import TelemetryPipeline

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to decode, its tokenizer, and how its caches are set up."""

    name: str
    model: Any
    tokenizer: Any
    hot_slots: int
    host_pool: str

    @property
    def top_k(self) -> int:
        """Rows that one query selects."""
        return int(self.model.config.get_text_config(decoder=True).index_topk)

    @property
    def max_positions(self) -> int:
        """Tokens that one request may reach."""
        return int(self.model.config.get_text_config(decoder=True).max_position_embeddings)

    def open_cache(self, max_positions: int, telemetry: TelemetryPipeline) -> HiSparseCache:
        """A fresh cache for one request of up to `max_positions` tokens, which publishes to `telemetry`."""
        return HiSparseCache(
            self.model.config,
            hot_slots=self.hot_slots,
            host_pool=self.host_pool,
            max_positions=max_positions,
            telemetry=telemetry,
        )

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens added at either end."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def load_model(folder: Path, *, dtype: str, device: str, hot_slots: int | None, host_pool: str) -> LoadedModel:
    """Load a model and its tokenizer; checks all settings before the weights are read.

    Args:
        folder: a folder that ``save_pretrained`` wrote.
        dtype: one of `DTYPES`, or ``"auto"`` for the folder's own.
        device: as torch names it.
        hot_slots: None for twice the model's top-k.
        host_pool: ``"ram"`` or ``"disk:DIR"``.

    Raises:
        SettingError: the folder is no model folder, or a setting has no meaning here.
        UnsupportedModelError: the model has no indexer that can be served.
        HotBufferError: `hot_slots` is smaller than the model's top-k.
        StorageError: the pool's directory cannot be used.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise SettingError(f"dtype must be auto, {', '.join(DTYPES)}, got {dtype!r} (--dtype)")
    place = _device(device)
    config = _config(folder)
    HiSparseCache(config, hot_slots=hot_slots, host_pool=host_pool)  # refuses model and settings; takes no memory
    _try_pool(host_pool)
    _silence_transformers()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES.get(dtype, "auto"))
    except (OSError, ValueError, KeyError) as error:
        raise SettingError(f"{folder} does not load as a model: {_first_line(error)} (--model)") from error
    top_k = config.get_text_config(decoder=True).index_topk
    slots = 2 * top_k if hot_slots is None else hot_slots
    return LoadedModel(folder.resolve().name, model.to(place).eval(), tokenizer, slots, host_pool)


def _config(folder: Path) -> Any:
    if not folder.is_dir():
        raise SettingError(f"model folder {folder} does not exist (--model)")
    if not (folder / "config.json").is_file():
        raise SettingError(f"model folder {folder} has no config.json (--model)")
    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise SettingError(f"{folder / 'config.json'} is not a model config: {_first_line(error)} (--model)") from error


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SettingError(f"device {name!r} cannot be used: {_first_line(error)} (--device)") from error
    return device


def _try_pool(host_pool: str) -> None:
    """Open and close the smallest pool, so that a directory that cannot be used is refused before any work."""
    if host_pool.startswith(DISK_PREFIX):
        HostPool(1, 1, [RowFormat.dense("bfloat16", 8)], host_pool).close()


def _silence_transformers() -> None:
    logs: Any = transformers_logging  # its functions carry no types
    logs.disable_progress_bar()
    logs.set_verbosity_error()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
