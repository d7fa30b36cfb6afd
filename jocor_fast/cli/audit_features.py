"""`jocor-fast audit --features FILE --labels FILE`: the labels of embeddings that are probably wrong."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from jocor_fast.arguments import at_least
from jocor_fast.cli.audit_outputs import Outputs
from jocor_fast.cli.flags import declare_alone, parse_device
from jocor_fast.config.options import OPTIONS
from jocor_fast.data.arrays import read_array, reading, split_key, user_path
from jocor_fast.data.columns import check_complete, read_by_id, text_encoding
from jocor_fast.data.images.thumbnails import image_file_uri
from jocor_fast.data.labels import read_own_labels
from jocor_fast.diagnosis.audit_files import AuditFiles
from jocor_fast.diagnosis.feature_audit import audit_rows, check_features, memory_needed
from jocor_fast.errors import ConfigError, DataError, called
from jocor_fast.files.whole_file import check_writable
from jocor_fast.report.screen import phase, say, say_subjects
from jocor_fast.report.tables import percent

_FLAGS = {"features": "--features", "labels": "--labels", "forget_rate": "--forget-rate"}
NEEDED = ("features", "labels", "output")
OPTIONAL = ("names", "paths", "forget_rate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what goes with --features."""
    group = parser.add_argument_group("embeddings, in place of RUN")
    group.add_argument("--features", metavar="FILE", help="embeddings [N, D]: FILE.npy, FILE.npz:KEY or FILE.pt:KEY")
    group.add_argument("--labels", metavar="FILE", help="their labels, in the forms that train takes")
    group.add_argument("--names", metavar="FILE.txt", help="class names for the page, a line each")
    group.add_argument("--paths", metavar="FILE.csv", help="the samples' images: columns id,path")
    group.add_argument("--forget-rate", metavar="R", help="share of wrong labels, where it is known")
    for name in ("seed", "device"):
        declare_alone(group, name)


def run(arguments: argparse.Namespace, outputs: Outputs, console: Console) -> int:
    """Write the files and say what was found; 0, or a ConfigError or DataError."""
    if arguments.runs:
        raise ConfigError("audit takes the folder of a run, or --features and --labels, got both")
    for name in NEEDED:
        if getattr(arguments, name) is None:
            raise ConfigError(f"audit takes --features, --labels and --output together, got no --{name}")
    check_writable(user_path(arguments.output))
    with called({"seed": "--seed"}):
        seed = at_least("seed", OPTIONS["seed"].parse(arguments.seed), 0)
    share = None if arguments.forget_rate in (None, "auto") else OPTIONS["forget_rate"].parse(arguments.forget_rate)
    device = parse_device(arguments.device)
    with phase(console, "reading the features"), called(_FLAGS):
        features = check_features(read_array(arguments.features, "features", mapped=True))
        given, table = read_own_labels(arguments.labels, len(features))
    num_classes = int(given.max()) + 1 if table is None else len(table)
    labels = [str(number) for number in range(num_classes)] if table is None else table
    names = labels if arguments.names is None else read_names(arguments.names, num_classes)
    paths = None if arguments.paths is None else read_paths(arguments.paths, len(features))
    title, folder = Path(split_key(arguments.features)[0]).stem, user_path(arguments.paths or ".").parent
    outputs.check(title, paths, folder)
    say(
        console,
        f"{len(features):,} rows of {features.shape[1]:,} features, {num_classes:,} classes: "
        f"about {memory_needed(features, num_classes) / 1e6:,.0f} MB of memory on top of the features",
    )
    with phase(console, "training on the features", "epochs") as update, called(_FLAGS):
        found = audit_rows(
            features, given, num_classes, share=share, seed=seed, device=device, epochs=None, on_epoch=update
        )
    written = AuditFiles(
        title,
        found,
        labels,
        names,
        ids=np.arange(len(given)),
        given_labels=given,
        paths=paths,
        folder=folder,
        picture=None if paths is None else lambda number: image_file_uri(folder / paths[number]),
    )
    files = outputs.write(written, user_path(arguments.output), console)
    low, high = found.share_range
    subjects = {
        "data": f"{title}: {len(given):,} rows of features",
        "wrong": f"{int(found.wrong.sum()):,} labels, {percent(float(found.wrong.mean()))} %, are probably wrong",
        "share": f"estimated at {percent(found.share)} % (between {percent(low)} and {percent(high)} %)",
    }
    say_subjects(console, {**subjects, **files})
    return 0


def read_names(spec: str, num_classes: int) -> Sequence[str]:
    """Return a name for each class."""
    path = user_path(spec)
    with reading(path, "a text file in UTF-8 or UTF-16"):
        names = [line.strip() for line in path.read_text(text_encoding(path)).splitlines() if line.strip()]
    if len(names) != num_classes:
        raise DataError(f"{path} must hold a name for each of {num_classes} classes, got {len(names)}")
    return names


def read_paths(spec: str, count: int) -> Sequence[str]:
    """Return the path of each sample; they start from the folder of the table."""
    path = user_path(spec)
    rows = read_by_id(path, ("path",), (), count)
    check_complete(path, rows, count)
    paths = [rows[number][1]["path"] for number in range(count)]
    if "" in paths:
        raise DataError(f"{path} must hold a path for each id of 0 … {count - 1}, but {paths.index('')} has none")
    return paths
