"""A progress bar that advances with the model's forward passes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from hisparse.cli.prompts import Prompt


@dataclass(frozen=True)
class ForwardBar:
    """One bar over all forward passes of a comparison."""

    progress: Progress
    task: TaskID

    def show_stage(self, stage: str) -> None:
        """Name what is decoded now."""
        self.progress.update(self.task, description=stage)


def count_forwards(prompts: Sequence[Prompt], *, prefill_chunk: int, new_tokens: int) -> int:
    """Forward passes of the three ways: two prefills (the resident cache takes one over) and three times the steps."""
    prefills = sum(2 * -(-len(prompt.tokens) // prefill_chunk) for prompt in prompts)
    return prefills + 3 * (new_tokens - 1) * len(prompts)


@contextmanager
def forward_bar(console: Console, model: Any, total: int) -> Iterator[ForwardBar]:
    """Show a bar of `total` passes while the block runs; the model carries a hook meanwhile.

    On a console that is no terminal nothing is drawn.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("checking the model", total=total)

        def advance(*_arguments: Any) -> None:
            progress.advance(task)

        hook = model.register_forward_hook(advance)
        try:
            yield ForwardBar(progress, task)
        finally:
            hook.remove()
