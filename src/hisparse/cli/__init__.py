"""The command line: ``hisparse demo`` and ``hisparse generate``.

One module a command (`demo`, `generate`) over modules that neither print nor exit: `models` loads, `decoding` runs one
request, `comparison` runs the three ways of caching, `counts` holds what a cache counted. torch and transformers are
imported when a command runs, so that ``--help`` does not wait for them.
"""

from hisparse.cli.app import app, main

__all__ = ["app", "main"]
