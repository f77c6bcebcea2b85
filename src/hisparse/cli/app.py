"""The application: its commands, its version, and what becomes of errors."""

from typing import Annotated

import typer

from hisparse import __version__
from hisparse.cli.demo import demo
from hisparse.cli.failures import in_sentences
from hisparse.cli.generate import generate
from hisparse.cli.output import guarded_output

app = typer.Typer(
    name="hisparse",
    help="KV cache of sparse-attention models in host memory or on disk: same tokens, every byte counted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command(epilog="Example: hisparse demo --new-tokens 16 --host-pool ram")(in_sentences(demo))
app.command(epilog="Example: hisparse generate --prompt 'class Cache:' --max-new-tokens 64 --host-pool disk:/tmp")(
    in_sentences(generate)
)


def _print_version(is_asked: bool) -> None:  # noqa: FBT001  (typer calls it with the option's value)
    if is_asked:
        typer.echo(f"hisparse {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """KV cache of sparse-attention models in host memory or on disk: same tokens, every byte counted."""


def main() -> None:
    """Run the command line; exits with 0, 1 (a check failed), 2 (bad input), 130 or 141 (interrupted, output cut)."""
    with guarded_output():
        app()
