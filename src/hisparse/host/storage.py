"""Where the rows of a pool are: what every storage does, and the one in memory."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hisparse.errors import ArrayError, StateError, StorageError
from hisparse.host.geometry import Geometry
from hisparse.kernels import gather_rows, map_memory
from hisparse.layout import PageKey

Rows = NDArray[np.uint8]
Pages = NDArray[np.int32]
Allocate = Callable[[int], Rows]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a start found in a file that an earlier process left.

    Attributes:
        path: The file.
        pages: Pages that can be found by key again.
        seconds: Time to read and order their entries; rows are read when they are first asked for.
        ignored: Content that was not taken, by reason. For the whole file, counted once: ``foreign``,
            ``version``, ``damaged``, ``identity``, ``geometry``, ``truncated``. Entries: ``torn``,
            ``superseded`` (their key was published again) and ``orphaned`` (a page before them is gone). Since
            then, pages: ``altered``, whose rows were not what was published, ``unreadable``, whose rows the disk
            does not give, and ``unwritten``, which could not be kept.
    """

    path: Path
    pages: int
    seconds: float
    ignored: Counter[str] = field(default_factory=Counter)


class Storage(Protocol):
    """Rows of every layer, by pool row number.

    Callers pass row numbers that lie in the pool: the pool checks them, since it also knows who holds them.
    """

    geometry: Geometry
    recovery: Recovery | None

    def rows(self, layer: int) -> Rows:
        """uint8 ``[R, row_bytes]``: all rows of a layer, without a copy."""

    def ensure(self, pages: int) -> None:
        """Make room for pages 0 to `pages` - 1.

        Raises:
            DiskFullError: There is none; nothing was changed.
        """

    def check_room(self, pages: int) -> None:
        """Refuse if `ensure` of that many pages could not succeed now.  Reads only.

        Raises:
            DiskFullError: There is no such room.
        """

    def write(self, layer: int, rows: NDArray[np.int64], data: Rows) -> None:
        """Store data ``[M, row_bytes]`` as the given rows ``[M]``; a later one of equal rows wins."""

    def gather(
        self, layer: int, rows: NDArray[np.int64], out: Rows, *, out_rows: NDArray[np.integer] | None = None
    ) -> int:
        """Copy rows ``[M]`` to ``out`` (at `out_rows` where given); returns the bytes copied."""

    def publish(self, pages: Pages, keys: Sequence[PageKey], *, parents: Sequence[PageKey | None]) -> None:
        """Keep the rows of pages for a later process, where the storage outlives this one.

        Args:
            pages: int32 ``[P]``, each once, full and not to be written while a request or key leads to them.
            keys: The key of each.
            parents: The key of the page before each; None where a chain begins.
        """

    def recovered(self) -> list[tuple[list[PageKey], Pages]]:
        """Return the chains of keys and pages that an earlier process left, the newest last.  Reads only."""

    @property
    def in_doubt(self) -> bool:
        """Whether there are pages of an earlier process that nobody has proven, or that are not what they were."""

    def sound(self, pages: Pages) -> int:
        """Return how many of the first pages have rows that can be served; reads those of an earlier process."""

    def close(self) -> None:
        """Give the room back; later calls raise StateError, except `close`."""


class PassingStorage:
    """What a storage does about pages to be kept when it ends with its process: nothing."""

    recovery: Recovery | None = None

    def publish(self, pages: Pages, keys: Sequence[PageKey], *, parents: Sequence[PageKey | None]) -> None:
        """Keep nothing."""

    def recovered(self) -> list[tuple[list[PageKey], Pages]]:
        """Return nothing: there was no earlier process."""
        return []

    @property
    def in_doubt(self) -> bool:
        """No page is: this process wrote them all."""
        return False

    def sound(self, pages: Pages) -> int:
        """Return the number of pages: this process wrote them."""
        return len(pages)


class RamStorage(PassingStorage):
    """Rows in memory, one array per layer.

    Private anonymous mappings: page-aligned, zero, and costing no memory until a row is written.
    """

    def __init__(self, geometry: Geometry, allocate: Allocate | None = None) -> None:
        """Map, or let `allocate` provide, one array of rows per layer.

        Args:
            geometry: Pages, rows and layers.
            allocate: Called once per layer with the bytes needed; returns a writable uint8 array of at least
                that size, for example of pinned memory.

        Raises:
            StorageError: The memory cannot be mapped.
            ArrayError: `allocate` returned something else.
        """
        self.geometry = geometry
        self._arrays: tuple[Rows, ...] = tuple(
            _shaped(allocate or _map_memory, geometry.rows, row_bytes) for row_bytes in geometry.row_bytes
        )

    def rows(self, layer: int) -> Rows:
        """uint8 ``[R, row_bytes]``: all rows of a layer, writable."""
        if not self._arrays:
            raise StateError("the host pool is closed")
        return self._arrays[layer]

    def ensure(self, pages: int) -> None:  # noqa: ARG002  memory is mapped in full when the pool is made
        """Nothing to do.  Reads only."""
        self.rows(0)

    def check_room(self, pages: int) -> None:  # noqa: ARG002  memory is mapped in full when the pool is made
        """Nothing to refuse.  Reads only."""
        self.rows(0)

    def write(self, layer: int, rows: NDArray[np.int64], data: Rows) -> None:
        """Store data ``[M, row_bytes]`` as the given rows."""
        self.rows(layer)[rows] = data

    def gather(
        self, layer: int, rows: NDArray[np.int64], out: Rows, *, out_rows: NDArray[np.integer] | None = None
    ) -> int:
        """Copy rows to ``out``; returns the bytes copied."""
        return gather_rows(self.rows(layer), rows, out, out_rows=out_rows)

    def close(self) -> None:
        """Let the arrays go."""
        self._arrays = ()


def _map_memory(num_bytes: int) -> Rows:
    try:
        return map_memory(num_bytes)
    except (OSError, OverflowError, ValueError) as error:
        raise StorageError(
            f"cannot map {num_bytes} B of memory for one layer of the host pool: {error}; "
            'lower host_pool_bytes or use "disk:DIR"'
        ) from error


def _shaped(allocate: Allocate, num_rows: int, row_bytes: int) -> Rows:
    num_bytes = num_rows * row_bytes
    array = allocate(num_bytes)
    fits = array.dtype == np.uint8 and array.size >= num_bytes
    if not fits or not array.flags.c_contiguous or not array.flags.writeable:
        raise ArrayError(
            f"allocate must return writable contiguous uint8[{num_bytes}], got {array.dtype}{list(array.shape)}"
        )
    return array.reshape(-1)[:num_bytes].reshape(num_rows, row_bytes)
