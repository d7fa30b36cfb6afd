"""`jocor-fast reproduce NAME`: the runs of an experiment, then its table and its figure."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from jocor_fast.cli.flags import declare_alone, parse_count, parse_device
from jocor_fast.config.resolve import resolve
from jocor_fast.data.arrays import user_path
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.errors import ConfigError
from jocor_fast.methods import METHODS
from jocor_fast.noise_kinds import Noise
from jocor_fast.paper.experiment_runs import MOST_SEEDS, ExperimentRuns, default_jobs, parse_methods
from jocor_fast.paper.experiments import EXPERIMENTS, Experiment
from jocor_fast.paper.reproduction import CellResult, Figure, draw_results, results_table, write_tables
from jocor_fast.report.screen import counted, say, say_subjects

SUMMARY = "run the paper's experiments: a table and a figure"
USAGE = "NAME [OPTIONS]"
HOW_TO_GO_ON = "run the same command again to continue"
REPORTS = ("best", "last")
RECIPE_PARTS = ("max_batches", "beta1_after")  # where the recipes differ, to be set one at a time


def _experiment_line(experiment: Experiment) -> str:
    names = [METHODS[name].title for name in experiment.methods] or ["all methods of `train`"]
    names += [f"λ = {co_lambda:g}" for co_lambda in experiment.co_lambdas]
    time = f", under {experiment.minutes:g} minutes on two cores" if experiment.minutes else ""
    heading = f"  {experiment.name:<10} {experiment.title}:"
    return f"{heading}\n      {', '.join(names)}\n      {counted(experiment.seeds, 'seed')} each{time}"


_EXPERIMENT_LINES = "\n".join(map(_experiment_line, EXPERIMENTS.values()))
DESCRIPTION = f"""\
Run an experiment: several methods, each with several seeds, then a table and a
figure next to the paper's numbers. Finished runs are not repeated: run the same
command again to continue after a stop. --dry-run prints the plan and an
estimate of the time.

experiments
{_EXPERIMENT_LINES}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `reproduce` takes; the values are checked in `run`."""
    parser.add_argument("experiment", metavar="NAME", nargs="?", help=f"the experiment: {', '.join(EXPERIMENTS)}")
    cells = parser.add_argument_group("runs (default: all of the experiment)")
    cells.add_argument("--methods", metavar="A,B", help="these methods, of those that `train` has; all: every one")
    cells.add_argument("--noise", metavar="A,B", help="only with this noise, such as symmetric-0.5,asymmetric-0.4")
    cells.add_argument("--seeds", metavar="N", help="runs for each method, with seeds and noise seeds 1 … N")
    cells.add_argument("--dataset", metavar="NAME", help="ablation: mnist or cifar10 (default: mnist)")
    training = parser.add_argument_group("training (default: the experiment's settings, then those of `train`)")
    training.add_argument("--epochs", metavar="N", help="epochs of each run")
    training.add_argument(
        "--recipe", metavar="NAME", help="paper or published; published draws the noise once for all seeds"
    )
    for name in RECIPE_PARTS:
        declare_alone(training, name)
    training.add_argument("--val-fraction", metavar="F", help="share of the training data to hold out for validation")
    training.add_argument("--val-labels", metavar="KIND", help="which labels to validate on, as for `train`")
    machine = parser.add_argument_group("machine")
    declare_alone(machine, "device")
    machine.add_argument(
        "--jobs",
        metavar="N",
        help="concurrent runs (default: as many as cores and memory allow; on a GPU 4 for perceptrons, else 1)",
    )
    declare_alone(machine, "data_root")
    machine.add_argument(
        "--output", metavar="DIR", help="folder for runs, table and figure (default: runs/reproduce-DATASET)"
    )
    results = parser.add_argument_group("results")
    results.add_argument(
        "--report", metavar="WHICH", default="last",
        help="accuracy of a run: last (mean over its last ten epochs; default), or best (at its best epoch by "
        "validation accuracy; needs --val-fraction)",
    )  # fmt: skip
    results.add_argument(
        "--dry-run",
        action="store_true",
        help="print the plan, the commands and an estimate of the time, and run nothing",
    )


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Make the runs that are missing, then write and print the results; a RunError if a run failed."""
    experiment = _experiment(arguments.experiment, arguments.dataset)
    asked = _asked(arguments, experiment)
    results = asked.output / experiment.folder
    default = default_jobs(
        parse_device(arguments.device),
        threads=experiment.threads,
        gigabytes=experiment.gigabytes,
        gpu_runs=experiment.gpu_runs,
    )

    def load() -> None:
        for dataset in dict.fromkeys(cell.trained_on for cell in asked.chosen):
            load_dataset(dataset, arguments.data_root, announce=partial(say, console))

    asked.make(
        jobs=parse_count("--jobs", arguments.jobs, default),
        dry_run=arguments.dry_run,
        console=console,
        load=load,
        write=lambda found: write_tables(found, experiment, results),
        report=lambda found: _report(found, experiment, asked.output, console),
    )
    return 0


def _asked(arguments: argparse.Namespace, experiment: Experiment) -> ExperimentRuns:
    """Read the flags; what is wrong with one is a ConfigError that names it."""
    overrides = _overrides(arguments)
    methods, noises = _methods(arguments.methods, experiment), _noises(arguments.noise, experiment)
    chosen = experiment.cells(methods, noises, **overrides)
    recipe = "-published" if arguments.recipe == "published" else ""
    return ExperimentRuns(
        title=experiment.title,
        notes=experiment.notes,
        chosen=chosen,
        cells=experiment.cells(tuple(dict.fromkeys((*(experiment.methods or METHODS), *methods))), **overrides),
        seeds=range(1, parse_count("--seeds", arguments.seeds, experiment.seeds, most=MOST_SEEDS) + 1),
        output=user_path(arguments.output or f"runs/reproduce-{experiment.dataset}{recipe}"),
        threads=experiment.threads,
        figure=Figure(_report_kind(arguments, experiment), experiment.averaged_epochs),
    )


def _experiment(name: str | None, dataset: str | None) -> Experiment:
    if name is None or name not in EXPERIMENTS:
        said = "got nothing" if name is None else f"got {name!r}"
        raise ConfigError(f"reproduce takes the name of an experiment, one of {', '.join(EXPERIMENTS)}, {said}")
    experiment = EXPERIMENTS[name]
    accepted = (experiment.dataset, *experiment.other_datasets)
    if dataset is not None and dataset not in accepted:
        raise ConfigError(f"--dataset must be {' or '.join(accepted)} for {name}, got {dataset!r}")
    return experiment.on(dataset or experiment.dataset)


def _methods(text: str | None, experiment: Experiment) -> tuple[str, ...]:
    if text is None:
        return experiment.methods
    return parse_methods(text, experiment.methods if experiment.co_lambdas else METHODS)


def _noises(text: str | None, experiment: Experiment) -> tuple[Noise, ...]:
    """Return the experiment's noises by name; "asymmetric" also finds the published variant."""
    if text is None:
        return experiment.noises
    chosen = []
    for name in dict.fromkeys(part.strip() for part in text.split(",")):
        kind, _, rate = name.rpartition("-")
        found = [noise for noise in experiment.noises if noise.name == name or _is_noise(noise, kind, rate)]
        if not found:
            names = ", ".join(noise.name for noise in experiment.noises)
            raise ConfigError(f"--noise must name some of {names}, got {name!r}")
        chosen += found
    return tuple(dict.fromkeys(chosen))


def _is_noise(noise: Noise, kind: str, rate: str) -> bool:
    try:
        same_rate = noise.rate is not None and math.isclose(float(rate), noise.rate)
    except ValueError:
        return False
    return same_rate and kind in (noise.kind, noise.kind.removesuffix("-published"))


def _report_kind(arguments: argparse.Namespace, experiment: Experiment) -> str:
    kind: str = arguments.report
    if kind not in REPORTS:
        raise ConfigError(f"--report must be one of {', '.join(REPORTS)}, got {kind!r}")
    held_out = "0" if arguments.val_fraction is None else arguments.val_fraction
    if kind == "best" and not experiment.own_validation and resolve({"val_fraction": held_out}).val_fraction == 0:
        raise ConfigError("--report best needs --val-fraction above 0: test labels choose nothing")
    return kind


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    overrides: dict[str, Any] = {"device": arguments.device}
    if arguments.epochs is not None:
        overrides["epochs"] = parse_count("--epochs", arguments.epochs, 1)
    for name in ("recipe", *RECIPE_PARTS, "val_fraction", "val_labels", "data_root"):
        if getattr(arguments, name) is not None:
            overrides[name] = getattr(arguments, name)
    return overrides


def _report(results: Sequence[CellResult], experiment: Experiment, output: Path, console: Console) -> None:
    folder = output / experiment.folder
    write_tables(results, experiment, folder)
    draw_results(results, folder / "curves.png", experiment.title)
    console.print(results_table(results, experiment.title, brief=True).rich())
    if experiment.name == "digits":
        means = {result.cell.method: result.csv_row()["mean"] for result in results}
        standard, jocor = means.get("standard"), means.get("jocor")
        if standard is not None and jocor is not None:
            points = 100 * (jocor - standard)
            side = "above" if points >= 0 else "below"
            say(console, f"JoCoR is {abs(points):.1f} points {side} Standard.")
    places = {"curves": folder / "curves.png", "table": folder / "table.md, table.csv"}
    say_subjects(console, {what: str(place) for what, place in {**places, "runs": output}.items()}, width=7)
