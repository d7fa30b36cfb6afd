"""Labels as people hand them over, as class numbers: shapes, number types, strings, gaps (one rule for all sources)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jocor_fast.arguments import is_tensor

if TYPE_CHECKING:
    from torch import Tensor

_ACCEPTED = "whole numbers or strings"
_LABELS_NAMED = 10  # in a message
_CLASSES_NAMED = 5  # in a warning


class LabelError(ValueError):
    """A label that cannot be one.

    Attributes:
        problem: the sentence without the row.
        row: index of the first such label.
    """

    def __init__(self, problem: str, row: int) -> None:
        """Make the sentence: `problem` in row `row`."""
        super().__init__(f"{problem} in row {row}")
        self.problem = problem
        self.row = row


def label_values(labels: Any, name: str = "labels") -> np.ndarray:
    """Labels in one of two types, the values as they are.

    Args:
        labels: (N,) or (N, 1), any array-like or tensor: any integer type, floats that are whole, strings.
        name: what the error messages call them.

    Returns:
        An array [N], int64 or str, that can be written to; it may share memory with `labels`.

    Raises:
        TypeError: they are neither numbers nor strings; a bool is neither.
        ValueError: another shape; as a LabelError: a float that is not whole, a number that does not fit in 64 bits.
    """
    array = as_array(labels, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{name} must have shape (N,) or (N, 1), got {array.shape}")
    kind = array.dtype.kind
    if kind == "O":
        array = _from_objects(array, name)
        kind = array.dtype.kind
    if kind == "U":
        return array
    if kind == "T":
        return array.astype(str)
    if kind == "S":
        try:
            return np.char.decode(array, "utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{name} must be {_ACCEPTED}, got bytes that are not UTF-8") from None
    if kind == "f":
        return _whole(array, name)
    if kind == "u" and array.size and int(array.max()) >= 2**63:
        raise LabelError(f"{name} must fit in 64 bits, got {array.max()}", int(array.argmax()))
    if kind in "iu":
        return array.astype(np.int64, copy=not array.flags.writeable)  # torch warns of arrays that are read-only
    raise TypeError(f"{name} must be {_ACCEPTED}, got {array.dtype}")


def class_numbers(
    labels: Any, num_classes: int, name: str = "labels", *, label_table: Sequence[str] | None = None
) -> np.ndarray:
    """Labels of a problem whose classes are known, as class numbers.

    Args:
        labels: as for `label_values`; not every class need occur.
        label_table: the original label of each class, where the data set has such a table: labels are then looked up in
            it. Without one they must be the numbers 0 … C−1.

    Returns:
        int64 [N], each in 0 … C−1.

    Raises:
        TypeError, ValueError: as for `label_values`; a label that is no class is a LabelError.
    """
    values = label_values(labels, name)
    if label_table is not None:
        return _looked_up(values, label_table, name)
    if values.dtype.kind == "U":
        raise TypeError(f"{name} must be whole numbers in 0 … {num_classes - 1}, got strings like {str(values[0])!r}")
    wrong = (values < 0) | (values >= num_classes)
    if wrong.any():
        row = int(wrong.argmax())
        raise LabelError(f"{name} must lie in 0 … {num_classes - 1}, got {values[row]}", row)
    return values


def number_classes(*label_sets: Any) -> tuple[list[np.ndarray], tuple[str, ...] | None]:
    """Number the classes of a problem whose labels are all that is known of it.

    All sets together (training, validation, test) define the classes; a class may be absent from some of them.
    Where the labels are 0 … C−1, each of which occurs, they stay as they are; strings and numbers with gaps, such as
    0, 2, 5, become 0 … C−1 in sorted order.

    Args:
        *label_sets: each as for `label_values`.

    Returns:
        The sets as int64 [N], and the original labels in the order of their numbers, or None where nothing was mapped.

    Raises:
        TypeError, ValueError: as for `label_values`; numbers in one set and strings in another are a TypeError.
    """
    values = [label_values(labels) for labels in label_sets]
    if len({array.dtype.kind for array in values if array.size}) > 1:
        raise TypeError("labels must be all whole numbers or all strings, got both")
    classes = np.unique(np.concatenate([np.unique(array) for array in values if array.size] or [np.empty(0, np.int64)]))
    if classes.dtype.kind != "U" and np.array_equal(classes, np.arange(len(classes))):
        return values, None
    numbered = [np.searchsorted(classes, array).astype(np.int64, copy=False) for array in values]
    return numbered, tuple(str(label) for label in classes)


def as_array(values: Any, name: str) -> np.ndarray:
    """Any array-like, tensor or list of tensors as an array.

    Raises:
        TypeError: it is none of them (bytes, a set, a generator, None), or a tensor that holds no numbers.
        ValueError: a list whose parts differ in shape, or a masked array with hidden values.
    """
    if np.ma.is_masked(values):
        raise ValueError(f"{name} must have no masked values, got {np.ma.count_masked(values):,}")
    if is_tensor(values):
        return _array_of(values, name)
    if isinstance(values, (list, tuple)) and values and all(is_tensor(value) for value in values):
        values = [_array_of(value, name) for value in values]  # NumPy takes none that needs a gradient
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must have one shape, got parts of different shapes") from None
    if array.ndim == 0 and not isinstance(values, (np.ndarray, np.generic)):
        raise TypeError(f"{name} must be an array, a tensor or a list, got {type(values).__name__}")
    return array


def _array_of(tensor: Tensor, name: str) -> np.ndarray:
    from jocor_fast.tensor_arguments import check_readable

    check_readable(name, tensor)
    tensor = tensor.detach().cpu()
    array: np.ndarray = (tensor.double() if tensor.is_floating_point() else tensor).numpy()  # which has no bfloat16
    return array


def _from_objects(array: np.ndarray, name: str) -> np.ndarray:
    """An array of Python objects (a pandas column, a list of very large numbers) as one of strings or int64."""
    kinds = {type(value) for value in array}
    if all(issubclass(kind, str) for kind in kinds):
        return array.astype(str)
    if all(issubclass(kind, (int, np.integer)) and kind is not bool for kind in kinds):
        try:
            return array.astype(np.int64)
        except OverflowError:
            row = next(row for row, value in enumerate(array) if not -(2**63) <= value < 2**63)
            raise LabelError(f"{name} must fit in 64 bits, got {array[row]}", row) from None
    names = " and ".join(sorted(kind.__name__ for kind in kinds))
    raise TypeError(f"{name} must be {_ACCEPTED}, got objects of type {names}")


def _whole(array: np.ndarray, name: str) -> np.ndarray:
    values = array.astype(np.float64)
    whole = (values == np.trunc(values)) & (np.abs(values) < 2.0**63)  # NaN is unequal to itself
    if not whole.all():
        row = int(whole.argmin())
        raise LabelError(f"{name} must be {_ACCEPTED}, got {array[row]}", row)
    return values.astype(np.int64)


def _looked_up(values: np.ndarray, label_table: Sequence[str], name: str) -> np.ndarray:
    numbers = {label: number for number, label in enumerate(label_table)}
    found, positions = np.unique(values, return_inverse=True)
    mapped = np.array([numbers.get(str(label), -1) for label in found], np.int64)[positions]
    if (mapped < 0).any():
        row = int((mapped < 0).argmax())
        raise LabelError(f"{name} must be among {_listed(label_table)}, got {str(values[row])!r}", row)
    return mapped


def _listed(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:_LABELS_NAMED])
    return shown if len(labels) <= _LABELS_NAMED else f"{shown}, … ({len(labels)} in all)"


def first_names(names: Sequence[str]) -> str:
    """Return the names of some classes for a sentence: the first few, and how many more there are."""
    more = len(names) - _CLASSES_NAMED
    return ", ".join(names[:_CLASSES_NAMED]) + f" and {more} more" * (more > 0)
