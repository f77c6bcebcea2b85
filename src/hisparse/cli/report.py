"""What the demo found out: one JSON object, or tables for people."""

from typing import Any

from rich.console import Console
from rich.table import Table

from hisparse.cli.comparison import VARIANTS, Comparison
from hisparse.cli.counts import OUTCOMES
from hisparse.cli.models import LoadedModel
from hisparse.cli.second_question import SecondQuestion

GIB = 1 << 30
TITLES = {"stock": "stock cache", "resident_absorbed": "resident, absorbed", "hisparse": "HiSparse"}


def to_json(loaded: LoadedModel, comparison: Comparison) -> dict[str, Any]:
    """Everything measured, as plain numbers; tokens, bytes and selections are sums over requests."""
    counts = comparison.counts
    return {
        "tokens_identical": comparison.is_identical,
        "model": loaded.name,
        "requests": len(comparison.requests),
        "context_tokens": sum(len(request.prompt.tokens) for request in comparison.requests),
        "new_tokens": sum(len(request.hisparse.decoded.tokens) for request in comparison.requests),
        "hot_slots": loaded.hot_slots,
        "top_k": loaded.top_k,
        "hit_ratio": counts.selections.hit_ratio,
        "selections": {name: getattr(counts.selections, name) for name in OUTCOMES},
        "host_to_device_bytes": counts.host_to_device_bytes,
        "device_kv_bytes": comparison.device_kv_bytes("hisparse"),
        "stock_kv_bytes": comparison.device_kv_bytes("stock"),
        "step_seconds": {variant: comparison.step_seconds(variant) for variant in VARIANTS},
        "layers": [layer.to_dict() for layer in counts.layers],
        "second_question": None if comparison.second is None else comparison.second.to_dict(),
    }


_CAVEAT = """The stock cache expands its whole history every step. Compare HiSparse with the resident cache: every row
on the device (with room to grow), only the selected ones read. Times vary with the machine's load."""


def print_comparison(console: Console, loaded: LoadedModel, comparison: Comparison) -> None:
    """Print texts, then the three ways side by side, then where the rows came from."""
    for request in comparison.requests:
        text = loaded.tokenizer.decode(request.hisparse.decoded.tokens)
        console.print(f"[bold]{request.prompt.name}[/] after {len(request.prompt.tokens):,} tokens:", highlight=False)
        console.print(text.strip("\n"), style="dim", markup=False, highlight=False)
    console.print("The model is tiny and repeats itself; what matters is that all three decode the same.", style="dim")
    console.print(_variants_table(comparison))
    console.print(_CAVEAT, style="dim", highlight=False)
    console.print(_layers_table(comparison))
    selections = comparison.counts.selections
    outcomes = ", ".join(f"{name} {getattr(selections, name):,}" for name in OUTCOMES)
    console.print(f"selections: {outcomes}; total {selections.total:,}", highlight=False)
    console.print(f"hit ratio {selections.hit_ratio:.3f} with {loaded.hot_slots} hot slots for top-{loaded.top_k}")
    copied = comparison.counts.host_to_device_bytes
    console.print(f"copied from the host: {copied:,} bytes ({copied / GIB:.3f} GiB)", highlight=False)
    if comparison.second is not None:
        console.print(_second_sentence(comparison.second), highlight=False)
    console.print(f"tokens identical: {'yes' if comparison.is_identical else 'NO'}", style="bold")


def _second_sentence(second: SecondQuestion) -> str:
    recomputed, restored = second.recomputed.prefill_seconds, second.restored.prefill_seconds
    return (
        f"second question about {second.name}: {second.restored_tokens:,} of {second.context_tokens:,} tokens came "
        f"from the host pool; first token after {restored:.3f} s, recomputed {recomputed:.3f} s "
        f"({recomputed / restored:.1f} x)"
    )


def _variants_table(comparison: Comparison) -> Table:
    table = Table(title=f"{len(comparison.requests)} requests, decoded three ways in one run", title_justify="left")
    table.add_column("cache")
    table.add_column("median step, ms", justify="right")
    table.add_column("device KV, GiB", justify="right")
    table.add_column("of stock", justify="right")
    stock_bytes = comparison.device_kv_bytes("stock")
    for variant in VARIANTS:
        held = comparison.device_kv_bytes(variant)
        step = f"{comparison.step_seconds(variant) * 1e3:.1f}"
        table.add_row(TITLES[variant], step, f"{held / GIB:.4f}", f"{held / stock_bytes:.2f}")
    return table


def _layers_table(comparison: Comparison) -> Table:
    table = Table(title="HiSparse, layer by layer", title_justify="left")
    for name in ("layer", "group", "hit ratio", *OUTCOMES, "bytes copied"):
        table.add_column(name, justify="right")
    for layer in comparison.counts.layers:
        outcomes = [f"{getattr(layer.selections, name):,}" for name in OUTCOMES]
        table.add_row(
            str(layer.layer),
            str(layer.group),
            f"{layer.selections.hit_ratio:.3f}",
            *outcomes,
            f"{layer.copied_bytes:,}",
        )
    return table
