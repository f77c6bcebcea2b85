"""Row formats and page arithmetic: the units every layer above counts in."""

from hisparse.layout.pages import pages_for, rows_of
from hisparse.layout.rows import RowFormat

__all__ = ["RowFormat", "pages_for", "rows_of"]
