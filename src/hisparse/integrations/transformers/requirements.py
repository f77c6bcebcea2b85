"""What must be installed, said in a sentence before anything fails for the lack of it."""

from importlib.metadata import PackageNotFoundError, version

OLDEST_TRANSFORMERS = (5, 18)
"""The first release whose caches keep index keys and whose attention passes the selection on."""


def check_requirements() -> None:
    """Refuse to be imported without torch, or with a transformers that is missing or too old; reads only.

    Raises:
        ImportError: Names what is missing and the command that installs it.
    """
    found = {}
    for name in ("torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            message = f"{name} is not installed; install it with: pip install 'hisparse[transformers]'"
            raise ImportError(message) from None
    release = found["transformers"].split(".")[:2]
    if tuple(int(part) for part in release if part.isdigit()) < OLDEST_TRANSFORMERS:
        oldest = ".".join(map(str, OLDEST_TRANSFORMERS))
        raise ImportError(
            f"transformers {found['transformers']} is installed, at least {oldest} is needed; "
            "install it with: pip install -U 'hisparse[transformers]'"
        )
