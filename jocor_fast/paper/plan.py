"""What `jocor-fast reproduce --dry-run` prints: the cells, the commands, and an estimate of the time."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from jocor_fast.config.resolve import Config, resolve
from jocor_fast.methods import METHODS
from jocor_fast.paper.experiments import Cell
from jocor_fast.paper.run_queue import QueuedRun
from jocor_fast.paper.step_times import EpochTime, StepTimes, expected_forget_rate
from jocor_fast.report.screen import counted, say
from jocor_fast.report.tables import NOT_AVAILABLE, TextTable, duration


def print_plan(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    output: Path,
    runs: Sequence[QueuedRun],
    *,
    jobs: int,
    threads: int,
    console: Console,
) -> None:
    """Print the cells with what is finished of them, the commands of the runs that are left, and how long they take.

    A few steps of every network and method are trained for the estimate, on made-up samples of the data set's size.
    """
    left = {run.folder: run for run in runs if not run.is_finished}
    times = StepTimes(threads)
    rows: list[tuple[str, ...]] = []
    times_of_runs: list[float | None] = []
    for cell in cells:
        config = resolve({name: str(value) for name, value in cell.run_settings(seeds[0]).items()})
        folders = [output / cell.run_folder(seed) for seed in seeds]
        epochs = [left[folder].epochs - left[folder].epochs_done for folder in folders if folder in left]
        time = times.of(config) if epochs else EpochTime(0.0, "")
        times_of_runs += [None if time.failure else time.seconds * count for count in epochs]
        rows.append(_row(cell, config, len(seeds) - len(epochs), len(seeds), sum(epochs), time))
    table = TextTable(
        ("noise", "method", "λ", "τ", "done", "epochs", "each", "time"),
        rows,
        text_columns=2,
        note="epochs: left to train; each: an epoch with its evaluation; time: one run after the other",
    )
    console.print(table.rich())
    for reason in dict.fromkeys(times.failures.values()):
        say(console, f"no estimate for some of them: {reason}")
    if not left:
        say(console, f"all {len(runs)} runs are finished already")
        return
    say(console, "commands")
    for run in left.values():
        say(console, f"  jocor-fast {shlex.join(run.arguments())}")
    at_a_time = min(jobs, len(left))
    say(
        console,
        f"{len(left)} of {len(runs)} runs left, {at_a_time} at a time with {counted(threads, 'thread')} each: "
        f"{_whole_time(times_of_runs, at_a_time)}",
    )


def _whole_time(times_of_runs: Sequence[float | None], at_a_time: int) -> str:
    """That of all runs; None: of one whose time is not known."""
    known = [seconds for seconds in times_of_runs if seconds is not None]
    if not known:
        return "how long they take is not known"
    total = max(sum(known) / at_a_time, max(known))
    limit = "about" if len(known) == len(times_of_runs) else "at least"
    return f"{limit} {duration(total)}, from a few measured steps"


def _row(cell: Cell, config: Config, finished: int, planned: int, epochs_left: int, time: EpochTime) -> tuple[str, ...]:
    co_lambda = f"{config['co_lambda']:g}" if METHODS[cell.method].uses_co_lambda else NOT_AVAILABLE
    forget_rate = expected_forget_rate(config)
    epoch = "" if not epochs_left else NOT_AVAILABLE if time.failure else _epoch_time(time.seconds)
    rest = "" if not epochs_left else NOT_AVAILABLE if time.failure else duration(time.seconds * epochs_left)
    return (
        cell.noise.title,
        cell.title,
        co_lambda,
        NOT_AVAILABLE if forget_rate is None else f"{forget_rate:.4g}",
        f"{finished}/{planned}",
        str(epochs_left),
        epoch,
        rest,
    )


def _epoch_time(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 60 else duration(seconds)
