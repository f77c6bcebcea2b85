"""Recording what indexers and routers choose, and imposing it on another run.

Rounding that flips a nearly tied choice makes a jump in the logits of any two runs. With the choices of one run
imposed on the other, rounding alone is left to compare.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Choices:
    """What indexers and routers of a model choose; can be recorded, and imposed on another run."""

    def __init__(self, model: Any) -> None:
        """Hook every indexer and router of `model`."""
        self._made: list[Any] | None = None
        self._given: Sequence[Any] | None = None
        for module in model.modules():
            if isinstance(getattr(module, "index_topk", None), int) or type(module).__name__.endswith("Router"):
                module.register_forward_hook(self._choose)

    def record(self, run: Callable[[], torch.Tensor], given: Sequence[Any] | None) -> tuple[torch.Tensor, list[Any]]:
        """Return the result of `run` and the choices it made, or those `given`, which it then had to make."""
        made: list[Any] = []
        self._made, self._given = made, given
        try:
            return run(), made
        finally:
            self._made = self._given = None

    def _choose(self, _module: Any, _args: Any, output: Any) -> Any:
        if self._made is None:
            return None
        chosen = output
        if self._given is not None:
            chosen = self._given[len(self._made)]
            if isinstance(output, tuple):
                chosen = tuple(part.to(own.dtype) for part, own in zip(chosen, output, strict=True))
        self._made.append(chosen)
        return chosen


def same_choices(made: Sequence[Any], base: Sequence[Any], *, steps: int) -> torch.Tensor:
    """Return bool[steps]: the last token of the step chose the same rows and experts in every layer."""
    same = [torch.equal(_chosen(a), _chosen(b)) for a, b in zip(made, base, strict=True)]
    return torch.tensor(same).view(steps, -1).all(dim=1)


def _chosen(output: Any) -> torch.Tensor:
    """Return what was chosen for the last token, in ascending order; a router's output ends in its choice."""
    chosen = output[-1] if isinstance(output, tuple) else output
    last: torch.Tensor = chosen.reshape(-1, chosen.shape[-1])[-1].sort().values
    return last
