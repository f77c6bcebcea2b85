"""Shared pieces of the command line's tests."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hisparse.cli import app


@pytest.fixture
def run_cli() -> Callable[..., Result]:
    """Run the command line in this process."""

    def run(*arguments: str | Path, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)

    return run
