"""What the `--dry-run` of an experiment prints: the cells, the commands, and how long they will take on this machine.

The time is estimated from a few steps of each network and method, on random samples: of a data set whose shape is known
the files need not be at hand. As many of their numbers are 0 as in the data, which perceptrons skip.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from jocor_fast.config.resolve import Config
from jocor_fast.data.dataset import DataShape
from jocor_fast.data.samples import Samples
from jocor_fast.machine import own_threads
from jocor_fast.methods import METHODS
from jocor_fast.models.networks import build_model
from jocor_fast.noise.drawing import expected_rate
from jocor_fast.noise.matrices import transition_matrix
from jocor_fast.paper.experiments import Cell
from jocor_fast.paper.run_queue import QueuedRun
from jocor_fast.report.screen import counted, phase, say
from jocor_fast.report.tables import NOT_AVAILABLE, TextTable, duration
from jocor_fast.runs.fit import fit
from jocor_fast.schedules import steps_per_epoch

MEASURED_SECONDS = 0.5  # of steps, where two do not take longer
MOST_STEPS = 200
SLOW_SECONDS = 2.0  # of a step: one is enough then
EVALUATED_SAMPLES = 512


def expected_forget_rate(config: Config, shape: DataShape | None = None) -> float | None:
    """Return τ as the run will have it; None for a method that trains on everything, and where only the data tell."""
    if not METHODS[config.training.method].selects or isinstance(config.forget_rate, str):
        return None
    if config.forget_rate is not None:
        return config.forget_rate
    shape = shape or config.entry.shape
    if shape is None or config.noise is None or config.noise_rate is None:
        return None
    counts = shape.class_counts
    matrix = transition_matrix(config.noise, len(counts), config.noise_rate, config.dataset)
    return expected_rate(matrix, np.repeat(np.arange(len(counts)), counts))


class StepTimes:
    """Measures each network and method once, with so many threads; `failures` says why some cannot be measured.

    `shape` is that of the data, where the data set's entry does not say it.
    """

    def __init__(self, threads: int, shape: DataShape | None = None) -> None:
        self.threads, self.shape = threads, shape
        self.failures: dict[tuple[Any, ...], str] = {}
        self._known: dict[tuple[Any, ...], tuple[float, float]] = {}  # seconds of a step, of evaluating a sample

    def of_epoch(self, config: Config) -> float | None:
        """Return the seconds of an epoch with its evaluation, None where they cannot be measured."""
        shape, model = self.shape or config.entry.shape, config.model or config.entry.model
        if shape is None:
            self.failures[config.dataset,] = f"the size of {config.dataset} is not known"
            return None
        key = (config.dataset, model, config.training.method, config.training.batch_size, config.training.device)
        if key not in self._known and key not in self.failures:
            try:
                self._known[key] = self._measured(config, shape, model)
            except ValueError as error:  # such as a network that needs torchvision
                self.failures[key] = str(error)
        if key in self.failures:
            return None
        step, sample = self._known[key]
        held_out = round(config.val_fraction * shape.train)
        training = config.training
        steps = steps_per_epoch(shape.train - held_out, training.batch_size, training.recipe, training.max_batches)
        return step * steps + sample * (shape.test + shape.val + held_out)

    def _measured(self, config: Config, shape: DataShape, model: str) -> tuple[float, float]:
        """Return the seconds of a step and of evaluating a sample."""
        with own_threads(self.threads):
            first, evaluated = _trained(config, shape, model, steps=1, epochs=1)
            if first > SLOW_SECONDS:
                return first, evaluated
            steps = min(MOST_STEPS, max(2, int(MEASURED_SECONDS / first)))
            # The second of two epochs is measured where that costs little: the first pays for caches and captures.
            return _trained(config, shape, model, steps=steps, epochs=2 if first < MEASURED_SECONDS else 1)


def _trained(config: Config, shape: DataShape, model: str, *, steps: int, epochs: int) -> tuple[float, float]:
    """Return what `_measured` does, of the last epoch of a run on random samples that writes no files."""
    settings = replace(config.training, epochs=epochs, decay_start=epochs, recipe="paper")
    classes, generator = len(shape.class_counts), torch.Generator().manual_seed(0)
    evaluated = min(EVALUATED_SAMPLES, steps * settings.batch_size)
    size = (steps * settings.batch_size, *shape.sample)
    pixels = torch.randint(1, 256, size, dtype=torch.uint8, generator=generator)
    pixels *= torch.empty(size, dtype=torch.uint8).bernoulli_(shape.filled, generator=generator)
    labels = torch.randint(classes, (len(pixels),), generator=generator)
    run = fit(
        settings,
        lambda: build_model(model, shape.sample, classes),
        Samples(pixels, labels, labels),
        test=Samples(pixels[:evaluated], labels[:evaluated]),
    )
    line = run.metrics[-1]
    return line["seconds"] / steps, line["eval_seconds"] / evaluated


def print_plan(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    output: Path,
    runs: Sequence[QueuedRun],
    *,
    jobs: int,
    threads: int,
    console: Console,
    shape: DataShape | None = None,
) -> None:
    """Print the cells with what is finished of them, the commands of the runs that are left, and how long they take.

    A few steps of every network and method are trained for the estimate, on random samples of the data set's size.
    `shape` is as for `StepTimes`.
    """
    left = {run.folder: run for run in runs if not run.is_finished}
    times = StepTimes(threads, shape)
    rows: list[tuple[str, ...]] = []
    seconds: list[float | None] = []  # of each run that is left; None: not known
    with phase(console, "timing a few steps", "cells") as update:
        for number, cell in enumerate(cells):
            update(number, len(cells))
            config = cell.config(seeds[0])
            folders = [output / cell.run_folder(seed) for seed in seeds]
            epochs = [left[folder].epochs - left[folder].epochs_done for folder in folders if folder in left]
            epoch = times.of_epoch(config) if epochs else None
            seconds += [None if epoch is None else epoch * count for count in epochs]
            rows.append(_row(cell, config, f"{len(seeds) - len(epochs)}/{len(seeds)}", sum(epochs), epoch, shape))
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


def _row(
    cell: Cell, config: Config, done: str, epochs: int, epoch: float | None, shape: DataShape | None
) -> tuple[str, ...]:
    co_lambda = f"{config.training.co_lambda:g}" if "co_lambda" in METHODS[cell.method].options else NOT_AVAILABLE
    forget_rate = expected_forget_rate(config, shape)
    rate = NOT_AVAILABLE if forget_rate is None else f"{forget_rate:.4g}"
    if isinstance(config.forget_rate, str):
        rate = config.forget_rate
    times = ("", "") if not epochs else (NOT_AVAILABLE, NOT_AVAILABLE)
    if epoch is not None:
        times = f"{epoch:.2g} s" if epoch < 60 else duration(epoch), duration(epoch * epochs)
    return cell.noise.title, cell.title, co_lambda, rate, done, str(epochs), *times
