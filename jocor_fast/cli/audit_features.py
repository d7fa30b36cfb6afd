"""`jocor-fast audit --features FILE` and `--dataset NAME --pretrained FILE`: wrong labels by embeddings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from jocor_fast.arguments import at_least, check_forget_rate
from jocor_fast.cli import features
from jocor_fast.cli.audit_outputs import Outputs
from jocor_fast.cli.flags import declare_alone, declare_within, parse_device
from jocor_fast.config.options import OPTIONS
from jocor_fast.config.resolve import flag_value, name_of_data
from jocor_fast.data.arrays import read_array, reading, split_key, user_path
from jocor_fast.data.columns import check_complete, read_by_id, text_encoding
from jocor_fast.data.dataset import Dataset, numbered
from jocor_fast.diagnosis.corrected_folder import other_images
from jocor_fast.errors import ConfigError, DataError, called
from jocor_fast.files.whole_file import check_writable
from jocor_fast.report.screen import phase, say, say_subjects
from jocor_fast.report.tables import duration, percent

if TYPE_CHECKING:
    import numpy as np

    from jocor_fast.diagnosis.encoder_features import Description

_FLAGS = {"features": "--features", "labels": "--labels", "forget_rate": "--forget-rate"}
_FLAGS_OF_DATASET = {"features": "--dataset", "labels": "--dataset", "forget_rate": "--forget-rate"}
OF_NETWORK = tuple(name for name in features.TAKEN if name != "data_root")
ROWS = "features.npz"
OPTIONAL = ("names", "paths", "forget_rate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what goes with --features."""
    group = parser.add_argument_group("embeddings, in place of RUN")
    group.add_argument("--features", metavar="FILE", help="embeddings [N, D]: FILE.npy, FILE.npz:KEY or FILE.pt:KEY")
    group.add_argument(
        "--labels",
        metavar="FILE",
        help="their labels, numbers or names (default: labels in FILE.npz)",
    )
    group.add_argument("--names", metavar="FILE.txt", help="class names for the page, a line each")
    group.add_argument("--paths", metavar="FILE.csv", help="the samples' images: columns id,path")
    group.add_argument("--forget-rate", metavar="R", help="share of wrong labels, where it is known")
    for name in ("seed", "device"):
        declare_alone(group, name)
    group = parser.add_argument_group("a data set and a pretrained network, in place of RUN (see features --help)")
    declare_within(group, features.options(*OF_NETWORK))


def _share(text: str | None) -> float | None:
    """Return the share of wrong labels that is known, None where it is to be estimated."""
    if text is None or text == "auto":
        return None
    try:
        share = float(text)
    except ValueError:
        raise ConfigError(f"--forget-rate must be a number or auto, got {text!r}") from None
    return check_forget_rate(share)


def run_by_network(arguments: argparse.Namespace, outputs: Outputs, console: Console) -> int:
    """Compute features of a data set, unless an earlier call did, and find wrong labels by them, as `run`."""
    if arguments.runs or arguments.features is not None:
        raise ConfigError("audit takes the folder of a run, --features or --dataset, got two of them")
    taken = {name: value for name in ("data_root", "device") if (value := getattr(arguments, name)) is not None}
    given = {name: value for name, value in vars(arguments).items() if name in OF_NETWORK}
    config = features.resolved({**taken, **given})
    if arguments.output is None:
        arguments.output = f"runs/audit-{name_of_data(config.dataset)}"
    output = user_path(arguments.output)
    check_writable(output)
    from jocor_fast.diagnosis.encoder_features import FEATURES

    dataset = features.compute(config, output / ROWS, console)
    arguments.features = f"{output / ROWS}:{FEATURES}"
    return run(arguments, outputs, console, dataset)


def run(arguments: argparse.Namespace, outputs: Outputs, console: Console, dataset: Dataset | None = None) -> int:
    """Write the files and say what was found; 0, or a ConfigError or DataError.

    `dataset` is what the features were made of, if that is known.
    """
    if arguments.runs:
        raise ConfigError("audit takes the folder of a run, or --features and --labels, got both")
    for name in ("features", "output"):
        if getattr(arguments, name) is None:
            raise ConfigError(f"audit takes --features, --labels and --output together, got no --{name}")
    check_writable(user_path(arguments.output))
    with called({"seed": "--seed", "forget_rate": "--forget-rate"}):
        seed = at_least("seed", flag_value(OPTIONS["seed"], arguments.seed), 0)
        share = _share(arguments.forget_rate)
    device = parse_device(arguments.device)
    import numpy as np

    from jocor_fast.diagnosis.audit_files import AuditFiles, pictures_of
    from jocor_fast.diagnosis.feature_audit import audit_rows, check_features, memory_needed
    from jocor_fast.diagnosis.feature_heads import seconds_needed

    flags = _FLAGS_OF_DATASET if "dataset" in arguments else _FLAGS
    with phase(console, "reading the features"), called(flags):
        table, rows = read_rows(arguments.features, arguments.labels)
    given, num_classes, ids = rows.given, len(rows.labels), np.arange(len(table))
    if arguments.names is not None:
        rows = replace(rows, names=read_names(arguments.names, num_classes))
    if arguments.paths is not None:
        paths = read_paths(arguments.paths, len(table))
        rows = replace(rows, paths=paths, folder=user_path(arguments.paths).parent)
    outputs.check(rows.source, rows.paths, rows.folder)
    if not rows.readable.all():
        ids = np.flatnonzero(rows.readable)
        table = check_features(table[ids])
    seconds = seconds_needed(len(table), table.shape[1], len(np.unique(given[ids])), device)
    say(
        console,
        f"{len(table):,} rows of {table.shape[1]:,} features, {num_classes:,} classes: "
        f"about {memory_needed(table, num_classes) / 1e6:,.0f} MB of memory on top of the features, "
        f"and {duration(seconds)}",
    )
    with phase(console, "training on the features", "epochs") as update, called(flags):
        found = audit_rows(
            table, given[ids], num_classes, share=share, seed=seed, device=device, epochs=None, on_epoch=update
        )
    picture = None if dataset is None else pictures_of(dataset)
    written = AuditFiles(
        rows.source,
        found,
        rows.labels,
        rows.names,
        ids=ids,
        given_labels=given,
        paths=rows.paths,
        folder=rows.folder,
        others=() if dataset is None else other_images(dataset),
        picture=picture if rows.paths is None else rows.picture,
    )
    files = outputs.write(written, user_path(arguments.output), console)
    low, high = found.share_range
    subjects = {
        "data": f"{rows.source}: {len(ids):,} rows of features",
        "wrong": f"{int(found.wrong.sum()):,} labels, {percent(float(found.wrong.mean()))} %, are probably wrong",
        "share": f"estimated at {percent(found.share)} % (between {percent(low)} and {percent(high)} %)",
    }
    say_subjects(console, {**subjects, **files})
    return 0


def read_rows(features: str, labels: str | None) -> tuple[np.ndarray, Description]:
    """Return the features in a file, mapped into memory where that can be, and what is known of their rows."""
    import numpy as np

    from jocor_fast.data.labels import read_own_labels
    from jocor_fast.diagnosis.encoder_features import FEATURES, Description, read_description
    from jocor_fast.diagnosis.feature_audit import check_features

    rows = check_features(read_array(features, "features", mapped=True))
    file, key = split_key(features)
    known = read_description(user_path(file), len(rows)) if key == FEATURES and file.endswith(".npz") else None
    if labels is None:
        if known is None:
            raise ConfigError("audit takes --features, --labels and --output together, got no --labels")
        return rows, known
    given, table = read_own_labels(labels, len(rows))
    classes = table or numbered(int(given.max()) + 1)
    if known is None:
        return rows, Description(Path(file).stem, given, classes, classes, readable=np.ones(len(rows), bool))
    names = known.names if table is None and len(known.names) == len(classes) else classes
    return rows, replace(known, given=given, labels=classes, names=names)


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
