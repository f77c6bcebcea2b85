"""From exceptions to one sentence on standard error and an exit code."""

from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec

import typer

from hisparse.errors import AccountingError, CapacityError, HiSparseError, SettingError, StateError

CHECK_FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130
OUTPUT_CUT = 141
"""As a shell reports a process that ended because its reader had gone."""

LINE_CHARACTERS = 300
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
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            full = "memory ran out: shorten the prompt, lower --prefill-chunk or --hot-slots, or use a smaller model"
            _leave(CapacityError(full), BAD_INPUT)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    return run


def first_line(error: BaseException) -> str:
    """What a library says in its first line, or the error's name if it says nothing; at most `LINE_CHARACTERS`.

    A first line that announces others is followed by them.
    """
    text = str(error).strip() or type(error).__name__
    line = text.splitlines()[0]
    if line.endswith(":"):
        line = " ".join(text.split())
    return line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]}..."


def _is_out_of_memory(error: Exception) -> bool:
    """Whether it is Python's, or one of torch's: a class of its own for devices, a plain error for the CPU."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or "allocate memory" in str(error)


def _leave(error: Exception, code: int) -> NoReturn:
    typer.echo(f"error: {' '.join(str(error).split())}", err=True)
    raise typer.Exit(code) from error
