"""`jocor-fast estimate-noise`: τ and the noise matrix of a data set's labels, before any long run."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from jocor_fast.cli.flags import declare
from jocor_fast.config.options import AUTO, OPTIONS
from jocor_fast.config.resolve import default_run_name, resolve
from jocor_fast.errors import ConfigError
from jocor_fast.files.names import NOISE_ESTIMATE, NOISE_MATRIX
from jocor_fast.files.whole_file import check_writable, write_array, write_json
from jocor_fast.report.screen import phase, say, say_subjects
from jocor_fast.report.tables import percent

SUMMARY = "estimate how many labels are wrong, and the noise matrix"
USAGE = "[OPTIONS]"
HOW_TO_GO_ON = "run it again"
DESCRIPTION = """\
Estimate the share of wrong labels (τ, for train --forget-rate) and the noise
matrix. Where a part with true labels is held out (--val-fraction with
--val-labels clean), its wrong labels are counted. Otherwise two networks are
trained briefly, each on half of the data, and predict the other half; their
error rate is measured on a validation set with true labels, if there is one.
Without one, networks that cannot learn the classes overestimate the share, and
a warning says so.
train --forget-rate auto does the same before it trains."""

MATRIX = "transition.npy"
TAKEN = (
    *("dataset", "data_root", "labels", "clean_labels", "labels_are_clean"),
    *("noise", "noise_rate", "noise_seed", "noise_matrix"),
    *("model", "pretrained", "epochs", "batch_size", "lr", "optimizer", "weight_decay", "augment", "seed"),
    *("val_fraction", "val_labels", "image_size", "normalisation", "loader", "strict"),
    *("device", "precision", "no_graph", "output"),
)
OWN = {
    "epochs": replace(
        OPTIONS["epochs"],
        help="epochs on each half of the data",
        default=None,
        why="5; more where an epoch has few steps",
    ),
    "val_labels": replace(OPTIONS["val_labels"], help="which labels of the held-out part are known", why=""),
    "output": replace(OPTIONS["output"], help="folder for estimate and matrix", why="runs/noise-DATASET-…"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare those options of `train` that say what the labels are and how networks are trained."""
    declare(parser, (OWN.get(name, OPTIONS[name]) for name in TAKEN))


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Estimate, print and write; 0, or a ConfigError, DataError or RunError."""
    flags = {name: value for name, value in vars(arguments).items() if name in OPTIONS}
    config = resolve({"forget_rate": AUTO, "no_test": True, **flags}, arguments.config)
    if config.val_labels == "small-loss":
        raise ConfigError(f"{config.label('val_labels')} must be clean or noisy for estimate-noise, got 'small-loss'")
    output = Path(config.output if config.given("output") else f"runs/noise-{default_run_name(config)}")
    check_writable(output)
    from jocor_fast.config.task import build_task
    from jocor_fast.diagnosis.noise_estimate import estimate_noise
    from jocor_fast.report.noise_matrix import draw_noise_matrices

    task = build_task(config, announce=partial(say, console))
    epochs = config.training.epochs if config.given("epochs") else None
    with phase(console, "estimating the noise", "epochs") as on_epoch:
        found = estimate_noise(config, task, epochs=epochs, on_epoch=on_epoch)
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / NOISE_ESTIMATE, found.as_dict())
    write_array(output / MATRIX, found.transition)
    draw_noise_matrices(
        {f"{task.dataset.name}, estimated": found.transition}, output / NOISE_MATRIX, task.dataset.class_names
    )
    subjects = {
        "data": f"{task.dataset.name}: {len(task.train.labels):,} training samples, {task.dataset.num_classes} classes",
        "τ": f"{percent(found.rate)} ± {percent(found.uncertainty)} % of the labels are wrong",
        "method": found.method,
        "estimate": str(output / NOISE_ESTIMATE),
        "matrix": f"{output / MATRIX}, {output / NOISE_MATRIX}",
        "next": f"jocor-fast train … --forget-rate {found.rate:.3f}",
    }
    say_subjects(console, subjects)
    return 0
