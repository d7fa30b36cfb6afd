"""A data set of image files: which files, their labels, and how they are split. No image is opened here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jocor_fast.data.images.preprocessing import CROP
from jocor_fast.errors import ArgumentValueError, DataError

SMALLEST_CROP = 8  # cnn halves it three times
MOST_TRIED = 100  # where none of so many files can be read, the folder is wrong, not the files


@dataclass(frozen=True, eq=False)
class ImageList:
    """Files and their labels, in data-set order: image i keeps its number i.

    Attributes:
        folder: what the paths are relative to.
        paths: [N], as the data set's own lists have them.
        labels: int64 [N], 0 … C−1.
        clean_labels: int64 [N], the truth, where the data set tells it, else None.
    """

    folder: Path
    paths: Sequence[str]
    labels: np.ndarray
    clean_labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def subset(self, ids: np.ndarray) -> ImageList:
        """The images with these numbers, in this order."""
        clean = None if self.clean_labels is None else self.clean_labels[ids]
        return ImageList(self.folder, [self.paths[i] for i in ids.tolist()], self.labels[ids], clean)


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """A data set of image files.

    Attributes:
        name: as it was asked for, such as "clothing1m" or "folder:photos".
        train: labels are noisy, or may be.
        test, val: labels are taken as the truth; None where the data set has no such part.
        class_names: what the classes 0 … C−1 are called.
        label_table: the labels in the data set's files, in the order 0 … C−1, where they are not those numbers.
        resize: (height, width) that every image is squashed to, or the length of its short side.
        crop: side of the square that a network sees of it.
        noise_estimate: share of wrong training labels, measured on images that have a clean label too; else None.
        default_model: the network for this data where none is asked for.
        notes: what a user should know of how the files were read, a sentence each.
        source: the folder or file that it was read from, for messages.
    """

    name: str
    train: ImageList
    class_names: tuple[str, ...]
    test: ImageList | None = None
    val: ImageList | None = None
    label_table: tuple[str, ...] | None = None
    resize: tuple[int, int] | int = 256
    crop: int = CROP
    noise_estimate: float | None = None
    default_model: str = "resnet18"
    notes: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        for part, images in (("training", self.train), ("test", self.test), ("validation", self.val)):
            if images is not None and not len(images):
                raise DataError(f"{self.source} has no {part} image")

    def at_size(self, crop: int) -> ImageDataset:
        """The same images with another crop, resized to as much more than that as before."""
        if crop < SMALLEST_CROP:
            raise ArgumentValueError("image_size", f"must be at least {SMALLEST_CROP}, got {crop}")
        height, width = (self.resize, self.resize) if isinstance(self.resize, int) else self.resize
        height, width = round(height * crop / self.crop), round(width * crop / self.crop)
        return replace(self, resize=height if isinstance(self.resize, int) else (height, width), crop=crop)

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_names)

    @property
    def train_labels(self) -> np.ndarray:
        """int64 [N], the data set's own training labels."""
        return self.train.labels


def spread(count: int) -> Iterator[int]:
    """The numbers 0 … count − 1, the first `MOST_TRIED` of them from all over: a whole class may be spoilt."""
    stride = max(1, count // MOST_TRIED)
    for first in range(stride):
        yield from range(first, count, stride)


def none_readable(folder: Path, tried: int, path: str, reason: str) -> DataError:
    """What ends a run, or another command, that finds no image to go on with; `path` is one of those tried."""
    return DataError(
        f"{folder}: none of {tried} images, tried all over the data set, can be read, the first of them is {path} "
        f"({reason})"
    )
