"""`jocor-fast prepare`: resize a data set of image files once, for faster decoding in training."""

from __future__ import annotations

import argparse
import re
from functools import partial

from rich.console import Console

from jocor_fast.cli.flags import declare_alone, parse_count
from jocor_fast.data.arrays import user_path
from jocor_fast.data.catalogue import DATASETS, load_dataset, split_name
from jocor_fast.data.images.preprocessing import Preparation
from jocor_fast.errors import ConfigError, called
from jocor_fast.files.names import BAD_FILES
from jocor_fast.report.screen import listed, phase, say

SUMMARY = "resize a data set of image files once, for faster epochs"
USAGE = "--dataset NAME --output DIR [OPTIONS]"
HOW_TO_GO_ON = "run the same command again to continue"
DESCRIPTION = """\
Write a copy of a data set of image files with every image resized to what
training needs. The names and lists stay the same: `train` reads the copy like
the original, but faster. Existing files are kept: run the same command again to
continue after a stop.
    jocor-fast prepare --dataset clothing1m --output small/clothing1m
    jocor-fast train --dataset clothing1m --data-root small"""

IMAGE_SETS = {entry.name: entry.spelling for entry in DATASETS.values() if entry.holds_files}
MOST_QUALITY = 95  # beyond that, says Pillow's manual, files grow and images do not gain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options; their values are checked in `run`."""
    parser.add_argument("--dataset", metavar="NAME", help=listed(IMAGE_SETS.values(), "or"))
    declare_alone(parser, "data_root")
    parser.add_argument("--output", metavar="DIR", help="folder for the resized data set")
    parser.add_argument(
        "--size",
        metavar="S",
        help="HxW, or the length of the short side (default: 256x256 for clothing1m, as in the paper, else 256)",
    )
    parser.add_argument(
        "--quality", metavar="Q", help=f"quality of the JPEGs, 1 to {MOST_QUALITY} (default: {Preparation.quality})"
    )


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Resize; 0, or a ConfigError or DataError."""
    for name, purpose in (("dataset", "what to resize"), ("output", "the folder for the resized data set")):
        if getattr(arguments, name) is None:
            raise ConfigError(f"--{name} is needed: {purpose}")
    if split_name(arguments.dataset)[0] not in IMAGE_SETS:
        raise ConfigError(f"--dataset must be {listed(IMAGE_SETS.values(), 'or')}, got {arguments.dataset!r}")
    size = parse_size(arguments.size)
    quality = parse_count("--quality", arguments.quality, Preparation.quality, most=MOST_QUALITY)
    output = user_path(arguments.output)
    from jocor_fast.data.images.prepare import prepare

    with called({"dataset": "--dataset", "data_root": "--data-root", "output": "--output"}):
        dataset = load_dataset(arguments.dataset, arguments.data_root, announce=partial(say, console))
        assert dataset.files is not None
        size = dataset.files.preprocessing.resize if size is None else size
        with phase(console, "resizing", "files") as update:
            bad_files = prepare(dataset, output, Preparation(size, quality), update)
    text = f"short side {size}" if isinstance(size, int) else f"{size[0]}×{size[1]}"
    say(console, f"{dataset.name} is in {output}, {text}, quality {quality}")
    if len(bad_files):
        say(console, f"{len(bad_files):,} files cannot be read and are left out, see {output / BAD_FILES}")
    return 0


def parse_size(text: str | None) -> tuple[int, int] | int | None:
    """ "256x256" as (256, 256), "256" as 256."""
    if text is None:
        return None
    match = re.fullmatch(r"([1-9]\d{0,4})(?:[x×]([1-9]\d{0,4}))?", text)
    if match is None:
        raise ConfigError(f"--size must be HxW or a number, such as 256x256 or 256, got {text!r}")
    return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))
