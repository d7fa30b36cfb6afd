"""`jocor-fast predict CHECKPOINT PATH…`: what the networks of a run make of images and arrays, as CSV."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from ..config import ConfigError
from ..data.image_file import BadImage
from ..data.image_set import IMAGE_SUFFIXES
from ..engine.environment import resolve_device
from ..engine.errors import RunError
from ..predictor import Predictor
from ..report.tables import csv_text, write_text

SUMMARY = "label images or arrays by the networks of a run"
USAGE = "CHECKPOINT PATH [PATH ...] [OPTIONS]"
HOW_TO_GO_ON = "run it again"
DESCRIPTION = """\
Predict with the networks of a checkpoint (checkpoint.pt, best.pt or the folder
of a run). PATH is an image, a folder of images, FILE.npy or FILE.npz:KEY, each
prepared as the training data were. Printed is CSV: path, index (within an
array), label, confidence."""

NETWORKS = {"1": 0, "2": 1, "mean": None}
BATCH = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `predict` takes."""
    parser.add_argument("paths", metavar="PATH", nargs="*", help="CHECKPOINT, then what to label")
    parser.add_argument(
        "--network",
        metavar="N",
        default="mean",
        help="1, 2, or mean: the mean probabilities of both (default: mean)",
    )
    parser.add_argument("--probabilities", action="store_true", help="add a column for each class")
    parser.add_argument("--output", metavar="FILE", help="write the CSV into a file (default: print it)")
    parser.add_argument("--device", metavar="DEV", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Predict and print; 0, 1 if a file could not be read, or a ConfigError, DataError or RunError."""
    if len(arguments.paths) < 2:
        raise ConfigError("predict takes a checkpoint and at least one path to label")
    if arguments.network not in NETWORKS:
        raise ConfigError(f"--network must be one of {', '.join(NETWORKS)}, got {arguments.network!r}")
    try:
        device = resolve_device(arguments.device)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"--{error}") from error
    predictor = Predictor.load(Path(arguments.paths[0]), device)
    network = NETWORKS[arguments.network]
    if network is not None and network >= len(predictor.networks):
        raise ConfigError(f"--network must be 1 or mean for a checkpoint of one network, got {arguments.network!r}")
    bad: list[str] = []
    columns = ["path", "index", "label", "confidence"]
    if arguments.probabilities:
        columns += [f"p_{name}" for name in predictor.classes]
    text = csv_text(columns, list(_rows(predictor, _inputs(predictor, arguments.paths[1:], bad), network)))
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        write_text(Path(arguments.output), text)
    for line in bad:
        print(f"jocor-fast: warning: {line}", file=sys.stderr)
    if bad:
        raise RunError(f"{len(bad)} of the files could not be read, the others are labelled")
    return 0


class _Input(NamedTuple):
    path: str
    place: int | None  # within an array
    inputs: torch.Tensor


def _inputs(predictor: Predictor, paths: Iterable[str], bad: list[str]) -> Iterator[_Input]:
    """Everything to label, in order; files that cannot be decoded are told in `bad`."""
    for text in paths:
        if text.endswith(".npy") or ".npz:" in text:
            yield from (_Input(text, place, inputs) for place, inputs in enumerate(predictor.array(text)))
            continue
        for path in _images(Path(text)):
            inputs = _image(predictor, path, bad)
            if inputs is not None:
                yield _Input(str(path), None, inputs)


def _image(predictor: Predictor, path: Path, bad: list[str]) -> torch.Tensor | None:
    try:
        return predictor.image(path)
    except BadImage as error:
        bad.append(f"{path}: {error}")
        return None


def _images(path: Path) -> list[Path]:
    """The image itself, or those in a folder and below, by name."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise RunError(f"PATH: there is no image in {path}")
    return found


def _rows(predictor: Predictor, inputs: Iterator[_Input], network: int | None) -> Iterator[dict[str, object]]:
    while batch := list(islice(inputs, BATCH)):
        probabilities = predictor.probabilities(torch.stack([one.inputs for one in batch]), network)
        for one, row in zip(batch, probabilities, strict=True):
            best = int(row.argmax())
            named = {f"p_{name}": f"{p:.6f}" for name, p in zip(predictor.classes, row.tolist(), strict=True)}
            confidence = f"{row[best]:.6f}"
            yield {
                "path": one.path,
                "index": one.place,
                "label": predictor.classes[best],
                "confidence": confidence,
                **named,
            }
