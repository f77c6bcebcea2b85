"""The application: help, version, laziness, and what becomes of errors."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from hisparse import __version__
from hisparse.cli import app
from hisparse.cli.failures import in_sentences
from hisparse.errors import AccountingError, HostPoolFullError, SettingError, StateError, StorageError


def test_version_is_printed(run_cli: Callable[..., Result]) -> None:
    """``--version`` prints the package's version and exits with 0."""
    result = run_cli("--version")
    assert (result.exit_code, result.stdout) == (0, f"hisparse {__version__}\n")


def test_help_lists_every_command(run_cli: Callable[..., Result]) -> None:
    """``--help`` names every command."""
    result = run_cli("--help")
    assert result.exit_code == 0
    assert {command.callback.__name__ for command in app.registered_commands} == {"demo", "generate"}
    assert "demo" in result.stdout
    assert "generate" in result.stdout


@pytest.mark.parametrize("command", ["demo", "generate"])
def test_help_of_a_command_has_an_example(run_cli: Callable[..., Result], command: str) -> None:
    """Each command's help ends with a command line to try."""
    result = run_cli(command, "--help")
    assert result.exit_code == 0
    assert f"Example: hisparse {command}" in result.stdout


def test_help_does_not_import_an_engine() -> None:
    """Importing the command line loads neither torch nor transformers nor numba."""
    code = "import sys, hisparse.cli; print([n for n in ('torch', 'transformers', 'numba') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingError("page_rows must be 64, got 3 (--page-rows)"), 2),
        (HostPoolFullError("needs 9 pages,\n  3 free"), 2),
        (StorageError("cannot use /x"), 2),
        (AccountingError("1 + 1 != 3 pages"), 1),
        (StateError("the cache is closed"), 1),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 2),
        (MemoryError(), 2),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_one_sentence(error: BaseException, code: int) -> None:
    """Each error gives its exit code and one line on standard error, never a traceback."""
    result = CliRunner().invoke(_app_raising(error), [])
    assert result.exit_code == code
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    if not isinstance(error, KeyboardInterrupt):
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1


def test_missing_engine_says_what_to_install() -> None:
    """Without torch the sentence names the extra to install."""
    result = CliRunner().invoke(_app_raising(ModuleNotFoundError("No module named 'torch'", name="torch")), [])
    assert "needs torch: install it with pip install 'hisparse[transformers]'" in result.stderr


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), RuntimeError("x"), ModuleNotFoundError("No module named 'x'", name="x")]
)
def test_faults_keep_their_traceback(error: Exception) -> None:
    """An exception that is not the user's doing is not dressed up as one."""
    result = CliRunner().invoke(_app_raising(error), [])
    assert result.exception is error


def _app_raising(error: BaseException) -> typer.Typer:
    one_command = typer.Typer(pretty_exceptions_enable=False)

    def fail() -> None:
        raise error

    one_command.command()(in_sentences(fail))
    return one_command
