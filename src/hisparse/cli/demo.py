"""``hisparse demo``: long prompts decoded three ways, and a second question from stored rows, compared and counted."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hisparse.cli.failures import CHECK_FAILED
from hisparse.cli.feed import MetricsFeed
from hisparse.cli.options import (
    HOST_POOL,
    LOOPBACK,
    MAX_COUNT,
    MAX_PORT,
    METRICS_PORT_HELP,
    HotSlots,
    Json,
    MetricsHost,
    MetricsLinger,
    Model,
    PrefillChunk,
)
from hisparse.cli.progress import count_forwards, forward_bar
from hisparse.cli.prompts import cut_prompts
from hisparse.config.cache import DISK_PREFIX
from hisparse.data import Document, long_documents, tiny_dsa_path
from hisparse.data.documents import DOCUMENT_MODULES
from hisparse.errors import StorageError

CONTEXT_HELP = "Prompt tokens of all requests; the first gets two shares."


def demo(  # noqa: PLR0913  (each argument is an option of the command)
    *,
    model: Model = None,
    requests: Annotated[
        int, typer.Option("--requests", min=1, max=len(DOCUMENT_MODULES), help="Prompts, one after another.")
    ] = 7,
    context_tokens: Annotated[int, typer.Option("--context-tokens", min=2, max=MAX_COUNT, help=CONTEXT_HELP)] = 16_384,
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", min=2, max=MAX_COUNT, help="Tokens to decode for each request.")
    ] = 16,
    hot_slots: HotSlots = None,
    host_pool: Annotated[str | None, HOST_POOL] = None,
    prefill_chunk: PrefillChunk = 512,
    metrics_port: Annotated[int, typer.Option("--metrics-port", min=0, max=MAX_PORT, help=METRICS_PORT_HELP)] = 0,
    metrics_host: MetricsHost = LOOPBACK,
    metrics_linger: MetricsLinger = 0,
    as_json: Json = False,
) -> None:
    """Decode long prompts with the stock cache, a resident cache and HiSparse, and compare them.

    Then ask about the last one again, from the rows that the host pool kept and recomputed.

    The host pool is on disk, in a fresh directory that is removed afterwards, unless --host-pool says otherwise.
    Exits with 1 if tokens differ, counts do not add up or a recount fails.
    """
    settings = DemoSettings(
        folder=tiny_dsa_path() if model is None else model,
        documents=long_documents(requests),
        context_tokens=context_tokens,
        new_tokens=new_tokens,
        hot_slots=hot_slots,
        prefill_chunk=prefill_chunk,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        metrics_linger=metrics_linger,
    )
    with _pool(host_pool) as pool:
        failures = _run(settings, pool, as_json=as_json)
    for failure in failures:
        typer.echo(f"check failed: {failure}", err=True)
    if failures:
        raise typer.Exit(CHECK_FAILED)


@dataclass(frozen=True)
class DemoSettings:
    """What the options say, without where the pool is and how to print."""

    folder: Path
    documents: tuple[Document, ...]
    context_tokens: int
    new_tokens: int
    hot_slots: int | None
    prefill_chunk: int
    metrics_port: int
    metrics_host: str
    metrics_linger: int


def _run(settings: DemoSettings, host_pool: str, *, as_json: bool) -> tuple[str, ...]:
    """Load, compare, print; returns what failed."""
    stderr = Console(stderr=True)
    with stderr.status("loading torch and the model"):
        # torch and transformers take seconds to import, and --help must not wait for them.
        from hisparse.cli.comparison import Run, compare  # noqa: PLC0415  (imports torch: --help must not wait)
        from hisparse.cli.models import load_model  # noqa: PLC0415  (imports torch: --help must not wait)
        from hisparse.cli.report import print_comparison, to_json  # noqa: PLC0415  (imports torch: --help must not wait)
        from hisparse.cli.second_question import QUESTION  # noqa: PLC0415  (imports torch: --help must not wait)

        loaded = load_model(
            settings.folder, dtype="float32", device="cpu", hot_slots=settings.hot_slots, host_pool=host_pool
        )
    prompts = cut_prompts(settings.documents, loaded.tokenize, settings.context_tokens)
    longest = max(len(prompt.tokens) for prompt in prompts)
    loaded.check_length(longest, settings.new_tokens, knobs="lower --context-tokens or --new-tokens")
    total = count_forwards(prompts, prefill_chunk=settings.prefill_chunk, new_tokens=settings.new_tokens)
    question = tuple(loaded.tokenize(QUESTION))
    with MetricsFeed(loaded.name, settings.metrics_port, settings.metrics_host) as feed:
        with forward_bar(stderr, loaded.model, total) as bar:
            stderr.print(f"metrics while this runs: {feed.url}", highlight=False, soft_wrap=True)
            run = Run(settings.new_tokens, settings.prefill_chunk, feed.pipeline, bar.show_stage, question)
            comparison = compare(loaded, prompts, run)
        if as_json:
            typer.echo(json.dumps(to_json(loaded, comparison)))
        else:
            print_comparison(Console(), loaded, comparison)
        feed.linger(settings.metrics_linger)
    return comparison.failures


@contextmanager
def _pool(host_pool: str | None) -> Iterator[str]:
    """The pool asked for, or a fresh directory on disk that is removed at the end."""
    if host_pool is not None:
        yield host_pool
        return
    try:
        folder = tempfile.TemporaryDirectory(prefix="hisparse-demo-", ignore_cleanup_errors=True)
    except OSError as error:
        raise StorageError(f"no temporary directory for the host pool: {error} (TMPDIR, or --host-pool)") from error
    with folder as name:
        yield f"{DISK_PREFIX}{name}"
