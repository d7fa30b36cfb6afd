"""`jocor-fast predict CHECKPOINT PATH…`: what the networks of a run make of images and arrays, as CSV."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from jocor_fast.cli.flags import declare_alone, parse_device
from jocor_fast.data.arrays import split_key, user_path
from jocor_fast.data.images.lists import Walk
from jocor_fast.errors import ConfigError, RunError
from jocor_fast.files.whole_file import check_writable, write_text
from jocor_fast.report.screen import phase, visible, warn
from jocor_fast.report.tables import csv_text

if TYPE_CHECKING:
    import torch

    from jocor_fast.config.predictor import Predictor

SUMMARY = "predict the classes of images or arrays"
USAGE = "CHECKPOINT PATH [PATH ...] [OPTIONS]"
HOW_TO_GO_ON = "run it again"
DESCRIPTION = """\
Predict with the networks of a checkpoint (checkpoint.pt, best.pt or the folder
of a run). PATH is an image, a folder of images, FILE.npy, FILE.npz:KEY or, of a
sparse matrix, FILE.npz by scipy.sparse.save_npz, and is preprocessed as in
training. Networks trained on arrays accept only images of the same size, and
gray ones if the arrays were gray. The output is CSV: path, index (within an
array), label, confidence."""

NETWORKS = {"1": 0, "2": 1, "mean": None}
BATCH = 256
MOST_NAMED = 20  # files that are left out, by a line each


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="*", help="CHECKPOINT, then images, folders or arrays")
    parser.add_argument(
        "--network",
        metavar="N",
        default="mean",
        help="1, 2, or mean: the mean probabilities of both (default: mean)",
    )
    parser.add_argument("--probabilities", action="store_true", help="add a column for each class")
    parser.add_argument("--output", metavar="FILE", help="write the CSV into a file (default: print it)")
    declare_alone(parser, "device")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Predict and print; 0, or a ConfigError, DataError or RunError (if files were left out, after printing)."""
    if len(arguments.paths) < 2:
        raise ConfigError("predict takes a checkpoint and at least one path to label")
    if arguments.network not in NETWORKS:
        raise ConfigError(f"--network must be one of {', '.join(NETWORKS)}, got {arguments.network!r}")
    output = None if arguments.output is None else user_path(arguments.output)
    if output is not None:  # before anything is predicted for it
        if output.is_dir():
            raise ConfigError(f"--output must be a file, got the folder {output}")
        check_writable(output.parent)
    device = parse_device(arguments.device)
    from jocor_fast.config.predictor import Predictor

    predictor = Predictor.load(Path(arguments.paths[0]), device)
    network = NETWORKS[arguments.network]
    if network is not None and network >= len(predictor.networks):
        raise ConfigError(f"--network must be 1 or mean for a checkpoint of one network, got {arguments.network!r}")
    bad: list[_Bad] = []
    columns = ["path", "index", "label", "confidence"]
    if arguments.probabilities:
        columns += [f"p_{name}" for name in predictor.classes]
    with phase(console, "labelling", "inputs") as update:
        rows = list(_rows(predictor, _inputs(predictor, arguments.paths[1:], bad, update), network))
    if bad and not rows:
        first = f"{bad[0].path} cannot be labelled: {bad[0].reason}"
        raise RunError(first if len(bad) == 1 else f"none of {len(bad):,} files can be labelled, the first: {first}")
    text = csv_text(columns, rows)
    if output is None:
        if sys.stdout.isatty():  # as `ls` does: for programs the names are what they are
            text = "\n".join(map(visible, text.split("\n")))
        sys.stdout.write(text)
        sys.stdout.flush()  # what cannot be written is to be said by us, and before what is left out
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(output, text)
    for one in bad[:MOST_NAMED]:
        warn(f"{one.path} is left out: {one.reason}")
    if bad:
        files = "1 file is" if len(bad) == 1 else f"{len(bad):,} files are"
        raise RunError(f"{files} left out, the others are labelled")
    return 0


class _Bad(NamedTuple):
    """A file that has no label, and why."""

    path: Path
    reason: str


class _Input(NamedTuple):
    path: str
    place: int | None  # within an array
    inputs: torch.Tensor


def _inputs(
    predictor: Predictor, paths: Iterable[str], bad: list[_Bad], update: Callable[[int, int], None]
) -> Iterator[_Input]:
    """Everything to label, in order; images that cannot be read, or are none for these networks, go to `bad`."""
    from jocor_fast.data.images.image_file import BadImage
    from jocor_fast.data.sparse import dense_rows

    files = [file for text in paths for file in ([text] if _is_array(text) else _images(Path(text)))]
    done, total = 0, len(files)
    for file in files:
        if isinstance(file, str):
            array = predictor.array(file)
            total += len(array) - 1
            found: Iterable[_Input] = (_Input(file, place, inputs) for place, inputs in enumerate(dense_rows(array)))
        else:
            try:
                found = [_Input(str(file), None, predictor.image(file))]
            except BadImage as error:
                bad.append(_Bad(file, str(error)))
                found = []
        for one in found:
            done += 1
            update(done + len(bad), total)
            yield one


def _is_array(text: str) -> bool:
    return split_key(text)[0].lower().endswith((".npy", ".npz")) and not Path(text).is_dir()


def _images(path: Path) -> list[Path]:
    """The image itself, or those in a folder and below, by name; the pictures of runs among them are none."""
    if not path.is_dir():
        return [path]
    walk = Walk()
    found = [Path(image) for image in walk.images(str(path))]
    if not found:
        raise RunError("; ".join((f"there is no image in {path}", *walk.notes())), "PATH")
    for note in walk.notes():
        warn(note)
    return found


def _rows(predictor: Predictor, inputs: Iterator[_Input], network: int | None) -> Iterator[dict[str, object]]:
    import torch

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
