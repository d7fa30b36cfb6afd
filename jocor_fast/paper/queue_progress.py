"""What is shown while several runs are made: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from jocor_fast.files.names import read_summary
from jocor_fast.paper.run_queue import QueuedRun, run_all
from jocor_fast.report.screen import Heartbeat, say
from jocor_fast.report.tables import duration, percent


def _test_accuracy(run: QueuedRun) -> str:
    accuracy = read_summary(run.folder)["last_10_mean"]["test_accuracy"]
    return f"test accuracy {percent(accuracy)} % over its last epochs"


def make_runs(
    left: Sequence[QueuedRun],
    runs: Sequence[QueuedRun],
    *,
    jobs: int,
    threads: int,
    console: Console,
    figure: Callable[[QueuedRun], str] = _test_accuracy,
    on_end: Callable[[], None] = lambda: None,
) -> None:
    """Make runs, and show how far they and those that are finished already have come.

    Args:
        left: the runs to make.
        runs: these and the others.
        jobs: how many at a time.
        threads: of each.
        console: where it is shown.
        figure: what is printed of a run that has ended.
        on_end: called when one has.
    """

    def done() -> int:
        return sum(run.epochs_done for run in runs)

    def text() -> str:
        gained, seconds = done() - at_start, time.monotonic() - started
        rest = f", about {duration((total - done()) / gained * seconds)} left" if gained else ""
        return f"{100 * done() / total:.0f} % of all epochs{rest}"

    def on_change(run: QueuedRun) -> None:
        if run.name not in lines:
            lines[run.name] = bars.add_task(f"  {run.name}", total=run.epochs, completed=run.epochs_done)
            return
        bars.remove_task(lines.pop(run.name))
        say(console, f"{run.name}: {figure(run) if run.error is None else f'failed: {run.error}'}")
        on_end()

    def on_poll() -> None:
        bars.update(whole, completed=done())
        for run in runs:
            if run.name in lines:
                bars.update(lines[run.name], completed=run.epochs_done)

    started, at_start, total = time.monotonic(), done(), sum(run.epochs for run in runs)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("epoch {task.completed:.0f}/{task.total:.0f}"))
    remaining = (TimeRemainingColumn(compact=True), TextColumn("left"))
    bars = Progress(*columns, *remaining, console=console, transient=True, disable=not console.is_interactive)
    whole, lines = bars.add_task("all runs", total=total, completed=at_start), dict[str, TaskID]()
    with bars, Heartbeat(console, text):
        run_all(left, jobs=jobs, threads=threads, on_change=on_change, on_poll=on_poll)
