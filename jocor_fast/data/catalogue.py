"""The data sets by name, and where they are looked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from jocor_fast.data.arrays import user_path
from jocor_fast.data.dataset import Dataset, Entry, Wanted
from jocor_fast.data.images.clothing1m import CLOTHING1M
from jocor_fast.data.images.lists import CSV, FOLDER
from jocor_fast.data.memory.cifar import CIFAR
from jocor_fast.data.memory.cifar10n import CIFAR10N
from jocor_fast.data.memory.digits import DIGITS
from jocor_fast.data.memory.idx import IDX
from jocor_fast.data.memory.npz import NPZ
from jocor_fast.errors import ArgumentTypeError, ArgumentValueError, DataError, did_you_mean

DATASETS: dict[str, Entry] = {
    entry.name: entry for entry in (DIGITS, *IDX, *CIFAR, *CIFAR10N, CLOTHING1M, NPZ, FOLDER, CSV)
}
ROOT_VARIABLE = "JOCOR_FAST_DATA"


def default_root() -> Path:
    """Return the folder of data sets where none is given: $JOCOR_FAST_DATA, else ~/.cache/jocor_fast.

    Raises:
        DataError: neither is known, as in a container whose user has no home.
    """
    told = os.environ.get(ROOT_VARIABLE)
    root = user_path(told or "~/.cache/jocor_fast")
    if not told and root.parts[0] == "~":
        raise DataError(
            f"no folder of data sets is known, as this user has no home; give one, or set ${ROOT_VARIABLE}", "data_root"
        )
    return root


def load_dataset(
    name: str, root: str | os.PathLike[str] | None = None, *, announce: Callable[[str], None] | None = None
) -> Dataset:
    """Load a data set into memory; of one that lies in image files, the lists.

    Args:
        name: a key of `DATASETS`, followed by a path where it ends in a colon: "mnist", "folder:photos".
        root: the folder of data sets (`--data-root`), default `default_root()`: NAME is looked for in root/NAME, then
            in root itself. MNIST and Fashion-MNIST are downloaded into root/NAME where they are in neither.
        announce: called with a sentence before each download, and with the data set's notes.

    Raises:
        TypeError: `name` is not a str.
        ArgumentValueError: the name is unknown.
        DataError (a ValueError too): the data set is absent or broken; one sentence names the file, the fault and, for
            what is absent, where to get it.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError("dataset", f"must be a str, got {type(name).__name__}")
    entry, path = entry_of(name), split_name(name)[1]
    if entry.path and not path:  # an empty one would be the current folder
        raise ArgumentValueError("dataset", f"must name a file or folder after {name!r}, got nothing")
    folders = () if entry.find is None else searched_folders(name, root)
    wanted = Wanted(name, user_path(path), folders, announce or (lambda text: None))
    dataset = entry.load(wanted)
    for note in dataset.notes:
        wanted.announce(f"note: {note}")
    return dataset


def entry_of(name: str) -> Entry:
    """Return what is known of the data set that is asked for by this name; ArgumentValueError for an unknown name."""
    entry = DATASETS.get(split_name(name)[0])
    if entry is None:
        names = [known.spelling for known in DATASETS.values()]
        hint = f" (did you mean folder:{name}?)" if user_path(name).is_dir() else did_you_mean(name, DATASETS)
        rule = f"must be one of {', '.join(names[:-1])} or {names[-1]}"
        raise ArgumentValueError("dataset", f"{rule}, got {name!r}{hint}")
    return entry


def split_name(name: str) -> tuple[str, str]:
    """Return the key of `DATASETS` in the name of a data set, and the path that follows one with a colon, else ""."""
    key, colon, path = name.partition(":")
    return key + colon, path


def searched_folders(name: str, root: str | os.PathLike[str] | None = None) -> tuple[Path, Path]:
    """Return where a data set of files is looked for, in this order."""
    base = default_root() if root is None else user_path(root)
    return base / name, base


def find_dataset(name: str, root: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the folder or file that a data set would be read from, without reading it; None where there is none."""
    entry = DATASETS[name]
    return None if entry.find is None else entry.find(searched_folders(name, root))


def models_text() -> str:
    """Return which network each data set is learnt by where none is asked for: "cnn for cifar10, else mlp"."""
    by_model: dict[str, list[str]] = {}
    for entry in DATASETS.values():
        by_model.setdefault(entry.model, []).append(entry.spelling)
    by_model.pop(Entry.model)
    others = [f"{model} for {' and '.join(names)}" for model, names in by_model.items()]
    return ", ".join((*others, f"else {Entry.model}"))
