"""From exceptions to one sentence on standard error and an exit code."""

from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec

import typer

from hisparse.errors import AccountingError, HiSparseError, SettingError, StateError

CHECK_FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130

ENGINE_PACKAGES = frozenset({"torch", "transformers", "tokenizers", "safetensors"})

Arguments = ParamSpec("Arguments")


def in_sentences(command: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """`command`, with errors of this package as one sentence and an exit code instead of a traceback.

    Bad input and full or unusable storage exit with `BAD_INPUT`, failed checks with `CHECK_FAILED`. Other exceptions
    are faults of this package and keep their traceback.
    """

    @wraps(command)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (AccountingError, StateError) as error:
            _leave(error, CHECK_FAILED)
        except HiSparseError as error:
            _leave(error, BAD_INPUT)
        except ModuleNotFoundError as error:
            if error.name not in ENGINE_PACKAGES:
                raise
            missing = f"this command needs {error.name}: install it with pip install 'hisparse[transformers]'"
            _leave(SettingError(missing), BAD_INPUT)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    return run


def _leave(error: Exception, code: int) -> NoReturn:
    typer.echo(f"error: {' '.join(str(error).split())}", err=True)
    raise typer.Exit(code) from error
