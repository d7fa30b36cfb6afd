"""The data sets by name, and where they are looked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from jocor_fast.data.arrays import user_path
from jocor_fast.data.dataset import Dataset
from jocor_fast.data.images.clothing1m import CLOTHING1M, find_clothing1m, load_clothing1m
from jocor_fast.data.images.image_set import ImageDataset
from jocor_fast.data.images.lists import load_csv, load_folder
from jocor_fast.data.memory.cifar import CIFAR_LAYOUTS, find_cifar, load_cifar
from jocor_fast.data.memory.digits import load_digits
from jocor_fast.data.memory.idx import IDX_SITES, find_idx_dataset, load_idx_dataset
from jocor_fast.data.memory.npz import load_npz_dataset
from jocor_fast.errors import ArgumentTypeError, ArgumentValueError, DataError

DATASETS = ("digits", *IDX_SITES, *CIFAR_LAYOUTS, CLOTHING1M)
ROOT_VARIABLE = "JOCOR_FAST_DATA"
NPZ_PREFIX, FOLDER_PREFIX, CSV_PREFIX = "npz:", "folder:", "csv:"


def default_root() -> Path:
    """The folder of data sets where none is given: $JOCOR_FAST_DATA, else ~/.cache/jocor_fast.

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
) -> Dataset | ImageDataset:
    """Load a data set into memory; of one that lies in image files, the lists.

    Args:
        name: "digits" (embedded), "mnist", "fashion-mnist", "cifar10", "cifar100", "clothing1m", "npz:FILE",
            "folder:DIR" or "csv:FILE".
        root: the folder of data sets (`--data-root`), default `default_root()`: NAME is looked for in root/NAME, then
            in root itself. MNIST and Fashion-MNIST are downloaded into root/NAME where they are in neither.
        announce: called with a sentence before each download, and with the data set's notes.

    Raises:
        TypeError: `name` is not a str.
        ArgumentValueError: the name is unknown.
        DataError (a ValueError too): the data set is absent or broken; one sentence names the file, the fault and, for
            what is absent, where to get it.
    """
    dataset = _loaded(name, root, announce)
    if announce is not None and isinstance(dataset, ImageDataset):
        for note in dataset.notes:
            announce(f"note: {note}")
    return dataset


def _loaded(
    name: str, root: str | os.PathLike[str] | None, announce: Callable[[str], None] | None
) -> Dataset | ImageDataset:
    if not isinstance(name, str):
        raise ArgumentTypeError("dataset", f"must be a str, got {type(name).__name__}")
    if name in (NPZ_PREFIX, FOLDER_PREFIX, CSV_PREFIX):  # an empty path would be the current folder
        raise ArgumentValueError("dataset", f"must name a file or folder after {name!r}, got nothing")
    if name == "digits":
        return load_digits()
    if name.startswith(NPZ_PREFIX):
        return load_npz_dataset(user_path(name.removeprefix(NPZ_PREFIX)), name=name)
    if name.startswith(FOLDER_PREFIX):
        return load_folder(user_path(name.removeprefix(FOLDER_PREFIX)), name)
    if name.startswith(CSV_PREFIX):
        return load_csv(user_path(name.removeprefix(CSV_PREFIX)), name)
    folders = searched_folders(name, root)
    if name in IDX_SITES:
        return load_idx_dataset(name, folders, announce)
    if name in CIFAR_LAYOUTS:
        return load_cifar(name, folders)
    if name == CLOTHING1M:
        return load_clothing1m(folders)
    raise ArgumentValueError(
        "dataset", f"must be one of {', '.join(DATASETS)}, npz:FILE, folder:DIR or csv:FILE, got {name!r}"
    )


def holds_files(name: str) -> bool:
    """Whether a data set of this name is one of image files."""
    return name == CLOTHING1M or name.startswith((FOLDER_PREFIX, CSV_PREFIX))


def has_clean_labels(name: str) -> bool:
    """Whether the labels of a data set of this name count as right: those of the benchmarks, not a user's own."""
    return name in DATASETS and name != CLOTHING1M


def has_a_place(name: str) -> bool:
    """Whether a data set of this name says by itself where it lies, so that no folder of data sets is searched."""
    return name == "digits" or name.startswith((NPZ_PREFIX, FOLDER_PREFIX, CSV_PREFIX))


def searched_folders(name: str, root: str | os.PathLike[str] | None = None) -> tuple[Path, Path]:
    """Where a data set of files is looked for, in this order."""
    base = default_root() if root is None else user_path(root)
    return base / name, base


def find_dataset(name: str, root: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder or file that `load_dataset` would read one of `DATASETS` from, without reading it.

    None where it is absent, and for digits, which are part of scikit-learn.
    """
    folders = searched_folders(name, root)
    if name == CLOTHING1M:
        return find_clothing1m(folders)
    if name in IDX_SITES:
        return find_idx_dataset(folders)
    return find_cifar(name, folders) if name in CIFAR_LAYOUTS else None
