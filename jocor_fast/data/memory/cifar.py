"""CIFAR-10 and CIFAR-100: the usual Python batches, or one .npz archive."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jocor_fast.data.arrays import reading
from jocor_fast.data.dataset import Dataset, DataShape, Entry, Wanted, in_memory
from jocor_fast.data.memory.npz import load_npz_dataset
from jocor_fast.errors import DataError

if TYPE_CHECKING:
    import numpy as np

_IMAGE_SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class _Layout:
    folder: str  # that the archive unpacks to
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    label_key: str
    num_classes: int
    archive: str


CIFAR_LAYOUTS = {
    "cifar10": _Layout(
        folder="cifar-10-batches-py",
        train_files=tuple(f"data_batch_{n}" for n in range(1, 6)),
        test_files=("test_batch",),
        label_key="labels",
        num_classes=10,
        archive="cifar-10-python.tar.gz",
    ),
    "cifar100": _Layout(
        folder="cifar-100-python",
        train_files=("train",),
        test_files=("test",),
        label_key="fine_labels",
        num_classes=100,
        archive="cifar-100-python.tar.gz",
    ),
}


def load_cifar(wanted: Wanted) -> Dataset:
    """Load CIFAR-10 or CIFAR-100: images [N, 3, 32, 32] uint8.

    Each folder in turn is searched for the batches (in it, or in the folder that the published archive unpacks to),
    then for NAME.npz with `x_train`, `y_train`, `x_test`, `y_test`.

    Raises:
        DataError: nothing is found, a batch is missing, or a file is broken.
    """
    name, folders, layout = wanted.name, wanted.folders, CIFAR_LAYOUTS[wanted.name]
    place = find_cifar(name, folders)
    if place is not None and place.is_dir():
        files = {"train": layout.train_files, "test": layout.test_files}
        parts = {part: _read_batches([place / name for name in names], layout) for part, names in files.items()}
        return in_memory(name, parts, layout.num_classes, source=place)
    if place is not None:
        return load_npz_dataset(place, name=name, num_classes=layout.num_classes)
    raise DataError(
        f"{name} is not in {' or '.join(map(str, folders))}: {folders[0]} needs the folder {layout.folder} with "
        f"{', '.join(layout.train_files + layout.test_files)} (unpack {layout.archive} from "
        f"https://www.cs.toronto.edu/~kriz/cifar.html), or {name}.npz with x_train, y_train, x_test, y_test"
    )


def find_cifar(name: str, folders: Sequence[Path]) -> Path | None:
    """The folder of the batches or the .npz archive that `load_cifar` would read; None where there is neither."""
    layout = CIFAR_LAYOUTS[name]
    for folder in folders:
        for place in (folder / layout.folder, folder):
            if os.path.isfile(place / layout.train_files[0]):  # False, too, where a folder may not be searched
                return place
        archive = folder / f"{name}.npz"
        if os.path.isfile(archive):
            return archive
    return None


def _read_batches(paths: Sequence[Path], layout: _Layout) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    images, labels = zip(*(_read_batch(path, layout) for path in paths), strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _read_batch(path: Path, layout: _Layout) -> tuple[np.ndarray, np.ndarray]:
    """The images [N, 3, 32, 32] and labels [N] of one batch."""
    import numpy as np

    from jocor_fast.data.classes import class_numbers
    from jocor_fast.data.pickled_arrays import unpickled, unwrapped

    with reading(path, "a CIFAR batch"), open(path, "rb") as file:
        content = unpickled(file, encoding="bytes")
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a CIFAR batch: it holds a {type(content).__name__}, not a dict")
    batch = {
        key.decode(errors="replace") if isinstance(key, bytes) else key: unwrapped(value)
        for key, value in content.items()
    }
    for key in ("data", layout.label_key):
        if key not in batch:
            raise DataError(f"{path} has no entry {key!r}, only {', '.join(map(str, batch)) or 'nothing'}")
    images = batch["data"]
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (np.prod(_IMAGE_SHAPE),):
        got = f"{images.dtype} {list(images.shape)}" if isinstance(images, np.ndarray) else type(images).__name__
        raise DataError(f"{path} must hold data of uint8 [N, {np.prod(_IMAGE_SHAPE)}], got {got}")
    try:
        labels = class_numbers(batch[layout.label_key], layout.num_classes)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: {error}") from None
    if len(labels) != len(images):
        raise DataError(f"{path} holds {len(images)} images and {len(labels)} labels")
    return images.reshape(-1, *_IMAGE_SHAPE), labels


CIFAR = [
    Entry(
        name,
        load_cifar,
        partial(find_cifar, name),
        model="cnn",
        shape=DataShape(50_000, 10_000, _IMAGE_SHAPE, (50_000 // layout.num_classes,) * layout.num_classes),
    )
    for name, layout in CIFAR_LAYOUTS.items()
]
