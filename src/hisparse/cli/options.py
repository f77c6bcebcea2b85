"""Options that more than one command has, defined once."""

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    Path | None, typer.Option("--model", metavar="DIR", help="Model folder; the small shipped model by default.")
]
HotSlots = Annotated[
    int | None,
    typer.Option(
        "--hot-slots", help="Rows of one request and layer in the hot buffer; twice the model's top-k by default."
    ),
]
PrefillChunk = Annotated[int, typer.Option("--prefill-chunk", min=1, help="Prompt tokens in one forward pass.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]

HOST_POOL = typer.Option("--host-pool", metavar="ram|disk:DIR", help="Where the rows that are not hot are kept.")
METRICS_PORT_HELP = "Serve Prometheus metrics on this loopback port while the command runs; 0 takes a free one."
MAX_PORT = 65_535
