"""Row formats, page arithmetic and page keys: the units every layer above counts in."""

from hisparse.layout.keys import PageKey, page_keys
from hisparse.layout.pages import pages_for, rows_of
from hisparse.layout.rows import RowFormat

__all__ = ["PageKey", "RowFormat", "page_keys", "pages_for", "rows_of"]
