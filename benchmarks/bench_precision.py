"""Logit differences in bfloat16: HiSparse from stock sdpa, against stock eager from stock sdpa, on the same tokens.

Every contender reads one prompt and one fixed continuation, whatever it would have said itself. Rounding that
flips a nearly tied choice, of rows by an indexer or of experts by a router, makes a jump in any pair, also in the
stock one; one run's largest difference is mostly such a jump. So each contender runs twice: with its own
choices, and with the choices of the stock run, which leaves rounding alone.

Architectures without sdpa are compared with their eager attention, and the same weights in float32 stand in for
the second stock backend. The random models are those of the tests; the trained one is shipped.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DeepseekV32Config, DeepseekV32ForCausalLM, DynamicCache
from transformers.utils import logging

import harness
from hisparse.data import long_documents, tiny_dsa_path
from hisparse.integrations.transformers import HiSparseCache, enable

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integrations" / "transformers"))
import zoo
from choices import same_choices
from precision import Subject, random_subject

FAMILIES = ("deepseek_v32", "glm_moe_dsa-FSSF", "axk2", "hy_v4", "dots3_note", "deepseek_v4")
SEEDS, STEPS = 4, 60
TRAINED_PROMPTS, TRAINED_PROMPT_TOKENS, TRAINED_STEPS = 3, 256, 24
LARGE_TOP_K, LARGE_CONTEXT, LARGE_HEADS = 2048, 4096, 16


def random_subjects(name: str, seeds: int, steps: int) -> Iterator[Subject]:
    """Make the models and prompts of one architecture, by seed."""
    for seed in range(seeds):
        yield random_subject(replace(zoo.BY_NAME[name], seed=seed), steps=steps)


def trained_subjects(prompts: int, steps: int) -> Iterator[Subject]:
    """Give the shipped model beginnings of different documents."""
    encode: Callable[[str], Any] = AutoTokenizer.from_pretrained(tiny_dsa_path())
    for document in long_documents(prompts):
        ids = torch.tensor(encode(document.text)["input_ids"])[None, : TRAINED_PROMPT_TOKENS + steps]
        prompt = ids[:, :TRAINED_PROMPT_TOKENS]
        given = zoo.Prompt(prompt, torch.ones_like(prompt))
        model, exact = (
            AutoModelForCausalLM.from_pretrained(tiny_dsa_path(), dtype=dtype).eval()
            for dtype in (torch.bfloat16, torch.float32)
        )
        yield Subject(model, exact, "sdpa", ("absorbed", "expand"), given, ids[:, TRAINED_PROMPT_TOKENS:])


@dataclass(frozen=True)
class Difference:
    """How one contender differs, in every run.

    Attributes:
        free: Logits from the base, float32[N, V] without sign, with its own choices.
        fixed: Likewise, with the choices of the base.
        same: bool[N], whether a step chose as the base did.
        free_errors: Logits from float32's, each with its own choices.
        fixed_errors: Logits from float32's, both with the choices of the base.
    """

    free: list[torch.Tensor]
    fixed: list[torch.Tensor]
    same: list[torch.Tensor]
    free_errors: list[torch.Tensor]
    fixed_errors: list[torch.Tensor]

    def cells(self) -> list[float | str | None]:
        """Return the table's cells."""
        free, fixed, same = torch.cat(self.free), torch.cat(self.fixed), torch.cat(self.same)
        other = 100 * float((~same).float().mean())
        without = float(free[same].max()) if same.any() else None
        figures = (float(fixed.max()), float(fixed.mean()), rms(fixed))
        errors = (rms(torch.cat(self.free_errors)), rms(torch.cat(self.fixed_errors)))
        return [
            _text(float(free.max())),
            _text(float(free.mean())),
            f"{other:.0f} %",
            _text(without),
            *map(_text, figures),
            *map(_text, errors),
        ]


def rms(values: torch.Tensor) -> float:
    """Root of the mean square."""
    return float(values.square().mean().sqrt())


def _text(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"


def compare(subjects: Iterator[Subject]) -> dict[str, Difference]:
    """Measure all subjects; return the difference of every contender from the base, which is the first one."""
    found: dict[str, Difference] = {}
    for subject in subjects:
        runs = subject.measure()
        base = next(iter(runs.values()))
        for name, run in runs.items():
            difference = found.setdefault(name, Difference([], [], [], [], []))
            difference.free.append((run.free - base.free).abs())
            difference.fixed.append((run.fixed - base.fixed).abs())
            difference.same.append(same_choices(run.made, base.made, steps=len(run.free)))
            difference.free_errors.append(run.free - runs["float32"].free)
            difference.fixed_errors.append(run.fixed - runs["float32"].fixed)
    return found


def sentences(name: str, found: dict[str, Difference]) -> list[str]:
    """Say how each mode stands to the stock backends' own difference."""
    _, other, *rest = found
    lines = []
    for mode in (mode for mode in rest if mode.startswith("hisparse")):
        own = [float(values.max()) for values in found[mode].free]
        stock = [float(values.max()) for values in found[other].free]
        within = f"{sum(a <= b for a, b in zip(own, stock, strict=True))} of {len(own)} runs within"
        claim = f"{name}, {mode}, own choices: largest difference / that of {other} ({within})"
        lines.append(harness.goal(claim, max(own) / max(stock), 1.0, at_most=True))
        ratio = rms(torch.cat(found[mode].fixed)) / rms(torch.cat(found[other].fixed))
        lines.append(harness.goal(f"{name}, {mode}, imposed choices: RMS / that of {other}", ratio, 1.0, at_most=True))
    return lines


def precision_report(*, quick: bool) -> harness.Report:
    """Compare all architectures and the trained model."""
    seeds, steps = (1, 24) if quick else (SEEDS, STEPS)
    cases = {name: random_subjects(name, seeds, steps) for name in FAMILIES}
    cases["trained"] = trained_subjects(1 if quick else TRAINED_PROMPTS, TRAINED_STEPS)
    rows, lines = [], []
    for name, subjects in cases.items():
        found = compare(subjects)
        rows.extend([f"{name} {contender}", *difference.cells()] for contender, difference in found.items())
        lines += sentences(name, found)
    columns = ["", "max", "mean", "flips", "max, no flip"]
    columns += ["imposed max", "imposed mean", "imposed RMS", "RMS error", "imposed RMS error"]
    title = (
        "bfloat16, |logit difference| from the first contender, with own and with imposed choices; error from float32"
    )
    return harness.Report(title, columns, rows, lines)


def cost_report(*, quick: bool) -> harness.Report:
    """Time one decode step of one layer of DeepSeek-V3.2's row geometry in every mode."""
    torch.manual_seed(0)
    model = DeepseekV32ForCausalLM(_large_config()).eval().to(torch.bfloat16)
    stock = DynamicCache(config=model.config)
    stock.update(*(torch.randn(1, 1, LARGE_CONTEXT, width).bfloat16() for width in (512, 64)), 0)
    stock.update_indexer(torch.randn(1, LARGE_CONTEXT, 128).bfloat16(), 0)
    seconds = {}
    for mode in ("absorbed", "expand"):
        handle = enable(model, attention=mode, self_check=False)
        cache = HiSparseCache(model.config, max_positions=LARGE_CONTEXT + 64)
        cache.take_over(stock)
        seconds[f"hisparse {mode}"] = step_seconds(model, cache, 3 if quick or mode == "expand" else 15)
        cache.close()
        handle.disable()
    seconds = {"stock sdpa": step_seconds(model, stock, 3), **seconds}
    fastest = seconds["hisparse absorbed"]
    rows = [[name, value * 1e3, value / fastest] for name, value in seconds.items()]
    title = f"decode step of one layer, bfloat16, {LARGE_HEADS} heads, top {LARGE_TOP_K} of {LARGE_CONTEXT} rows of 576"
    return harness.Report(title, ["", "ms", "this / absorbed"], rows)


def _large_config() -> DeepseekV32Config:
    """Return one layer whose rows, heads and selection are of full size."""
    return DeepseekV32Config(
        vocab_size=zoo.VOCABULARY,
        hidden_size=512,
        intermediate_size=512,
        num_hidden_layers=1,
        first_k_dense_replace=1,
        num_attention_heads=LARGE_HEADS,
        num_key_value_heads=LARGE_HEADS,
        q_lora_rank=256,
        index_n_heads=4,
        index_topk=LARGE_TOP_K,
        max_position_embeddings=2 * LARGE_CONTEXT,
    )


def step_seconds(model: Any, cache: Any, steps: int) -> float:
    """Return the median processor seconds of a decode step, after one that does not count."""
    token, given, seconds = torch.ones(1, 1, dtype=torch.long), zoo.cache_argument(model, cache), []
    for _ in range(1 + steps):
        started = time.thread_time()
        model(input_ids=token, use_cache=True, **given)
        seconds.append(time.thread_time() - started)
    return statistics.median(seconds[1:])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    asked = harness.options(__doc__ or "", argv)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    with torch.no_grad():
        reports = [precision_report(quick=asked.quick), cost_report(quick=asked.quick)]
    return harness.emit(reports, as_json=asked.json)


if __name__ == "__main__":
    harness.use_one_thread()
    sys.exit(main())
