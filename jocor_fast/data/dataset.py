"""A data set in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jocor_fast.errors import DataError


@dataclass(frozen=True)
class Dataset:
    """A data set in memory, in the order of its files.

    Parts that do not fit together (counts, shapes, number types) are a DataError when the object is made.

    Attributes:
        name: as it was asked for, such as "mnist" or "npz:scans.npz".
        train_inputs: [N, H, W] for gray images, [N, 3, H, W] for colour, [N, D] for features; C-contiguous; uint8, or
            float32 where an .npz file held floats.
        train_labels: int64 [N], the data set's own labels (the truth, as far as is known), 0 … C−1.
        num_classes: C.
        test_inputs, test_labels: the test set, in the same layout, or None.
        val_inputs, val_labels: the validation set that comes with the data (MedMNIST has one), or None.
        input_scale: what a network is given is input · input_scale, in [0, 1] for images; 1 for float inputs.
        label_table: the original labels in the order 0 … C−1, where they had to be mapped, else None.
        default_model: the network for this data where none is asked for: "mlp" or "cnn".
        source: the folder or file that it was read from, for messages; "" where there is none.
    """

    name: str
    train_inputs: np.ndarray
    train_labels: np.ndarray
    num_classes: int
    test_inputs: np.ndarray | None = None
    test_labels: np.ndarray | None = None
    val_inputs: np.ndarray | None = None
    val_labels: np.ndarray | None = None
    input_scale: float = 1 / 255
    label_table: tuple[str, ...] | None = None
    default_model: str = "mlp"
    source: str = ""

    def __post_init__(self) -> None:
        where = self.source or self.name
        for part in ("train", "test", "val"):
            inputs, labels = getattr(self, f"{part}_inputs"), getattr(self, f"{part}_labels")
            if inputs is None and labels is None:
                continue
            if inputs is None or labels is None:
                raise DataError(f"{where} has {part} {'labels' if inputs is None else 'images'} only")
            if len(inputs) != len(labels) or not len(inputs):
                raise DataError(
                    f"{where} must have as many {part} labels as images, and at least one, "
                    f"got {len(inputs)} images and {len(labels)} labels"
                )
            if inputs.shape[1:] != self.input_shape or inputs.dtype != self.train_inputs.dtype:
                raise DataError(
                    f"{where} must have {part} images like its train images, {self.input_shape} of "
                    f"{self.train_inputs.dtype}, got {inputs.shape[1:]} of {inputs.dtype}"
                )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample, as `jocor_fast.models.build_model` takes it."""
        return self.train_inputs.shape[1:]

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the classes 0 … C−1 are called: by their original labels, else by their numbers."""
        return self.label_table or tuple(map(str, range(self.num_classes)))
