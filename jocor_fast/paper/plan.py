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
from jocor_fast.paper.step_times import StepTimes, expected_forget_rate
from jocor_fast.report.screen import counted, phase, say
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

    A few steps of every network and method are trained for the estimate, on random samples of the data set's size.
    """
    left = {run.folder: run for run in runs if not run.is_finished}
    times = StepTimes(threads)
    rows: list[tuple[str, ...]] = []
    seconds: list[float | None] = []  # of each run that is left; None: not known
    with phase(console, "timing a few steps", "cells") as update:
        for number, cell in enumerate(cells):
            update(number, len(cells))
            config = resolve({name: str(value) for name, value in cell.run_settings(seeds[0]).items()})
            folders = [output / cell.run_folder(seed) for seed in seeds]
            epochs = [left[folder].epochs - left[folder].epochs_done for folder in folders if folder in left]
            epoch = times.of_epoch(config) if epochs else None
            seconds += [None if epoch is None else epoch * count for count in epochs]
            rows.append(_row(cell, config, f"{len(seeds) - len(epochs)}/{len(seeds)}", sum(epochs), epoch))
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
        f"{_whole_time(seconds, at_a_time)}",
    )


def _whole_time(seconds: Sequence[float | None], at_a_time: int) -> str:
    known = [value for value in seconds if value is not None]
    if not known:
        return "how long they take is not known"
    limit = "about" if len(known) == len(seconds) else "at least"
    return f"{limit} {duration(max(sum(known) / at_a_time, *known))}, from a few measured steps"


def _row(cell: Cell, config: Config, done: str, epochs: int, epoch: float | None) -> tuple[str, ...]:
    co_lambda = f"{config['co_lambda']:g}" if "co_lambda" in METHODS[cell.method].options else NOT_AVAILABLE
    forget_rate = expected_forget_rate(config)
    rate = NOT_AVAILABLE if forget_rate is None else f"{forget_rate:.4g}"
    times = ("", "") if not epochs else (NOT_AVAILABLE, NOT_AVAILABLE)
    if epoch is not None:
        times = f"{epoch:.2g} s" if epoch < 60 else duration(epoch), duration(epoch * epochs)
    return cell.noise.title, cell.title, co_lambda, rate, done, str(epochs), *times
