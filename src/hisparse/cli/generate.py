"""``hisparse generate``: continue one prompt from a hot buffer, and say what that cost."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hisparse.cli.counts import CacheCounts
from hisparse.cli.feed import MetricsFeed
from hisparse.cli.options import (
    HOST_POOL,
    LOOPBACK,
    MAX_COUNT,
    MAX_PORT,
    MAX_SEED,
    METRICS_PORT_HELP,
    HotSlots,
    Json,
    MetricsHost,
    MetricsLinger,
    Model,
    PrefillChunk,
    check_temperature,
)
from hisparse.cli.prompts import read_prompt
from hisparse.cli.text import TextStream
from hisparse.data import tiny_dsa_path
from hisparse.telemetry import TelemetryPipeline

if TYPE_CHECKING:
    from hisparse.cli.decoding import Decoded
    from hisparse.cli.models import LoadedModel

GIB = 1 << 30


def generate(  # noqa: PLR0913  (each argument is an option of the command)
    *,
    model: Model = None,
    prompt: Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help="Text to continue.")] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option("--prompt-file", metavar="FILE", allow_dash=True, help="File to continue; - is standard input."),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, max=MAX_COUNT, help="Tokens to decode at most.")
    ] = 128,
    hot_slots: HotSlots = None,
    host_pool: Annotated[str, HOST_POOL] = "ram",
    device: Annotated[str, typer.Option("--device", help="Where the model runs, as torch names it.")] = "cpu",
    dtype: Annotated[str, typer.Option("--dtype", help="auto (as stored), float32, bfloat16 or float16.")] = "auto",
    prefill_chunk: PrefillChunk = 512,
    temperature: Annotated[
        float,
        typer.Option("--temperature", callback=check_temperature, help="Sample at this temperature; 0 is greedy."),
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED, help="Of the sampling.")] = 0,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", min=0, max=MAX_PORT, help=METRICS_PORT_HELP)
    ] = None,
    metrics_host: MetricsHost = LOOPBACK,
    metrics_linger: MetricsLinger = 0,
    as_json: Json = False,
) -> None:
    """Continue a prompt with the KV cache on the host, printing text as it comes and a summary at the end."""
    if metrics_linger and metrics_port is None:
        raise typer.BadParameter("serves nothing without --metrics-port", param_hint="--metrics-linger")
    text = read_prompt(prompt, prompt_file)
    # torch and transformers take seconds to import, and --help must not wait for them.
    from hisparse.cli.models import load_model  # noqa: PLC0415  (imports torch: --help must not wait)

    folder = tiny_dsa_path() if model is None else model
    loaded = load_model(folder, dtype=dtype, device=device, hot_slots=hot_slots, host_pool=host_pool)
    sampling = Sampling(max_new_tokens, prefill_chunk, temperature, seed)
    with MetricsFeed(loaded.name, metrics_port, metrics_host) as feed:
        if feed.url is not None:
            typer.echo(f"metrics while this runs: {feed.url}", err=True)
        result = _continue(loaded, text, sampling, telemetry=feed.pipeline, show=_drop if as_json else _show)
        typer.echo(json.dumps(result.to_json(loaded)) if as_json else f"\n{result.summary()}")
        feed.linger(metrics_linger)


@dataclass(frozen=True)
class Sampling:
    """How far and how freely to continue."""

    max_new_tokens: int
    prefill_chunk: int
    temperature: float
    seed: int

    def to_generate(self) -> dict[str, Any]:
        """Arguments of ``generate``."""
        sampled = {"do_sample": True, "temperature": self.temperature} if self.temperature else {"do_sample": False}
        return {"max_new_tokens": self.max_new_tokens, "prefill_chunk_size": self.prefill_chunk, **sampled}


@dataclass(frozen=True)
class Generated:
    """One continued prompt and what its cache counted."""

    text: str
    prompt_tokens: int
    decoded: "Decoded"
    counts: CacheCounts

    @property
    def tokens_per_second(self) -> float:
        """Decode steps a second, the prefill left out; 0.0 of a single token."""
        seconds = sum(self.decoded.step_seconds)
        return len(self.decoded.step_seconds) / seconds if seconds else 0.0

    def summary(self) -> str:
        """One line for people."""
        counts = self.counts
        return (
            f"{len(self.decoded.tokens)} tokens after {self.prompt_tokens:,}, {self.tokens_per_second:.1f} tokens/s, "
            f"hit ratio {counts.selections.hit_ratio:.3f}, {counts.host_to_device_bytes:,} bytes fetched, "
            f"device KV {counts.device_kv_bytes / GIB:.4f} GiB"
        )

    def to_json(self, loaded: "LoadedModel") -> dict[str, Any]:
        """Everything measured, as plain numbers."""
        counts = self.counts
        return {
            "model": loaded.name,
            "text": self.text,
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": len(self.decoded.tokens),
            "prefill_seconds": self.decoded.prefill_seconds,
            "tokens_per_second": self.tokens_per_second,
            "hot_slots": loaded.hot_slots,
            "top_k": loaded.top_k,
            "hit_ratio": counts.selections.hit_ratio,
            "selections": vars(counts.selections),
            "host_to_device_bytes": counts.host_to_device_bytes,
            "device_kv_bytes": counts.device_kv_bytes,
            "layers": [layer.to_dict() for layer in counts.layers],
        }


def _continue(
    loaded: "LoadedModel", text: str, sampling: Sampling, *, telemetry: TelemetryPipeline, show: Callable[[str], None]
) -> Generated:
    """Decode until the end token or the limit; the cache is recounted before it is closed.

    Raises:
        SettingError: prompt and limit are more than the model can address.
        AccountingError: the recount failed.
    """
    import torch  # noqa: PLC0415  (takes seconds to import, and --help must not wait)

    from hisparse.cli.decoding import decode  # noqa: PLC0415  (same reason)
    from hisparse.integrations.transformers import enable  # noqa: PLC0415  (same reason)

    tokens = loaded.tokenize(text)
    loaded.check_length(len(tokens), sampling.max_new_tokens, knobs="shorten the prompt or lower --max-new-tokens")
    enable(loaded.model)
    torch.manual_seed(sampling.seed)
    cache = loaded.open_cache(len(tokens) + sampling.max_new_tokens, telemetry)
    stream = TextStream(partial(loaded.tokenizer.decode, skip_special_tokens=True), show)
    try:
        decoded = decode(loaded.model, cache, tokens, on_token=stream.add, **sampling.to_generate())
        stream.finish()
        counts = CacheCounts.from_stats(cache.stats())
        cache.check()
    finally:
        cache.close()
    return Generated(stream.text, len(tokens), decoded, counts)


def _show(piece: str) -> None:
    typer.echo(piece, nl=False)


def _drop(_piece: str) -> None:
    """Show nothing: standard output belongs to the JSON object."""
