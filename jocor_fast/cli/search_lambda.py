"""`jocor-fast search-lambda`: λ by validation accuracy over the paper's grid; no test label is looked at."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from jocor_fast.cli.flags import declare, options_in_file, parse_count
from jocor_fast.config.options import OPTIONS
from jocor_fast.config.resolve import Config, default_run_name, resolve
from jocor_fast.errors import ConfigError, RunError
from jocor_fast.files.names import LAMBDA_SEARCH, number_in_name, read_metrics
from jocor_fast.files.whole_file import write_json, write_text
from jocor_fast.machine import resolve_device, usable_cores
from jocor_fast.methods import METHODS
from jocor_fast.paper.lambda_search import CSV_COLUMNS, GRID, SearchResult, draw_search, kept, ranked, rungs, score
from jocor_fast.paper.run_queue import QueuedRun, check_earlier_run, flags_of, make_runs
from jocor_fast.report.screen import say, say_subjects
from jocor_fast.report.tables import csv_text, percent
from jocor_fast.schedules import trained_epochs

if TYPE_CHECKING:
    from jocor_fast.config.task import Task

SUMMARY = "search λ by validation accuracy"
USAGE = "[OPTIONS]"
HOW_TO_GO_ON = "run the same command again to continue"
DESCRIPTION = """\
Search λ, the weight of the agreement between the networks, by successive
halving: train a JoCoR run for every value of the grid, compare them after a few
epochs, and train the better half further. Runs are compared on held-out
training data: on the noisy labels that are probably right (--val-labels
small-loss), or on the clean ones where they are known. No run sees test data.
Run the same command again to continue after a stop.

The other options are those of `train`, for every run."""

VAL_FRACTION, VAL_LABELS = "0.1", "small-loss"
OF_OTHER_METHODS = {name for method in METHODS.values() for name in method.options} - set(METHODS["jocor"].options)
SET_HERE = ("method", "co_lambda", "no_test", "resume", "stop_after", "tensorboard")
NOT_REPEATED = (*SET_HERE, "val_fraction", "val_labels", "output")  # in the run that the search leads to
OWN = {
    "val_fraction": replace(OPTIONS["val_fraction"], default=0.1, why="unless the data set brings a validation set"),
    "val_labels": replace(OPTIONS["val_labels"], default=VAL_LABELS),
    "output": replace(OPTIONS["output"], help="folder for runs, table and figure", why="runs/search-lambda-DATASET-…"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `search-lambda` takes; the values are checked in `run`."""
    search = parser.add_argument_group("the search")
    search.add_argument("--grid", metavar="A,B", help="values of λ to try (default: 0.05, 0.1 … 0.95)")
    search.add_argument("--jobs", metavar="N", help="concurrent runs (default: one for each CPU core; on a GPU 1)")
    hidden = {*SET_HERE, *OF_OTHER_METHODS}  # the latter change nothing; a file of options may name them
    declare(parser, (OWN.get(name, option) for name, option in OPTIONS.items() if name not in hidden))


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Search, and write and print what is found; a RunError if no run came through."""
    search = Search.of(arguments, console)
    search.print_heading(console)
    candidates, scores, chosen = list(search.grid), dict[int, dict[float, float | None]](), dict[int, list[float]]()
    for number, rung in enumerate(search.rungs, 1):
        say(console, f"rung {number} of {len(search.rungs)}: {len(candidates)} λ to epoch {rung}")
        scores[rung] = search.climb(candidates, rung, console)
        candidates = kept(scores[rung]) if rung < search.rungs[-1] else ranked(scores[rung])[:1]
        chosen[rung] = candidates
    result = SearchResult(search.grid, search.validation, scores, chosen)
    search.write(result)
    console.print(result.table().rich())
    say(console, f"λ {number_in_name(result.chosen)} is chosen. To train on all of the training data with it:")
    say(console, f"  {search.command(result.chosen)}")
    files = {"figure": "search.png", "table": "table.md, table.csv", "result": LAMBDA_SEARCH}
    say_subjects(console, {what: str(search.output / name) for what, name in files.items()}, width=7)
    return 0


@dataclass(frozen=True)
class Search:
    """What a command line asks for.

    Attributes:
        config: the settings of every run but for λ.
        said: the options of `train` that were given, by flag or in a file.
        validation: what is validated on, for people.
        rungs: the epochs at which runs are compared.
    """

    config: Config
    said: Mapping[str, Any]
    grid: tuple[float, ...]
    validation: str
    rungs: list[int]
    jobs: int
    output: Path

    @staticmethod
    def of(arguments: argparse.Namespace, console: Console) -> Search:
        """Read the flags and try the data; what is wrong is an error before any run."""
        grid = _grid(arguments.grid)
        flags = {name: value for name, value in vars(arguments).items() if name in OPTIONS}
        config, task = _config_and_task(flags, arguments.config, console)
        from jocor_fast.config.task import validation_text

        epochs = trained_epochs(config.training.epochs, config.training.recipe)
        return Search(
            config=config,
            said={name: config.value(name) for name in OPTIONS if config.given(name) and name not in NOT_REPEATED},
            grid=grid,
            validation=validation_text(config, task),
            rungs=rungs(epochs, ramp_epochs=config.training.ramp_epochs, candidates=len(grid)),
            jobs=min(len(grid), parse_count("--jobs", arguments.jobs, _default_jobs(config))),
            output=Path(config.output if config.given("output") else f"runs/search-lambda-{default_run_name(config)}"),
        )

    def print_heading(self, console: Console) -> None:
        """Print what is about to be done."""
        values = f"{self.grid[0]:g} … {self.grid[-1]:g}" if len(self.grid) > 1 else f"{self.grid[0]:g}"
        subjects = {
            "λ": f"{len(self.grid)} values, {values}",
            "compared": f"at epoch {' and '.join(map(str, self.rungs))}, the better half is trained further",
            "on": self.validation,
            "runs": f"{self.jobs} at a time, in {self.output}",
        }
        say_subjects(console, subjects)

    def climb(self, candidates: Sequence[float], rung: int, console: Console) -> dict[float, float | None]:
        """Bring the runs of these λ to an epoch, and return their validation accuracy there."""
        runs = {co_lambda: self._queued(co_lambda, rung) for co_lambda in candidates}
        left = [run for run in runs.values() if run.epochs_done < rung]

        def figure(run: QueuedRun) -> str:
            return f"validation accuracy {percent(score(read_metrics(run.folder), rung))} %"

        threads = max(1, usable_cores() // self.jobs)
        make_runs(left, list(runs.values()), jobs=self.jobs, threads=threads, console=console, figure=figure)
        scores = {
            co_lambda: None if run.error is not None else score(read_metrics(run.folder), rung)
            for co_lambda, run in runs.items()
        }
        if not ranked(scores):
            first = next((run.error for run in left if run.error is not None), "their validation accuracy is unknown")
            raise RunError(f"no run came to epoch {rung}, first λ {candidates[0]:g}: {first}")
        return scores

    def folder(self, co_lambda: float) -> Path:
        return self.output / f"lambda-{number_in_name(co_lambda)}"

    def command(self, co_lambda: float) -> str:
        """Return the command line that trains with a λ, on all of the training data."""
        return f"jocor-fast {shlex.join(['train', *flags_of({**self.said, 'co_lambda': co_lambda})])}"

    def write(self, result: SearchResult) -> None:
        """Write the table, the figure and search.json."""
        write_text(self.output / "table.md", result.table().markdown())
        write_text(self.output / "table.csv", csv_text(CSV_COLUMNS, result.csv_rows()))
        write_json(self.output / LAMBDA_SEARCH, result.as_dict())
        curves = {co_lambda: read_metrics(self.folder(co_lambda)) for co_lambda in result.grid}
        draw_search(result, curves, self.output / "search.png")

    def _queued(self, co_lambda: float, rung: int) -> QueuedRun:
        config = self.config.copy()
        config.decide("co_lambda", co_lambda, "flag")
        folder = self.folder(co_lambda)
        check_earlier_run(folder, config)
        given = {name: config.value(name) for name in OPTIONS if config.given(name) and name != "output"}
        run = QueuedRun(f"λ {number_in_name(co_lambda)}", folder, {**given, "stop_after": rung}, rung)
        run.epochs_done = min(rung, len(read_metrics(folder)))
        return run


def _config_and_task(flags: Mapping[str, str | bool], file: str | None, console: Console) -> tuple[Config, Task]:
    """Return the settings of the runs but for λ, and what they will learn from.

    Where the data set brings no validation set, and no share to hold out is given, it is `VAL_FRACTION`.
    """
    from_file = options_in_file(file, set_here=SET_HERE, command="search-lambda")

    def tried(**validation: str) -> tuple[Config, Task]:
        config = resolve({"no_test": True, **validation, **flags}, file)
        from jocor_fast.config.task import build_task

        return config, build_task(config, announce=partial(say, console))

    said = {*flags, *from_file}
    if not said & {"val_fraction", "val_labels"}:
        config, task = tried()
        if task.val is not None:
            return config, task
    held_out = {"val_fraction": VAL_FRACTION, "val_labels": VAL_LABELS}
    config, task = tried(**{name: value for name, value in held_out.items() if name not in said})
    if task.val is None:
        raise ConfigError(f"{config.label('val_fraction')} must be above 0: λ is chosen by what is held out")
    return config, task


def _grid(text: str | None) -> tuple[float, ...]:
    if text is None:
        return GRID
    try:
        values = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        values = ()
    if not values or not all(0 <= value <= 1 for value in values):  # NaN fails the comparison
        raise ConfigError(f"--grid must be numbers in [0, 1], such as 0.05,0.35,0.95, got {text!r}")
    return values


def _default_jobs(config: Config) -> int:
    """Return how many runs are made at once: one a core; one on a GPU."""
    with config.engine_complaints():
        return 1 if resolve_device(config.training.device).type == "cuda" else usable_cores()
