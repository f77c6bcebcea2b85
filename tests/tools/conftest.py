"""Makes the repository's tools importable: they are scripts beside the package, not a part of it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
