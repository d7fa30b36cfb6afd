"""`jocor-fast features`: what a pretrained network makes of the samples of a data set, as a file for `audit`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from jocor_fast.cli.flags import declare
from jocor_fast.config.options import OPTIONS
from jocor_fast.config.resolve import Config, read_config_file, resolve
from jocor_fast.errors import ConfigError, RunError
from jocor_fast.files.names import BAD_FILES
from jocor_fast.files.whole_file import check_writable, write_bytes
from jocor_fast.machine import resolve_device
from jocor_fast.option import Option
from jocor_fast.report.screen import counted, phase, say, say_subjects, warn

if TYPE_CHECKING:
    from jocor_fast.data.dataset import Dataset

SUMMARY = "compute features of a data set by a pretrained network"
USAGE = "--dataset NAME --pretrained FILE [OPTIONS]"
HOW_TO_GO_ON = "use --resume to continue"
DESCRIPTION = """\
Evaluate a network on the training samples of a data set, and write the inputs
of its last layer: features in which audit finds wrong labels. The archive also
holds labels, class names and the paths of images:
    jocor-fast features --dataset folder:photos --model resnet18 \\
        --pretrained resnet18.pt --output photos.npz
    jocor-fast audit --features photos.npz:features --output audited
Images are preprocessed as test images are in training. Files that cannot be
read are listed, and their rows are NaN, which audit leaves out."""

OWN = {
    "dataset": replace(OPTIONS["dataset"], default=None, why=""),
    "model": replace(OPTIONS["model"], help="a torchvision classifier such as resnet18, or mlp, cnn"),
    "pretrained": replace(
        OPTIONS["pretrained"],
        help="weights of the network: FILE.pt (a state_dict, or a run's best.pt), or the word default (torchvision's)",
        why="",
    ),
    "image_size": replace(OPTIONS["image_size"], why="what most networks were trained with"),
    "batch_size": replace(OPTIONS["batch_size"], help="samples at once", why=""),
    "strict": replace(OPTIONS["strict"], help="stop at the first unreadable file instead of leaving it out"),
    "output": replace(OPTIONS["output"], metavar="FILE.npz", help="file for the features", why=""),
    "resume": replace(OPTIONS["resume"], help="continue an interrupted pass, or start if there is none"),
}
MADE_BY = ("model", "image_size", "normalisation", "loader", "batch_size")  # and by what `checksums` says
TAKEN = ("dataset", "data_root", "model", "pretrained", "batch_size", "image_size", "normalisation", "loader", "strict")
NEEDED = {"dataset": "what to compute features of", "pretrained": "the weights of the network"}


def options(*names: str) -> list[Option]:
    """Return options as this command describes them."""
    return [OWN.get(name, OPTIONS[name]) for name in names]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare those options of `train` that say what the samples are and by which network."""
    declare(parser, options(*TAKEN, "device", "output", "resume"))


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Compute and write; 0, or a ConfigError, DataError or RunError."""
    config = resolved({name: value for name, value in vars(arguments).items() if name in OPTIONS}, arguments.config)
    output = Path(config.output)
    if not config.given("output") or output.suffix != ".npz" or output.is_dir():
        got = repr(config.output) if config.given("output") else "nothing"
        raise ConfigError(f"--output must be a file whose name ends in .npz, got {got}")
    from jocor_fast.diagnosis.encoder_features import FEATURES, partial_folder

    partly = partial_folder(output)
    if not config.resume and output.exists():
        raise RunError(f"--output: {output} exists; give another name, or remove it")
    if not config.resume and partly.exists():
        raise RunError(f"--output: {partly} is of an interrupted pass; use --resume to continue, or remove it")
    dataset = compute(config, output, console)
    say_subjects(
        console,
        {
            "data": f"{dataset.name}: {counted(len(dataset.train), 'sample')}, {dataset.num_classes:,} classes",
            "features": str(output),
            "next": f"jocor-fast audit --features {output}:{FEATURES} --output DIR",
        },
    )
    return 0


def resolved(flags: Mapping[str, str | bool], file: str | None = None) -> Config:
    """Return the options of a pass; a ConfigError where one is missing."""
    given = {*flags, *({} if file is None else read_config_file(file))}
    for name, purpose in NEEDED.items():
        if name not in given:
            raise ConfigError(f"--{name} is needed: {purpose}")
    return resolve(flags, file)


def compute(config: Config, output: Path, console: Console) -> Dataset:
    """Write the features, unless they are there or to be continued, and return the data set that they are of."""
    from jocor_fast.config.task import load_data
    from jocor_fast.diagnosis.encoder_features import FeaturePass, checksums
    from jocor_fast.models.networks import build_encoder
    from jocor_fast.models.pretrained import read_weights

    check_writable(output.parent)
    device = resolve_device(config.training.device)
    with config.engine_complaints():
        dataset = load_data(config, partial(say, console))
        assert config.model is not None
        assert config.pretrained is not None
        encoder = build_encoder(config.model, dataset.input_shape, read_weights(config.pretrained, config.model))
        settings = {name: config.value(name) for name in MADE_BY} | checksums(dataset, encoder)
        features = FeaturePass(dataset, encoder.to(device), output, settings, device, config.training.batch_size)
        if features.is_written():
            say(console, f"{output} has these features already")
            return dataset
        with phase(console, "computing features", "samples") as update:
            bad_files = features.write(partial(say, console), update)
    if len(bad_files):
        listed = output.with_name(f"{output.stem}-{BAD_FILES}")
        write_bytes(listed, bad_files.lines())
        warn(f"{counted(len(bad_files), 'file')} cannot be read and have no features, see {listed}")
    return dataset
