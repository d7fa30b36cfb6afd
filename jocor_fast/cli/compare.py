"""`jocor-fast compare`: methods on one data set under one noise, each with several seeds; a table and curves."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from jocor_fast.arguments import is_tensor
from jocor_fast.cli.flags import declare, options_in_file, parse_count
from jocor_fast.config.options import AUTO, OPTIONS
from jocor_fast.config.resolve import Config, name_of_data, name_of_noise, resolve
from jocor_fast.data.dataset import DataShape
from jocor_fast.errors import ConfigError
from jocor_fast.files.names import read_json, read_metrics
from jocor_fast.files.whole_file import write_json, write_text
from jocor_fast.machine import resolve_device
from jocor_fast.methods import METHODS, uses_forget_rate
from jocor_fast.noise_kinds import Noise
from jocor_fast.paper.experiment_runs import MOST_SEEDS, ExperimentRuns, default_jobs, parse_methods
from jocor_fast.paper.experiments import EXPERIMENTS, Cell
from jocor_fast.paper.reproduction import CellResult, draw_results, seeds_at_hand
from jocor_fast.paper.run_queue import QueuedRun, check_earlier_run
from jocor_fast.report.comparison import COLUMNS, Line, comparison_table
from jocor_fast.report.metrics import VALIDATION, shown
from jocor_fast.report.screen import phase, say, say_subjects
from jocor_fast.report.summary import last_validation
from jocor_fast.report.tables import csv_text

if TYPE_CHECKING:
    from jocor_fast.config.task import Task

SUMMARY = "compare methods on your data: a table and curves"
USAGE = "[OPTIONS]"
HOW_TO_GO_ON = "run the same command again to continue"
DESCRIPTION = """\
Train several methods on the same data with the same wrong labels, each with
several seeds, then write a table and a figure: test accuracy, label precision
where the true labels are known, and the test accuracy at the epoch of the best
validation accuracy where there is a validation set. Without test data the
methods are compared by validation accuracy. Finished runs are not repeated: run
the same command again to continue after a stop, or with more seeds or other
methods to add them. --dry-run prints the plan and an estimate of the time.

The other options are those of `train`, for every run that they concern."""

ESTIMATE = "noise-estimate.json"
METHODS_SHOWN_FIRST = "standard,jocor"
SEEDS = 3
SET_HERE = ("method", "seed", "resume", "stop_after")
OWN = {
    "noise_seed": replace(OPTIONS["noise_seed"], default=None, why="that of the run: the methods share each draw"),
    "output": replace(OPTIONS["output"], help="folder for runs, table and figure", why="runs/compare-DATASET-NOISE"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `compare` takes; the values are checked in `run`."""
    comparison = parser.add_argument_group("comparison")
    comparison.add_argument(
        "--methods",
        metavar="A,B",
        default=METHODS_SHOWN_FIRST,
        help=f"methods to compare, of {', '.join(METHODS)} (default: {METHODS_SHOWN_FIRST})",
    )
    comparison.add_argument("--seeds", metavar="N", help=f"runs of each method, with seeds 1 … N (default: {SEEDS})")
    comparison.add_argument("--jobs", metavar="N", help="concurrent runs (default: as many as cores and memory allow)")
    comparison.add_argument(
        "--dry-run", action="store_true", help="print the plan, the commands and an estimate of the time"
    )
    declare(parser, (OWN.get(name, option) for name, option in OPTIONS.items() if name not in SET_HERE))


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Make the runs that are missing, then write and print the results; a RunError if a run failed."""
    methods, seeds = (
        parse_methods(arguments.methods),
        parse_count("--seeds", arguments.seeds, SEEDS, most=MOST_SEEDS),
    )
    from_file = options_in_file(arguments.config, set_here=SET_HERE, command="compare")
    flags = {name: value for name, value in vars(arguments).items() if name in OPTIONS}
    config = resolve(flags, arguments.config)
    given = {name: value for name, value in {**from_file, **flags}.items() if name != "output"}
    output = Path(
        config.output
        if config.given("output")
        else f"runs/compare-{name_of_data(config.dataset)}-{name_of_noise(config)}"
    )
    chosen = [_cell(config, given, method) for method in methods]
    _refuse_idle(flags, chosen)
    from jocor_fast.config.task import validation_text

    task = _task(chosen, console)
    if any(cell.settings.get("forget_rate") == AUTO for cell in chosen):
        rate = _forget_rate(chosen, task, output, console, estimate=not arguments.dry_run)
        given["forget_rate"] = rate
        chosen = [_cell(config, given, method) for method in methods]
    others = (Cell(config.dataset, _noise(config), method, given) for method in METHODS if method not in methods)
    earlier = [_cell(config, given, cell.method) for cell in others if (output / cell.run_folder(0)).parent.is_dir()]
    asked = ExperimentRuns(
        title=f"{config.dataset}, {_noise(config).title}",
        notes=[f"Validated on {validation_text(config, task)}."] if task.val is not None else [],
        chosen=chosen,
        cells=[*chosen, *earlier],
        seeds=range(1, seeds + 1),
        output=output,
        threads=_threads(config),
        shape=_shape(task),
    )
    tested = task.test is not None
    jobs = parse_count("--jobs", arguments.jobs, _default_jobs(config, task))
    del task  # the runs read the data for themselves
    asked.make(
        jobs=jobs,
        dry_run=arguments.dry_run,
        console=console,
        load=lambda: None,
        write=lambda results: _write(asked, results),
        report=lambda results: _report(asked, results, console),
        run_figure=None if tested else _validation_accuracy,
    )
    return 0


def _noise(config: Config) -> Noise:
    """Return the noise by which table and folders name the labels; a rate is added to the settings of the runs."""
    drawn = config.noise not in (None, "clean")
    return Noise(str(config.noise), config.noise_rate) if drawn else Noise(name_of_noise(config), None)


def _cell(config: Config, given: Mapping[str, Any], method: str) -> Cell:
    """Return the runs of a method, with those of the given options that change something there."""
    cell = Cell(config.dataset, _noise(config), method, given)
    idle = _idle(cell)
    return replace(cell, settings={name: value for name, value in given.items() if name not in idle})


def _idle(cell: Cell) -> dict[str, str]:
    """Return why options change nothing in the runs of a cell, by name."""
    config = cell.config(1)
    reasons = {name: option.idle(config, 1) for name, option in OPTIONS.items() if option.idle is not None}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _refuse_idle(flags: Mapping[str, Any], chosen: Sequence[Cell]) -> None:
    """Raise ConfigError for a flag that changes nothing in any run; where data sets lie may be said without need."""
    for name in flags:
        if name != "data_root" and not any(name in cell.settings for cell in chosen) and name != "output":
            raise ConfigError(f"{OPTIONS[name].flag} changes nothing: {_idle_reason(name, flags, chosen[0])}")


def _idle_reason(name: str, flags: Mapping[str, Any], cell: Cell) -> str:
    return _idle(replace(cell, settings={**cell.settings, name: flags[name]}))[name]


def _task(chosen: Sequence[Cell], console: Console) -> Task:
    """Return what the runs learn from; what is wrong with it is an error before any run."""
    configs = [cell.config(1) for cell in chosen]
    config = next((one for one in configs if uses_forget_rate(one.training.method, one.val_labels)), configs[0])
    from jocor_fast.config.task import build_task

    task = build_task(config, announce=partial(say, console))
    if task.test is None and task.val is None:
        raise ConfigError(
            f"{config.label('val_fraction')} must be above 0: without test data, methods are compared by the labels "
            "that are held out"
        )
    return task


def _forget_rate(chosen: Sequence[Cell], task: Task, output: Path, console: Console, *, estimate: bool) -> float | str:
    """Return τ of all runs where it is to be estimated: once, from the labels of the first seed; kept in the folder."""
    from jocor_fast.diagnosis.noise_estimate import NoiseEstimate, estimate_noise
    from jocor_fast.noise.estimate import HIGHEST_FORGET_RATE

    stored = read_json(output / ESTIMATE)
    if stored is None:
        for cell in chosen:  # another run in the way is an error before the estimate
            for seed in seeds_at_hand(output, cell):
                check_earlier_run(output / cell.run_folder(seed), cell.config(seed))
        if not estimate:
            return AUTO
        config = next(cell for cell in chosen if "forget_rate" in cell.settings).config(1)
        with phase(console, "estimating the noise", "epochs") as on_epoch:
            stored = estimate_noise(config, task, on_epoch=on_epoch).as_dict()
        output.mkdir(parents=True, exist_ok=True)
        write_json(output / ESTIMATE, stored)
    say(console, f"τ of all runs: estimated {NoiseEstimate.of_dict(stored)}")
    return float(min(stored["rate"], HIGHEST_FORGET_RATE))


def _shape(task: Task) -> DataShape:
    import numpy as np

    dataset = task.dataset
    return DataShape(
        train=len(task.given_labels),
        test=0 if task.test is None else len(task.test.labels),
        val=0 if dataset.val is None else len(dataset.val.labels),
        sample=dataset.input_shape,
        class_counts=tuple(np.bincount(task.given_labels, minlength=dataset.num_classes).tolist()),
        filled=_filled(task.train.inputs),
    )


def _filled(inputs: object) -> float:
    import torch

    if not is_tensor(inputs):
        return 1.0
    numbers = inputs.values() if inputs.layout == torch.sparse_csr else inputs
    return int(torch.count_nonzero(numbers)) / max(1, inputs.numel())


def _threads(config: Config) -> int:
    known = EXPERIMENTS.get(config.dataset)
    return known.threads if known is not None else 1 + config.entry.holds_files


def _default_jobs(config: Config, task: Task) -> int:
    """Return how many runs the machine has cores and memory for; a run of image files takes what Clothing1M's do."""
    known = EXPERIMENTS.get("clothing1m" if config.entry.holds_files else config.dataset)
    inputs = task.train.inputs
    size = 0
    if is_tensor(inputs):
        size = 8 * inputs.values().numel() if inputs.is_sparse_csr else inputs.numel() * inputs.element_size()
    with config.naming("device"):
        device = resolve_device(config.training.device)
    return default_jobs(
        device,
        threads=_threads(config),
        gigabytes=known.gigabytes if known is not None else 0.5 + 4 * size / 2**30,
        gpu_runs=4 if (config.model or config.entry.model) == "mlp" else 1,
    )


def _validation_accuracy(run: QueuedRun) -> str:
    return (
        f"validation accuracy {shown(VALIDATION).text(last_validation(read_metrics(run.folder)))} over its last epochs"
    )


def _lines(results: Sequence[CellResult]) -> list[Line]:
    return [
        Line(
            data=f"{result.cell.dataset}, {result.cell.noise.title}",
            name=result.cell.title,
            runs=list(result.metrics.values()),
            counted=result.counted,
            missing=result.why_missing,
        )
        for result in results
    ]


def _write(asked: ExperimentRuns, results: Sequence[CellResult]) -> None:
    asked.output.mkdir(parents=True, exist_ok=True)
    lines = _lines(results)
    write_text(asked.output / "table.md", comparison_table(lines, asked.title, asked.notes).markdown())
    write_text(asked.output / "table.csv", csv_text(COLUMNS, [line.row() for line in lines]))


def _report(asked: ExperimentRuns, results: Sequence[CellResult], console: Console) -> None:
    _write(asked, results)
    draw_results(results, asked.output / "curves.png", asked.title)
    console.print(comparison_table(_lines(results), asked.title, asked.notes).rich())
    places = {"curves": "curves.png", "table": "table.md, table.csv"}
    say_subjects(
        console,
        {what: str(asked.output / name) for what, name in places.items()} | {"runs": str(asked.output)},
        width=7,
    )
