"""`jocor-fast reproduce NAME`: the runs of an experiment, then its table and its figure."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..config import ConfigError, resolve
from ..engine.environment import resolve_device
from ..engine.errors import RunError
from ..experiments import EXPERIMENTS, METHOD_TITLES, Cell, Experiment
from ..report.reproduction import CSV_COLUMNS, CellResult, draw_results, read_cell, results_table
from ..report.results import read_json
from ..report.tables import csv_text, percent, write_text
from ..schedules import trained_epochs
from .run_queue import QueuedRun, run_all

SUMMARY = "run an experiment: several methods and seeds, a table and a figure"
USAGE = "NAME [OPTIONS]"
HOW_TO_GO_ON = "the same command goes on where this one stopped"
_EXPERIMENT_LINES = "\n".join(
    f"  {experiment.name:<8} {experiment.title}:\n"
    f"           {' and '.join(METHOD_TITLES[name] for name in experiment.methods)}, {experiment.seeds} seeds each, "
    f"under {experiment.minutes:g} minutes on two cores"
    for experiment in EXPERIMENTS.values()
)
DESCRIPTION = f"""\
Run an experiment: methods side by side, each with several seeds, then a table
and a figure. Runs that are finished already are not repeated, so that the same
command goes on where an earlier one stopped.

experiments
{_EXPERIMENT_LINES}"""
HEARTBEAT_SECONDS = 15.0  # between lines where nothing can be redrawn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `reproduce` takes; the values are checked in `run`."""
    parser.add_argument("experiment", metavar="NAME", nargs="?", help=f"the experiment: {', '.join(EXPERIMENTS)}")
    parser.add_argument("--methods", metavar="A,B", help="only these methods (default: those of the experiment)")
    parser.add_argument(
        "--seeds", metavar="N", help="runs a method, with seeds and noise draws 1 … N (default: the experiment's)"
    )
    parser.add_argument("--epochs", metavar="N", help="epochs a run (default: the experiment's)")
    parser.add_argument("--device", metavar="DEV", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument("--jobs", metavar="N", help="runs at a time (default: one a CPU core, or one on a GPU)")
    parser.add_argument(
        "--output", metavar="DIR", help="folder for the runs, the table and the figure (default: runs/reproduce-NAME)"
    )


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Make the runs that are missing, then write and print the results; 1 if a run failed."""
    experiment = _experiment(arguments.experiment)
    seeds = range(1, _count("--seeds", arguments.seeds, experiment.seeds) + 1)
    cells = experiment.cells(_methods(arguments.methods, experiment), **_overrides(arguments))
    output = Path(arguments.output or f"runs/reproduce-{experiment.name}")
    runs = [_queued(cell, seed, output) for seed in seeds for cell in cells]
    _check_earlier_runs(runs)
    left = [run for run in runs if not _is_finished(run)]
    jobs = min(len(left), _count("--jobs", arguments.jobs, _default_jobs(arguments.device, experiment.threads)))
    names = " and ".join(METHOD_TITLES[cell.method] for cell in cells)
    seed_text = f"seeds 1 to {len(seeds)}" if len(seeds) > 1 else "seed 1"
    console.print(f"{experiment.title}: {names}, {seed_text}", soft_wrap=True)
    if not left:
        console.print(f"all {len(runs)} runs are finished already")
    else:
        console.print(f"{_plan(len(left), len(runs))}, {jobs} at a time, in {output}", soft_wrap=True)
        with ReproductionProgress(console, runs) as progress:
            run_all(left, jobs=jobs, threads=experiment.threads, on_change=progress.on_change, on_poll=progress.on_poll)
    failed = [run for run in left if run.error is not None]
    results = [read_cell(output, cell, seeds, failed={run.folder for run in failed}) for cell in cells]
    _report(results, experiment, output, console)
    if failed:
        raise RunError(f"{len(failed)} of {len(left)} runs failed, first {failed[0].name}: {failed[0].error}")
    return 0


class ReproductionProgress:
    """One bar for all runs and a line for each that is going on; without a terminal a line now and then."""

    def __init__(self, console: Console, runs: Sequence[QueuedRun]) -> None:
        self.console = console
        self.runs = runs
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

    def __enter__(self) -> ReproductionProgress:
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
        summary = read_json(run.folder / "summary.json") if run.error is None else None
        if summary is None:
            self._say(f"{run.name}: failed: {run.error}")
        else:
            accuracy = summary["last_10_mean"]["test_accuracy"]
            self._say(f"{run.name}: test accuracy {percent(accuracy)} % over its last epochs")

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
        self.console.print(text, soft_wrap=True)
        self.console.file.flush()

    def _done(self) -> int:
        return sum(run.epochs_done for run in self.runs)

    def _time_left(self) -> str:
        gained = self._done() - self._at_start
        if not gained:
            return ""
        return f", about {(self._total - self._done()) / gained * (time.monotonic() - self._started):.0f} s left"


def _experiment(name: str | None) -> Experiment:
    if name is None or name not in EXPERIMENTS:
        said = "got nothing" if name is None else f"got {name!r}"
        raise ConfigError(f"reproduce takes the name of an experiment, one of {', '.join(EXPERIMENTS)}, {said}")
    return EXPERIMENTS[name]


def _methods(text: str | None, experiment: Experiment) -> tuple[str, ...]:
    if text is None:
        return experiment.methods
    chosen = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in chosen:
        if name not in experiment.methods:
            raise ConfigError(f"--methods must name some of {', '.join(experiment.methods)}, got {name!r}")
    return chosen


def _count(flag: str, text: str | None, default: int) -> int:
    try:
        count = default if text is None else int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise ConfigError(f"{flag} must be a whole number of at least 1, got {text!r}")
    return count


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    overrides: dict[str, Any] = {"device": arguments.device}
    if arguments.epochs is not None:
        overrides["epochs"] = _count("--epochs", arguments.epochs, 1)
    return overrides


def _queued(cell: Cell, seed: int, output: Path) -> QueuedRun:
    settings = cell.run_settings(seed)
    config = resolve(
        {name: str(value) for name, value in settings.items()}
    )  # so that a wrong one is told before any run
    epochs = trained_epochs(config["epochs"], config["recipe"])
    name = f"{METHOD_TITLES[cell.method]}, {cell.noise.title}, seed {seed}"
    run = QueuedRun(name, output / cell.run_folder(seed), settings, epochs)
    run.epochs_done = epochs if _is_finished(run) else 0
    return run


def _is_finished(run: QueuedRun) -> bool:
    summary = read_json(run.folder / "summary.json")
    return summary is not None and summary["status"] == "finished"


def _plan(left: int, planned: int) -> str:
    """ "4 runs (2 of 6 are finished already)"."""
    done = planned - left
    finished = f" ({done} of {planned} {'is' if done == 1 else 'are'} finished already)" if done else ""
    return f"{left} run{'s' * (left > 1)}{finished}"


def _check_earlier_runs(runs: Sequence[QueuedRun]) -> None:
    """Runs in the output folder go on only with the settings that they were started with."""
    for run in runs:
        config = read_json(run.folder / "config.json") or {}
        earlier = config.get("settings", {})
        changed = [name for name, value in run.settings.items() if name in earlier and earlier[name] != value]
        if changed:
            differences = ", ".join(f"{name} {earlier[name]} (now {run.settings[name]})" for name in changed)
            raise RunError(
                f"{run.folder} holds a run with {differences}; choose another --output, or the same settings"
            )


def _default_jobs(device: str, threads: int) -> int:
    """One run a CPU core that it can use; one on a GPU."""
    try:
        if resolve_device(device).type == "cuda":
            return 1
    except ValueError as error:
        raise ConfigError(f"--{error}") from error
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // threads)


def _report(results: Sequence[CellResult], experiment: Experiment, output: Path, console: Console) -> None:
    table = results_table(results, experiment.title)
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / "table.md", table.markdown())
    write_text(output / "table.csv", csv_text(CSV_COLUMNS, [result.csv_row() for result in results]))
    draw_results(results, output / "curves.png", experiment.title)
    console.print(table.rich())
    means = {result.cell.method: result.csv_row()["mean"] for result in results}
    standard, jocor = means.get("standard"), means.get("jocor")
    if standard is not None and jocor is not None:
        points = 100 * (jocor - standard)
        side = "above" if points >= 0 else "below"
        console.print(f"JoCoR is {abs(points):.1f} points {side} Standard.")
    for what, name in (("curves", "curves.png"), ("table", "table.md, table.csv"), ("runs", "")):
        console.print(Text(f"{what:<7} {output / name}"), soft_wrap=True)
