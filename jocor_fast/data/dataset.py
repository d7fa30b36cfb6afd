"""A data set as its files have it, in memory or as lists of image files, and what is known of one before it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jocor_fast.arguments import is_tensor
from jocor_fast.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from jocor_fast.data.images.source import ImageFiles
    from jocor_fast.data.samples import Samples


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set, in the order of its files.

    Attributes:
        name: as it was asked for, such as "mnist" or "folder:photos".
        train: with the data set's own labels, and the true ones where it has both.
        class_names: what the classes 0 … C−1 are called.
        test, val: labels are taken as the truth; None where the data set has no such part.
        label_table: the labels in the data set's files, in the order 0 … C−1, where they are not those numbers.
        noise_estimate: share of wrong training labels, measured on samples that have a clean label too; else None.
        notes: what a user should know of how the files were read, a sentence each.
        source: the folder or file that it was read from, for messages; "" where there is none.
        lists: files below the folder of the images that say what they are.
    """

    name: str
    train: Samples
    class_names: Sequence[str]
    test: Samples | None = None
    val: Samples | None = None
    label_table: tuple[str, ...] | None = None
    noise_estimate: float | None = None
    notes: tuple[str, ...] = ()
    source: str = ""
    lists: tuple[Path, ...] = ()

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_names)

    @property
    def files(self) -> ImageFiles | None:
        """The files of the training images; None where the data set lies in memory."""
        from jocor_fast.data.images.source import ImageFiles

        return self.train.inputs if isinstance(self.train.inputs, ImageFiles) else None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, as `jocor_fast.models.networks.build_model` takes it."""
        if self.files is not None:
            return (3, self.files.preprocessing.crop, self.files.preprocessing.crop)
        assert is_tensor(self.train.inputs)
        return tuple(self.train.inputs.shape[1:])


def in_memory(
    name: str,
    parts: Mapping[str, tuple[np.ndarray | Tensor, np.ndarray]],
    num_classes: int,
    *,
    input_scale: float = 1 / 255,
    label_table: tuple[str, ...] | None = None,
    source: str | Path = "",
) -> Dataset:
    """Make a data set of arrays.

    Args:
        name: as it was asked for.
        parts: {"train", "test" or "val": (inputs, labels)}. Inputs are [N, H, W] for gray images, [N, 3, H, W] for
            colour, [N, D] for features, uint8 or float32, or sparse (`data.sparse`); labels int64 [N], 0 … C−1.
        num_classes: C.
        input_scale: what a network is given is uint8 input · input_scale, in [0, 1] for images.
        label_table: the original labels in the order 0 … C−1, where they had to be mapped.
        source: the folder or file that the arrays were read from.

    Raises:
        DataError: parts do not fit together: counts, shapes, types of numbers.
    """
    import torch

    from jocor_fast.data.samples import Samples

    where = str(source) or name
    samples, first = {}, parts["train"][0]
    for part, (inputs, labels) in parts.items():
        if len(inputs) != len(labels) or not len(inputs):
            raise DataError(
                f"{where} must have as many {part} labels as images, and at least one, "
                f"got {len(inputs)} images and {len(labels)} labels"
            )
        if inputs.shape[1:] != first.shape[1:] or inputs.dtype != first.dtype:
            raise DataError(
                f"{where} must have {part} images like its train images, {first.shape[1:]} of {first.dtype}, "
                f"got {inputs.shape[1:]} of {inputs.dtype}"
            )
        held = inputs if is_tensor(inputs) else torch.from_numpy(inputs)
        samples[part] = Samples(held, torch.from_numpy(labels), input_scale=input_scale)
    names = label_table or numbered(num_classes)
    return Dataset(
        name, samples["train"], names, samples.get("test"), samples.get("val"), label_table, source=str(source)
    )


def numbered(num_classes: int) -> tuple[str, ...]:
    """Return the names of classes that have none: their numbers."""
    return tuple(map(str, range(num_classes)))


@dataclass(frozen=True)
class Wanted:
    """A data set that is to be loaded.

    Attributes:
        name: as it was asked for.
        path: what follows the prefix of a name that has one.
        folders: where to look for one without, in this order; what is downloaded goes into the first.
        announce: is told what takes a while, such as a download.
    """

    name: str
    path: Path
    folders: tuple[Path, ...]
    announce: Callable[[str], None]


@dataclass(frozen=True)
class DataShape:
    """What a data set looks like, without reading it.

    Attributes:
        train, test, val: how many samples; val: in a validation set of its own.
        sample: the shape of one, as `jocor_fast.models.networks.build_model` takes it.
        class_counts: training samples of each class, or numbers in the same proportions.
        filled: the share of the inputs' numbers that are not 0, where others take less time.
    """

    train: int
    test: int
    sample: tuple[int, ...]
    class_counts: tuple[int, ...]
    val: int = 0
    filled: float = 1.0


@dataclass(frozen=True)
class Entry:
    """What is known of a data set before it is read.

    Attributes:
        name: by which it is asked for; or a prefix with a colon, after which a path is given.
        load: reads it, in image files the lists alone; DataError where it is absent or broken.
        find: returns where it lies in one of some folders, without reading it; None: it is in none of them.
        place: where one lies that is not looked for in folders.
        path: stands for the path after a prefix, in the help.
        help: what a path leads to.
        holds_files: whether its images are files that are read while training.
        labels: whether its own labels are the truth, noisy, or just those that were given.
        model: the network for this data where none is asked for.
        shape: its size, by which the time of an experiment is estimated; None: unknown.
    """

    name: str
    load: Callable[[Wanted], Dataset]
    find: Callable[[Sequence[Path]], Path | None] | None = None
    place: str = ""
    path: str = ""
    help: str = ""
    holds_files: bool = False
    labels: Literal["true", "noisy", "given"] = "true"
    model: str = "mlp"
    shape: DataShape | None = None

    @property
    def spelling(self) -> str:
        """How it is asked for, such as "mnist" or "folder:DIR"."""
        return self.name + self.path
