"""Settings of one tiered cache."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hisparse.errors import HotBufferError, SettingError

DISK_PREFIX = "disk:"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """How one cache divides a model's KV rows between the device and the host.

    Attributes:
        hot_slots: Rows of one request and layer kept in the hot buffer; ``None`` means twice the model's top-k.
        host_pool: ``"ram"`` or ``"disk:DIR"``, where the other rows are.
        host_pool_bytes: Size limit of the host pool; ``None`` sizes it for `max_positions` of every request.
        max_positions: Tokens one request may reach; reserved in the pool before it starts.  ``None`` means
            what the pool holds, at most the model's ``max_position_embeddings``.
        page_rows: Rows in a page, the unit of the host pool.
        order: Recency order of the hot buffer, ``"stack"`` or ``"vllm"``.
        backend: Residency backend, ``"numba"`` or ``"reference"``.
        link_bytes_per_second: Speed of copies from the host pool to the device, for telemetry; ``None`` means
            that it is measured once where the pool is in memory, and unknown where it is on disk.
    """

    hot_slots: int | None = None
    host_pool: str = "ram"
    host_pool_bytes: int | None = None
    max_positions: int | None = None
    page_rows: int = 64
    order: Literal["stack", "vllm"] = "stack"
    backend: str = "numba"
    link_bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that have no meaning, naming the setting.

        Raises:
            SettingError: A value is of the wrong type or outside its range.
        """
        for name in ("hot_slots", "host_pool_bytes", "max_positions", "page_rows"):
            value = getattr(self, name)
            if value is None and name != "page_rows":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SettingError(f"{name} must be a positive whole number, got {value!r}")
        is_text = isinstance(self.host_pool, str)
        if self.host_pool != "ram" and not (is_text and self.host_pool.startswith(DISK_PREFIX)):
            raise SettingError(f'host_pool must be "ram" or "disk:DIR", got {self.host_pool!r}')
        if not self.host_pool.removeprefix(DISK_PREFIX).strip():
            raise SettingError('host_pool must be "ram" or "disk:DIR", got an empty directory name')
        _check_speed(self.link_bytes_per_second)
        _check_directory(self.host_pool.removeprefix(DISK_PREFIX))
        if self.order not in ("stack", "vllm"):
            raise SettingError(f'order must be "stack" or "vllm", got {self.order!r}')

    def slots_for(self, top_k: int) -> int:
        """Return the hot slots of one request and layer for a model that selects `top_k` rows a step.

        Raises:
            HotBufferError: `hot_slots` is smaller than `top_k`.
        """
        slots = 2 * top_k if self.hot_slots is None else self.hot_slots
        if slots < top_k:
            raise HotBufferError(
                f"hot_slots is {slots}, expected at least {top_k}, the rows the model selects in one step"
            )
        return slots


def _check_speed(value: float | None) -> None:
    """Refuse what is no speed.

    Raises:
        SettingError: It is no positive finite number.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and 0 < value < math.inf):
        raise SettingError(f"link_bytes_per_second must be a positive number of bytes, got {value!r}")


def _check_directory(name: str) -> None:
    """Refuse a name that no directory can have.

    Raises:
        SettingError: It holds a NUL, can't be encoded, or begins with the home of a user who does not exist.
    """
    try:
        if b"\0" in os.fsencode(name):
            raise SettingError(f"host_pool must name a directory, got {name!r}, which holds a NUL")
        Path(name).expanduser()
    except (UnicodeError, RuntimeError) as error:
        raise SettingError(f"host_pool must name a directory, got {name!r}: {error}") from error
