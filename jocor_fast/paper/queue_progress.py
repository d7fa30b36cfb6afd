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
from jocor_fast.report.screen import say
from jocor_fast.report.tables import duration, percent

HEARTBEAT_SECONDS = 15.0  # between lines where nothing can be redrawn


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
        self._started = self._spoken = time.monotonic()
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
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def on_change(self, run: QueuedRun) -> None:
        """A run has started or ended."""
        if run.name not in self._running:
            self._running[run.name] = self._each.add_task(run.name, total=run.epochs, completed=run.epochs_done)
            return
        self._each.remove_task(self._running.pop(run.name))
        summary = read_summary(run.folder) if run.error is None else {}
        self._say(f"{run.name}: {self.figure(run, summary) if summary else f'failed: {run.error}'}")
        self.on_end()

    def on_poll(self) -> None:
        """Follow the files of the runs."""
        for run in self.runs:
            if run.name in self._running:
                self._each.update(self._running[run.name], completed=run.epochs_done)
        self._all.update(self._all_task, completed=self._done())
        if self._live is None and time.monotonic() - self._spoken >= HEARTBEAT_SECONDS:
            self._say(f"{100 * self._done() / self._total:.0f} % of all epochs{self._time_left()}")

    def _say(self, text: str) -> None:
        self._spoken = time.monotonic()
        say(self.console, text)

    def _done(self) -> int:
        return sum(run.epochs_done for run in self.runs)

    def _time_left(self) -> str:
        gained = self._done() - self._at_start
        if not gained:
            return ""
        seconds = (self._total - self._done()) / gained * (time.monotonic() - self._started)
        return f", about {duration(seconds)} left"
