"""How every benchmark measures and prints: one thread, contenders in turn, medians, the goal beside the figure.

Time is the processor time of the calling thread: all contenders compute on one thread and none waits, so it is
what the clock on the wall shows on an idle machine, and it does not grow when other programs take the cores.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.table import Table

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

Call = Callable[[], object]


@dataclass(frozen=True)
class Report:
    """One table.

    Attributes:
        title: What was measured, with its unit.
        columns: Column names.
        rows: Cells; numbers are printed with two decimals, None as a dash.
        goals: Sentences, each with the figure reached and the figure wanted.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | None]]
    goals: Sequence[str] = field(default=())


def use_one_thread() -> None:
    """Ask numpy, torch and numba for one thread; must run before they are imported."""
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))


def options(description: str, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse what every benchmark understands: ``--quick`` and ``--json``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, smaller problems")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser.parse_args(argv)


def median_seconds(
    contenders: Mapping[str, Callable[[int], Call]], *, rounds: int, calls: int, warm_up: int = 0, settle: int = 0
) -> dict[str, float]:
    """Return the median seconds of one call of each contender.

    In each round every contender runs `calls` calls in a row, so that its own state is as warm as in use and
    a change in the machine's speed meets all of them.

    Args:
        contenders: By name, a function that prepares call number i and returns it; only the call is timed.
        rounds: Times that every contender has its turn.
        calls: Calls a turn.
        warm_up: Calls at the start of each turn that do not count.
        settle: Rounds at the start that do not count.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(settle + rounds):
        for name, prepare in contenders.items():
            for i in range(calls):
                call = prepare(turn * calls + i)
                start = time.thread_time()
                call()
                seconds = time.thread_time() - start
                if i >= warm_up and turn >= settle:
                    times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def goal(claim: str, reached: float, wanted: float, *, at_most: bool = False) -> str:
    """Return a sentence that says whether a figure reached its goal."""
    met = reached <= wanted if at_most else reached >= wanted
    return (
        f"{claim}: {reached:.2f}, goal {'at most' if at_most else 'at least'} {wanted:g}: {'met' if met else 'MISSED'}"
    )


def emit(reports: Sequence[Report], *, as_json: bool) -> int:
    """Print the reports, as tables or as one JSON object with the machine in it; return exit status 0."""
    if as_json:
        machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
        print(json.dumps({**machine, "reports": [asdict(report) for report in reports]}, indent=2))
        return 0
    console = Console()
    for report in reports:
        table = Table(title=report.title, title_justify="left")
        for i, column in enumerate(report.columns):
            table.add_column(column, justify="left" if i == 0 else "right")
        for row in report.rows:
            table.add_row(*map(_cell, row))
        console.print(table)
        for sentence in report.goals:
            console.print(sentence, highlight=False)
    return 0


def _cell(value: str | float | None) -> str:
    """Return one cell's text."""
    if isinstance(value, float):
        return f"{value:.2f}"
    return "-" if value is None else str(value)
