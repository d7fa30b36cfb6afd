"""CIFAR-10N: the labels that people gave the training images of CIFAR-10, on frozen features of the images.

Wei et al.: Learning with Noisy Labels Revisited (ICLR 2022). Three people labelled each image. A set of labels holds
what one of them said (random1 to random3), the majority (aggregate), or a wrong label where there is one (worst). The
true labels are known too, so label precision is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jocor_fast.data.arrays import read_npz
from jocor_fast.data.dataset import Dataset, DataShape, Entry, Wanted, in_memory
from jocor_fast.data.memory.npz import as_inputs
from jocor_fast.errors import DataError

if TYPE_CHECKING:
    import numpy as np

# As their authors name them in print, and in their file.
LABEL_SETS = {
    "aggregate": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "worst": "worse_label",
}
NUM_CLASSES = 10
_FOLDER, _FEATURES, _IMAGES = "cifar10", "features.npz", "cifar10_jpeg.npz"
_LABELS = ("CIFAR-10_human.pt", "cifar10n_labels.npz")  # the published file, and the same as arrays


def load_cifar10n(wanted: Wanted, label_set: str) -> Dataset:
    """Load features [N, D] float32 with one of `LABEL_SETS`, the true labels, and the test part.

    Features are centred and divided by one number that gives the columns a mean variance of 1, as networks expect.

    Raises:
        DataError: a file is absent or broken, or the files do not fit together.
    """
    import numpy as np
    import torch

    from jocor_fast.data.labels import read_labels

    folder = find_cifar10n(wanted.folders)
    if folder is None:
        raise DataError(
            f"{wanted.name} is not in {' or '.join(map(str, wanted.folders))}: a folder {_FOLDER} there needs "
            f"{_FEATURES} with x_train and x_test (features [N, D] of the images in their published order) and y_test, "
            f"and {_LABELS[0]} from https://github.com/UCSC-REAL/cifar-10-100n"
        )
    keys = ("x_train", "x_test")
    arrays = read_npz(folder / _FEATURES, lambda _: keys)
    train, test = (as_inputs(x, f"{folder / _FEATURES}: {key}") for key, x in zip(keys, arrays, strict=True))
    file = next(folder / name for name in _LABELS if (folder / name).is_file())
    true = read_labels(f"{file}:clean_label", np.zeros(len(train), np.int64), NUM_CLASSES).noisy
    given = read_labels(f"{file}:{LABEL_SETS[label_set]}", true, NUM_CLASSES).noisy
    mean, spread = train.mean(0), np.sqrt(train.var(0).mean())
    parts = {"train": ((train - mean) / spread, given), "test": ((test - mean) / spread, _test_labels(folder))}
    dataset = in_memory(wanted.name, parts, NUM_CLASSES, source=folder)
    return replace(dataset, train=replace(dataset.train, clean_labels=torch.from_numpy(true)))


def find_cifar10n(folders: Sequence[Path]) -> Path | None:
    """Return the folder, one of these or cifar10 in one of them, with features and labels; None where there is none."""
    for folder in (place for base in folders for place in (base, base / _FOLDER)):
        if (folder / _FEATURES).is_file() and any((folder / name).is_file() for name in _LABELS):
            return folder
    return None


def _test_labels(folder: Path) -> np.ndarray:
    """Return y_test of the features' archive, else the labels of an archive of the images next to it."""
    from jocor_fast.data.classes import class_numbers

    found = read_npz(folder / _FEATURES, lambda keys: [key for key in keys if key == "y_test"])
    if not found and (folder / _IMAGES).is_file():
        found = read_npz(folder / _IMAGES, lambda _: ["test_labels"])
    if not found:
        raise DataError(f"{folder / _FEATURES} must hold the test images' labels as y_test")
    return class_numbers(found[0], NUM_CLASSES)


CIFAR10N = [
    Entry(
        f"cifar10n-{name}",
        partial(load_cifar10n, label_set=name),
        find_cifar10n,
        labels="noisy",
        shape=DataShape(50_000, 10_000, (256,), (5000,) * NUM_CLASSES),  # of whatever width features are
    )
    for name in LABEL_SETS
]
