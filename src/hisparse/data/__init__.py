"""What ships with the package: a small trained model, and long documents to prompt it with.

- `tiny_dsa_path`: folder of a 9.6 M parameter model of the DeepSeek-V3.2 architecture, with its model card.
- `long_documents`: texts like those it was trained on, read from the running Python's standard library.

Nothing here imports torch: the files are loaded by whoever has an engine for them.
"""

from hisparse.data.documents import Document, long_documents
from hisparse.data.models import tiny_dsa_path

__all__ = ["Document", "long_documents", "tiny_dsa_path"]
