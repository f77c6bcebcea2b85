"""Options that more than one command has, and the ranges of all of them, defined once."""

from pathlib import Path
from typing import Annotated

import typer

MAX_COUNT = 2**31 - 1
"""Of tokens, positions and slots: they are int32 wherever rows are looked up."""
MAX_PORT = 65_535
MAX_SEED = 2**64 - 1
MAX_LINGER = 86_400
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.001, 1000.0
"""Sampling divides logits by it: a smaller one can overflow float32, a larger one makes all tokens alike."""


def check_temperature(value: float) -> float:
    """Return `value` if it is 0 or in range; anything else, also nan, is refused with the range."""
    if value == 0.0 or MIN_TEMPERATURE <= value <= MAX_TEMPERATURE:
        return value
    raise typer.BadParameter(f"must be 0 (greedy) or {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}, got {value:g}")


Model = Annotated[
    Path | None, typer.Option("--model", metavar="DIR", help="Model folder; the small shipped model by default.")
]
HotSlots = Annotated[
    int | None,
    typer.Option(
        "--hot-slots", help="Rows of one request and layer in the hot buffer; twice the model's top-k by default."
    ),
]
PrefillChunk = Annotated[
    int, typer.Option("--prefill-chunk", min=1, max=MAX_COUNT, help="Prompt tokens in one forward pass.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]

HOST_POOL = typer.Option("--host-pool", metavar="ram|disk:DIR", help="Where the rows that are not hot are kept.")
METRICS_PORT_HELP = "Serve Prometheus metrics on this port while the command runs; 0 takes a free one."
MetricsLinger = Annotated[
    int,
    typer.Option(
        "--metrics-linger",
        metavar="SECONDS",
        min=0,
        max=MAX_LINGER,
        help="Go on serving the last counts for so long before the command ends.",
    ),
]
LOOPBACK = "127.0.0.1"
MetricsHost = Annotated[
    str,
    typer.Option(
        "--metrics-host",
        metavar="ADDRESS",
        help="Where to serve them: this machine only, unless others shall read them.",
    ),
]
