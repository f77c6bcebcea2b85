"""One continuation through the stock backends, float32 and HiSparse, with own and with imposed choices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import zoo
from choices import Choices
from transformers import DynamicCache

from hisparse.integrations.transformers import HiSparseCache, enable


@dataclass(frozen=True)
class Run:
    """Logits float32[N, V] of one contender: choosing itself, with its choices, and choosing as the base chose."""

    free: torch.Tensor
    made: list[Any]
    fixed: torch.Tensor


@dataclass(frozen=True)
class Subject:
    """One model, as bfloat16 and the same weights as float32, and what it reads.

    Attributes:
        model: In bfloat16.
        exact: In float32.
        backend: The stock attention that is the base.
        modes: Attention modes of HiSparse.
        given: The prompt.
        tokens: int64[1, N], the continuation.
    """

    model: Any
    exact: Any
    backend: str
    modes: Sequence[str]
    given: zoo.Prompt
    tokens: torch.Tensor

    def measure(self) -> dict[str, Run]:
        """Run every contender; the base comes first."""
        choices, exact_choices = Choices(self.model), Choices(self.exact)
        self.model.set_attn_implementation(self.backend)
        base = f"stock {self.backend}"
        runs = {base: self._run(self.model, choices, DynamicCache, None)}
        imposed = runs[base].made
        if self.backend == "sdpa":
            self.model.set_attn_implementation("eager")
            runs["stock eager"] = self._run(self.model, choices, DynamicCache, imposed)
            self.model.set_attn_implementation("sdpa")
        runs["float32"] = self._run(self.exact, exact_choices, DynamicCache, imposed)
        for mode in self.modes:
            handle = enable(self.model, attention=mode, self_check=False)
            runs[f"hisparse {mode}"] = self._run(self.model, choices, HiSparseCache, imposed)
            handle.disable()
        return runs

    def _run(self, model: Any, choices: Choices, make_cache: Any, imposed: list[Any] | None) -> Run:
        def forced() -> torch.Tensor:
            cache = make_cache(config=model.config)
            logits = zoo.forced_logits(model, cache, self.given, self.tokens)[:, 0]
            if isinstance(cache, HiSparseCache):
                cache.check()
                cache.close()
            return logits

        free, made = choices.record(forced, None)
        fixed = free if imposed is None else choices.record(forced, imposed)[0]
        return Run(free, made, fixed)


def random_subject(case: zoo.ModelCase, *, steps: int, context: int | None = None) -> Subject:
    """Make the model of a case and random tokens, all of the case's seed."""
    modes = ("auto",) if case.model_type == "deepseek_v4" else ("absorbed", "expand")
    given, tokens = zoo.prompt(case, 1, length=context), zoo.prompt(case, 1, length=steps, seed=2).ids
    model, exact = zoo.build(case, dtype=torch.bfloat16), zoo.build(case, dtype=torch.bfloat16).float()
    return Subject(model, exact, case.backend, modes, given, tokens)
