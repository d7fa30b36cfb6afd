"""What is shown while several runs are made: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from jocor_fast.files.names import read_summary
from jocor_fast.paper.run_queue import QueuedRun
from jocor_fast.report.screen import Heartbeat, say
from jocor_fast.report.tables import duration, percent


def _test_accuracy(run: QueuedRun, summary: Mapping[str, Any]) -> str:
    return f"test accuracy {percent(summary['last_10_mean']['test_accuracy'])} % over its last epochs"


class QueueProgress:
    """One bar for all runs and a line for each that is going on; without a terminal a line now and then."""

    def __init__(
        self,
        console: Console,
        runs: Sequence[QueuedRun],
        on_end: Callable[[], None],
        figure: Callable[[QueuedRun, Mapping[str, Any]], str] = _test_accuracy,
    ) -> None:
        self.console = console
        self.runs = runs
        self.on_end = on_end  # called when a run has ended
        self.figure = figure  # what is said of it then, from its summary.json
        self._running: dict[str, TaskID] = {}
        self._started = time.monotonic()
        self._heartbeat = Heartbeat(console, self._text)
        self._at_start = self._done()
        self._total = sum(run.epochs for run in runs)
        self._all = Progress(
            TextColumn("all runs"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=console,
        )
        self._each = Progress(
            TextColumn("  {task.description}"), TextColumn("epoch {task.completed}/{task.total}"), console=console
        )
        self._all_task = self._all.add_task("all", total=self._total, completed=self._at_start)
        self._live = (
            Live(Group(self._all, self._each), console=console, transient=True) if console.is_interactive else None
        )

    def __enter__(self) -> QueueProgress:
        self._heartbeat.__enter__()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()
        self._heartbeat.__exit__()

    def on_change(self, run: QueuedRun) -> None:
        """A run has started or ended."""
        if run.name not in self._running:
            self._running[run.name] = self._each.add_task(run.name, total=run.epochs, completed=run.epochs_done)
            return
        self._each.remove_task(self._running.pop(run.name))
        summary = read_summary(run.folder) if run.error is None else {}
        say(self.console, f"{run.name}: {self.figure(run, summary) if summary else f'failed: {run.error}'}")
        self.on_end()

    def on_poll(self) -> None:
        """Follow the files of the runs."""
        for run in self.runs:
            if run.name in self._running:
                self._each.update(self._running[run.name], completed=run.epochs_done)
        self._all.update(self._all_task, completed=self._done())

    def _done(self) -> int:
        return sum(run.epochs_done for run in self.runs)

    def _text(self) -> str:
        done, seconds = self._done(), time.monotonic() - self._started
        gained = done - self._at_start
        left = f", about {duration((self._total - done) / gained * seconds)} left" if gained else ""
        return f"{100 * done / self._total:.0f} % of all epochs{left}"
