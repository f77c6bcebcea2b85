"""Loading a model folder, with a sentence for everything that can be wrong with it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from hisparse.cli.failures import first_line
from hisparse.cli.folders import read_config, read_model, read_tokenizer, reading
from hisparse.config.cache import DISK_PREFIX
from hisparse.errors import SettingError
from hisparse.host import HostPool
from hisparse.integrations.transformers import HiSparseCache
from hisparse.kernels.backend import MAX_HOT_SLOTS
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
        """Token ids of a text, without special tokens added at either end.

        Raises:
            SettingError: there are none, or the model has no embedding for one of them.
        """
        with reading("the tokenizer fails"):
            tokens = list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        if not tokens:
            raise SettingError(f"the tokenizer finds no token in a prompt of {len(text):,} characters")
        embeddings = self.model.get_input_embeddings().weight.shape[0]
        if max(tokens) >= embeddings:
            raise SettingError(
                f"the tokenizer gives token {max(tokens):,}, the model has {embeddings:,}: "
                "they do not belong together (--model)"
            )
        return tokens

    def check_length(self, prompt_tokens: int, new_tokens: int, *, knobs: str) -> None:
        """Refuse a request that is longer than the model's positions; `knobs` says what to do about it.

        Raises:
            SettingError: it is.
        """
        needed = prompt_tokens + new_tokens
        if needed > self.max_positions:
            raise SettingError(
                f"prompt and new tokens need {needed:,} positions, the model has {self.max_positions:,}: {knobs}"
            )


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
    config = read_config(folder)
    if hot_slots is not None and hot_slots > MAX_HOT_SLOTS:
        raise SettingError(f"hot_slots is {hot_slots:,}, expected at most {MAX_HOT_SLOTS:,} (--hot-slots)")
    HiSparseCache(config, hot_slots=hot_slots, host_pool=host_pool)  # refuses model and settings; takes no memory
    _try_pool(host_pool)
    _silence_transformers()
    tokenizer = read_tokenizer(folder)
    model = read_model(folder, dtype=DTYPES.get(dtype, "auto"))
    with reading(f"{folder} cannot be moved to {device}"):
        model = model.to(place).eval()
    top_k = config.get_text_config(decoder=True).index_topk
    slots = 2 * top_k if hot_slots is None else hot_slots
    return LoadedModel(folder.resolve().name, model, tokenizer, slots, host_pool)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()  # some devices take tensors and give none back
    except Exception as error:  # torch has no one class for this: each device fails in its own way
        raise SettingError(f"device {name!r} cannot be used: {first_line(error)} (--device)") from error
    return device


def _try_pool(host_pool: str) -> None:
    """Open and close the smallest pool, so that a directory that cannot be used is refused before any work."""
    if host_pool.startswith(DISK_PREFIX):
        HostPool(1, 1, [RowFormat.dense("bfloat16", 8)], host_pool).close()


def _silence_transformers() -> None:
    logs: Any = transformers_logging  # its functions carry no types
    logs.disable_progress_bar()
    logs.set_verbosity_error()
