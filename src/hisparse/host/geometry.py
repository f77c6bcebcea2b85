"""The shape of a pool: pages, rows, layers, and where each layer lies in a file."""

from collections.abc import Sequence
from dataclasses import dataclass

from hisparse.errors import SettingError
from hisparse.layout import RowFormat

ALIGNMENT_BYTES = 4096
_MAX_PAGES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of a pool.

    Attributes:
        pages: Pages in the pool; page ids are int32.
        page_rows: Rows in a page.
        row_bytes: Bytes of one row, for each layer.
    """

    pages: int
    page_rows: int
    row_bytes: tuple[int, ...]

    @classmethod
    def of(cls, pages: int, page_rows: int, layers: Sequence[RowFormat]) -> "Geometry":
        """Return the geometry of `pages` pages over rows of the given formats.

        Raises:
            SettingError: A number is below one, there is no layer, or page ids would not fit int32.
        """
        if not 1 <= pages <= _MAX_PAGES:
            raise SettingError(
                f"a host pool has 1 to {_MAX_PAGES} pages, got {pages}; change host_pool_bytes or page_rows"
            )
        if page_rows < 1:
            raise SettingError(f"page_rows must be at least 1, got {page_rows}")
        if not layers:
            raise SettingError("a host pool needs the row format of at least 1 layer, got none")
        return cls(pages, page_rows, tuple(layer.row_bytes for layer in layers))

    @property
    def rows(self) -> int:
        """Rows of one layer."""
        return self.pages * self.page_rows

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        return self.page_rows * sum(self.row_bytes)

    @property
    def capacity_bytes(self) -> int:
        """Bytes of all rows of all layers."""
        return self.pages * self.page_bytes

    def region_offsets(self, start: int) -> tuple[int, ...]:
        """Where each layer's rows begin in a file whose header ends at `start`, and where the file ends.

        Every region begins on an operating-system page, so no two layers share one.
        """
        offsets = [_aligned(start)]
        for row_bytes in self.row_bytes:
            offsets.append(_aligned(offsets[-1] + self.rows * row_bytes))
        return tuple(offsets)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
