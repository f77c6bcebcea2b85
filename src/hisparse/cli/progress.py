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

    @property
    def is_started(self) -> bool:
        """Whether forward passes count: those that probe the model before the first stage do not."""
        return self.progress.tasks[self.task].started

    def show_stage(self, stage: str) -> None:
        """Name what is decoded now, in a line of its own where no bar is drawn; the first stage starts the bar."""
        if not self.is_started:
            self.progress.start_task(self.task)
        if self.progress.disable:
            self.progress.console.print(stage, highlight=False, markup=False, soft_wrap=True)
        self.progress.update(self.task, description=stage)


def count_forwards(prompts: Sequence[Prompt], *, prefill_chunk: int, new_tokens: int) -> int:
    """Forward passes of the three ways: two prefills (the resident cache takes one over) and three times the steps.

    The second question about the last prompt is one prefill more, a pass after the restored rows, and twice the steps.
    """
    prefills = sum(2 * -(-len(prompt.tokens) // prefill_chunk) for prompt in prompts)
    second = len(prompts[-1].tokens) // prefill_chunk + 2 + 2 * (new_tokens - 1)
    return prefills + 3 * (new_tokens - 1) * len(prompts) + second


@contextmanager
def forward_bar(console: Console, model: Any, total: int) -> Iterator[ForwardBar]:
    """Show a bar of `total` passes while the block runs; the model carries a hook meanwhile.

    On a console that is no terminal no bar is drawn; each stage is a line.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("checking the model", total=total, start=False)
        bar = ForwardBar(progress, task)

        def advance(*_arguments: Any) -> None:
            if bar.is_started:
                progress.advance(task)

        hook = model.register_forward_hook(advance)
        try:
            yield bar
        finally:
            hook.remove()
