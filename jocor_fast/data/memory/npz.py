"""Data sets in one .npz archive, under the names that Keras or MedMNIST use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from jocor_fast.data.arrays import read_npz, reading, user_path
from jocor_fast.data.dataset import Dataset, Entry, in_memory
from jocor_fast.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

# part -> (inputs, labels)
_KERAS_KEYS = {part: (f"x_{part}", f"y_{part}") for part in ("train", "test", "val")}
_MEDMNIST_KEYS = {part: (f"{part}_images", f"{part}_labels") for part in ("train", "test", "val")}

_Parts: TypeAlias = "dict[str, tuple[np.ndarray | Tensor, np.ndarray]]"
_SPARSE_KEYS = ("format", "shape", "data", "indices", "indptr")


def load_npz_dataset(path: Path, *, name: str, num_classes: int | None = None) -> Dataset:
    """Load `x_train`, `y_train` (Keras) or `train_images`, `train_labels` (MedMNIST); test and val parts likewise.

    Inputs are gray images [N, H, W] or [N, H, W, 1], colour images [N, H, W, 3] or [N, 3, H, W], or features [N, D];
    uint8, other integers in 0 … 255, or finite floats (taken as they are). Only the training part must be there.
    In place of inputs, `x_train` may be a string: the name of a file in the same folder that scipy.sparse.save_npz
    wrote, a CSR matrix [N, D].

    Args:
        num_classes: C, where it is known: labels must be 0 … C−1, and some may be absent. Otherwise the labels of all
            parts together define the classes; strings and gaps are mapped (`label_table`).

    Raises:
        DataError: the file is absent or broken, an array is missing, or of another kind.
    """
    from jocor_fast.data.classes import class_numbers, number_classes

    parts = _read_parts(path)
    label_table = None
    try:
        if num_classes is None:
            numbered, label_table = number_classes(*(labels for _, labels in parts.values()))
            num_classes = len(label_table or ()) or 1 + max(int(labels.max(initial=0)) for labels in numbered)
        else:
            numbered = [class_numbers(labels, num_classes) for _, labels in parts.values()]
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: {error}") from None
    return in_memory(
        name,
        {part: (inputs, labels) for (part, (inputs, _)), labels in zip(parts.items(), numbered, strict=True)},
        num_classes,
        input_scale=1 / 255 if str(parts["train"][0].dtype) == "uint8" else 1.0,
        label_table=label_table,
        source=path,
    )


NPZ = Entry(
    "npz:",
    lambda wanted: load_npz_dataset(wanted.path, name=wanted.name),
    path="FILE",
    help="with arrays x_train, y_train, x_test, y_test (or MedMNIST's names)",
    labels="given",
)


def _read_parts(path: Path) -> _Parts:
    names: dict[str, tuple[str, str]] = {}

    def choose(keys: Sequence[str]) -> list[str]:
        known = next((names for names in (_KERAS_KEYS, _MEDMNIST_KEYS) if names["train"][0] in keys), None)
        if known is None:
            raise DataError(
                f"{path} must hold x_train and y_train, or train_images and train_labels, "
                f"got {', '.join(keys) or 'nothing'}"
            )
        names.update({part: pair for part, pair in known.items() if part == "train" or {*pair} & {*keys}})
        return [key for pair in names.values() for key in pair]

    arrays = read_npz(path, choose)
    pairs = zip(names.items(), arrays[::2], arrays[1::2], strict=True)
    return {part: (_inputs(path, key, inputs), labels) for (part, (key, _)), inputs, labels in pairs}


def _inputs(path: Path, key: str, array: np.ndarray) -> np.ndarray | Tensor:
    if array.dtype.kind == "U" and array.size == 1:
        return read_sparse(path.parent / user_path(array.item()))
    return as_inputs(array, f"{path}: {key}")


def read_sparse(path: Path, *, or_key: bool = False) -> Tensor:
    """Return the CSR matrix that scipy.sparse.save_npz wrote, as `csr_inputs` does; DataError where there is none.

    `or_key`: whether another archive would do with a KEY, which the message then says.
    """
    from scipy.sparse import csr_matrix

    from jocor_fast.data.sparse import csr_inputs, first_not_finite

    def wanted(keys: Sequence[str]) -> Sequence[str | None]:
        if {"format", "shape", "data"} <= set(keys) and "indptr" not in keys:
            return ["format"]  # of another form
        return _SPARSE_KEYS if "indptr" in keys or not or_key else [None]

    form, *arrays = read_npz(path, wanted)
    with reading(path, "a CSR matrix that scipy.sparse.save_npz wrote"):
        kind = form.item().decode() if form.dtype.kind == "S" else str(form)
        if kind != "csr":
            raise DataError(f"{path} must hold a CSR matrix, got one in {kind} form: save matrix.tocsr()")
        shape, data, indices, indptr = arrays
        matrix = csr_matrix((data, indices, indptr), shape=tuple(shape))
    try:
        inputs = csr_inputs(matrix, str(path))
    except (TypeError, ValueError) as error:
        raise DataError(str(error)) from None
    sample = first_not_finite(inputs)
    if sample is not None:
        raise DataError(f"{path} must be finite in float32, got a number that is not in sample {sample}")
    return inputs


def as_inputs(array: np.ndarray, name: str) -> np.ndarray:
    """An array of a user's as inputs are held: uint8 or float32, channels first, a single channel left out."""
    import numpy as np

    return np.ascontiguousarray(_channels_first(_as_pixels(array, name), name))


def _as_pixels(array: np.ndarray, name: str) -> np.ndarray:
    """The same array as uint8, or as float32 where it holds floats."""
    import numpy as np

    if array.dtype == np.uint8:
        return array
    if array.dtype.kind in "iu" and (not array.size or (array.min() >= 0 and array.max() <= 255)):
        return array.astype(np.uint8)
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            values = array.astype(np.float32, copy=False)
        finite = np.isfinite(values)
        if finite.all():
            return values
        place = np.unravel_index(finite.argmin(), finite.shape)
        raise DataError(f"{name} must be finite in float32, got {array[place]} in sample {place[0]}")
    got = f"{array.dtype} from {array.min()} to {array.max()}" if array.dtype.kind in "iu" else str(array.dtype)
    raise DataError(f"{name} must be whole numbers in 0 … 255 or floats, got {got}")


def _channels_first(array: np.ndarray, name: str) -> np.ndarray:
    """[N, D], [N, H, W] or [N, 3, H, W]; where both ends of an image could be the channels, the last one is."""
    if 0 not in array.shape[1:]:
        if array.ndim in (2, 3):
            return array
        if array.ndim == 4 and array.shape[-1] in (1, 3):
            return array[..., 0] if array.shape[-1] == 1 else array.transpose(0, 3, 1, 2)
        if array.ndim == 4 and array.shape[1] in (1, 3):
            return array[:, 0] if array.shape[1] == 1 else array
    raise DataError(
        f"{name} must have shape [N, H, W], [N, H, W, 1 or 3], [N, 1 or 3, H, W] or [N, D], got {list(array.shape)}"
    )
