"""`jocor-fast plot RUN…`: runs side by side, and the label noise that they were trained with."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from jocor_fast.cli.flags import declare_alone
from jocor_fast.data.arrays import user_path
from jocor_fast.errors import ConfigError, DataError, RunError
from jocor_fast.files.names import COMPARISON, CONFIG, NOISE_MATRIX, read_json, read_summary
from jocor_fast.report.comparison import ComparedRun, comparison_table, find_runs, grouped, lines_of
from jocor_fast.report.screen import counted, say, say_subjects

if TYPE_CHECKING:
    import numpy as np

SUMMARY = "draw runs and their noise matrices, and print their numbers"
USAGE = "RUN [RUN ...] [OPTIONS]"
HOW_TO_GO_ON = "run it again"
DESCRIPTION = """\
Draw test accuracy and label precision of runs by epoch: a column for each data
set and noise, a line for each setting, with the mean and standard deviation of
runs that differ only in their seeds; print the same numbers as a table. Where
the true labels are known, also draw the noise matrix. RUN is the folder of a
run, or a folder of runs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="*", help="folder of a run, or of runs")
    parser.add_argument("--output", metavar="DIR", default=".", help="folder for the figures (default: .)")
    declare_alone(parser, "data_root")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Draw the figures, or a ConfigError or RunError."""
    if not arguments.runs:
        raise ConfigError("plot takes the folders of runs, got none")
    by_folder: dict[Path, ComparedRun] = {}  # "runs runs/*" names each of them twice
    for folder in map(Path, arguments.runs):
        found = find_runs(folder)
        if not found:
            raise RunError(f"{folder} holds no run, nor does any folder in it (no metrics.jsonl)", "RUN")
        by_folder |= {run.folder.resolve(): run for run in found}
    runs = list(by_folder.values())
    output = user_path(arguments.output)
    output.mkdir(parents=True, exist_ok=True)
    from jocor_fast.report.curves import draw_comparison
    from jocor_fast.report.noise_matrix import draw_noise_matrices

    panels = grouped(runs)
    draw_comparison(panels, output / COMPARISON)
    say_subjects(console, {counted(len(runs), "run"): str(output / COMPARISON)})
    console.print(comparison_table(lines_of(panels), next(iter(panels)) if len(panels) == 1 else "Runs").rich())
    matrices, classes = _noise_matrices(runs, arguments.data_root, console)
    if matrices:
        draw_noise_matrices(matrices, output / NOISE_MATRIX, classes)
        say_subjects(console, {"noise": str(output / NOISE_MATRIX)})
    return 0


def _noise_matrices(
    runs: Sequence[ComparedRun], data_root: str | None, console: Console
) -> tuple[dict[str, np.ndarray], Sequence[str] | None]:
    """Return the realised matrix of each data title, from its first run, and F-correction's estimates.

    Where there is none, a line says why. Class names only where all matrices are of one data set.
    """
    from jocor_fast.config.stored_run import task_of_run
    from jocor_fast.report.noise_matrix import realised_matrix

    matrices: dict[str, np.ndarray] = {}
    names: dict[str, Sequence[str]] = {}
    for title, first in {run.data_title: run for run in reversed(runs)}.items():
        try:
            task = task_of_run(read_json(first.folder / CONFIG) or {}, data_root)
        except (ConfigError, DataError) as error:
            say(console, f"no noise matrix of {title}: {error}")
            continue
        if task is None or task.train.clean_labels is None:
            say(console, f"no noise matrix of {title}: its true labels are unknown")
            continue
        clean, noisy = task.train.clean_labels.numpy(), task.train.labels.numpy()
        if (clean == noisy).all():
            say(console, f"no noise matrix of {title}: no label is wrong")
            continue
        names[first.settings["dataset"]] = task.dataset.class_names
        matrices[title] = realised_matrix(clean, noisy, task.dataset.num_classes)
    matrices.update(_estimates(runs, matrices))
    return dict(sorted(matrices.items())), next(iter(names.values())) if len(names) == 1 else None


def _estimates(runs: Sequence[ComparedRun], titles: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the matrices that F-correction estimated, one a data title, for those whose truth is drawn."""
    import numpy as np

    found: dict[str, np.ndarray] = {}
    for run in runs:
        estimate = read_summary(run.folder).get("transition")
        if estimate is not None and run.data_title in titles:
            found.setdefault(f"{run.data_title}: F-correction's estimate", np.asarray(estimate, dtype=float))
    return found
