"""Files of labels (`--labels`, `--clean-labels`): .npy, .npz:KEY, .pt:KEY, .csv."""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jocor_fast.data.arrays import read_array, split_key, user_path
from jocor_fast.data.classes import LabelError, class_numbers, number_classes
from jocor_fast.data.columns import check_complete, read_by_id
from jocor_fast.errors import DataError

_FORMS = "FILE.npy, FILE.npz:KEY, FILE.pt:KEY or FILE.csv"
_HOW_TO_LEAVE_OUT = (
    "; samples dropped in the review of an audit are left out by training on the copy that "
    "`jocor-fast audit --reviewed FILE --write-folder DIR` makes of image files, or on arrays without their rows"
)
_FEWEST_TO_JUDGE = 100  # labels, to tell an order that is chance's
_MOST_MISMATCHES_PER_1000 = 1  # a clean label that differs from the data set's own in more rows is of another order


@dataclass(frozen=True)
class Labels:
    """Labels from files, in data-set order.

    Attributes:
        noisy: int64 [N], what is trained on.
        clean: int64 [N], the truth, or None where no file says.
    """

    noisy: np.ndarray
    clean: np.ndarray | None = None


@dataclass(frozen=True)
class _Column:
    """Labels as they stand in a file."""

    source: str
    values: Any
    lines: Sequence[int] | None = None  # of a .csv: the line that each comes from


def read_labels(
    spec: str | None,
    dataset_labels: np.ndarray,
    num_classes: int,
    *,
    clean_spec: str | None = None,
    label_table: Sequence[str] | None = None,
    own_are_clean: bool = True,
) -> Labels:
    """Read the labels to train on, and the clean ones if they are there.

    A .csv has the columns id,label[,clean] (`columns.read_table`), and each id of 0 … N−1 once, in any order. The
    other forms hold an array [N] or [N, 1] in data-set order.

    Args:
        spec: FILE.npy, FILE.npz:KEY, FILE.pt:KEY or FILE.csv; None: train on the data set's own labels.
        dataset_labels: int64 [N], the data set's own labels.
        clean_spec: a file of clean labels, in the same forms (of a .csv its clean column, else its label column).
        label_table: the data set's `label_table`: where there is one, the files hold the original labels.

        own_are_clean: whether the data set's own labels count as right: clean labels must then equal them in 99.9 % of
            the rows, else agree with them more often than by chance.

    Raises:
        TypeError: a spec is not a str or a path.
        DataError: a file is absent, broken, of another length or order, or holds what is no label; or there are two
            sources of clean labels.
    """
    count, errors = len(dataset_labels), _decoding_errors(label_table)
    noisy, clean = (None, None) if spec is None else _read_columns("labels", spec, count, errors)
    if clean_spec is not None:
        if clean is not None:
            raise DataError(f"{spec} has a clean column already: clean labels from {clean_spec} are too many")
        label_column, clean_column = _read_columns("clean_labels", clean_spec, count, errors)
        clean = clean_column or label_column
    clean_numbers = None
    if clean is not None:
        clean_numbers = _as_numbers(clean, dataset_labels, num_classes, label_table)
        _check_order(clean_numbers, dataset_labels, clean.source, own_are_clean)
    if noisy is None:
        return Labels(dataset_labels, clean_numbers)
    return Labels(_as_numbers(noisy, dataset_labels, num_classes, label_table), clean_numbers)


def read_own_labels(spec: str, num_samples: int) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Read labels that are all that is known of the classes of N samples.

    Args:
        spec: FILE.npy, FILE.npz:KEY, FILE.pt:KEY or FILE.csv, as for `read_labels`.

    Returns:
        What `classes.number_classes` does: int64 [N], and the original labels where they were numbered.

    Raises:
        DataError: as for `read_labels`.
    """
    column, _ = _read_columns("labels", spec, num_samples, "strict")
    values = column.values
    if column.lines is not None:
        numbers = [_number(text) for text in values]
        values = values if None in numbers else numbers
    try:
        (given,), table = number_classes(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{column.source}: {error}") from None
    if len(given) != num_samples:
        raise DataError(f"{column.source} holds {len(given)} labels, there are {num_samples} samples")
    return given, table


def _as_numbers(
    column: _Column, dataset_labels: np.ndarray, num_classes: int, label_table: Sequence[str] | None
) -> np.ndarray:
    try:
        values = column.values if column.lines is None else _parsed(column.values, label_table)
        numbers = class_numbers(values, num_classes, label_table=label_table)
    except LabelError as error:
        at_line = f", line {column.lines[error.row]}: {error.problem}" if column.lines else f": {error}"
        raise DataError(f"{column.source}{at_line}") from None
    except (TypeError, ValueError) as error:
        raise DataError(f"{column.source}: {error}") from None
    if len(numbers) != len(dataset_labels):
        raise DataError(f"{column.source} holds {len(numbers)} labels, the data set has {len(dataset_labels)} samples")
    return numbers


def _parsed(texts: Sequence[str], label_table: Sequence[str] | None) -> Sequence[Any]:
    """The cells of a .csv as numbers, if all are, or if they have to be; whole floats such as 3.0 are numbers too."""
    if label_table is not None and set(texts) <= set(label_table):
        return texts
    numbers = [_number(text) for text in texts]
    if None not in numbers:
        return numbers
    if label_table is not None:
        return texts
    row = numbers.index(None)
    raise LabelError(f"labels must be whole numbers, got {texts[row]!r}", row)


def _number(text: str) -> float | None:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return None


def _check_order(clean: np.ndarray, dataset_labels: np.ndarray, source: str, own_are_clean: bool) -> None:
    mismatches, count = int((clean != dataset_labels).sum()), len(clean)
    differ = f"{source}: its clean labels differ from the data set's own in {mismatches} of {count} rows"
    if own_are_clean:
        if 1000 * mismatches > _MOST_MISMATCHES_PER_1000 * count:
            raise DataError(f"{differ}, more than 0.1 %: they seem to be in another order")
        return
    frequencies = [np.bincount(labels, minlength=int(clean.max()) + 1) / count for labels in (clean, dataset_labels)]
    by_chance = float(sum(first * second for first, second in zip(*frequencies, strict=False)))
    strays = 3 * math.sqrt(by_chance * (1 - by_chance) / count)
    if count >= _FEWEST_TO_JUDGE and by_chance < 1 and 1 - mismatches / count <= by_chance + strays:
        raise DataError(f"{differ}, as many as by chance: they seem to be in another order")


def _decoding_errors(label_table: Sequence[str] | None) -> str:
    """How a .csv is decoded: strictly, unless classes are called by bytes that are no UTF-8, as folders may be."""
    names = "".join(label_table or ())
    return "strict" if names.encode(errors="replace").decode() == names else "surrogateescape"


def _read_columns(argument: str, spec: str, num_samples: int, errors: str) -> tuple[_Column, _Column | None]:
    """The labels, and the clean ones where the file has them too."""
    path = user_path(split_key(os.fspath(spec))[0])  # a key may end in .csv too
    if path.suffix.lower() == ".csv":
        return _read_csv(path, num_samples, errors)
    return _Column(os.fspath(spec), read_array(spec, argument, _FORMS)), None


def _read_csv(path: Path, num_samples: int, errors: str) -> tuple[_Column, _Column | None]:
    rows = read_by_id(path, ("label",), ("clean",), num_samples, errors=errors)
    check_complete(path, rows, num_samples, _HOW_TO_LEAVE_OUT)
    ordered = [rows[number] for number in range(num_samples)]
    lines = [line for line, _ in ordered]
    columns = {name: _Column(str(path), [row[name] for _, row in ordered], lines) for name in ordered[0][1]}
    return columns["label"], columns.get("clean")


def read_reviewed(path: Path, labels: Sequence[str], num_samples: int) -> np.ndarray:
    """Read the labels that the page of an audit exports, of which some samples may have none.

    Args:
        path: a .csv with the columns id,label.
        labels: what it calls each class.

    Returns:
        int64 [N], −1 for a sample that the file lacks. A name that is not UTF-8 is also known by what a browser makes
        of it, which writes U+FFFD for its bytes.

    Raises:
        DataError: the file is absent, broken, or has another id or label.
    """
    exported = [label.encode(errors="surrogateescape").decode(errors="replace") for label in labels]
    times = Counter(exported)
    numbers = {label: number for number, label in enumerate(labels) if label != exported[number]}
    numbers |= {text: number for number, text in enumerate(exported) if times[text] == 1}
    found = np.full(num_samples, -1)
    for number, (line, row) in read_by_id(path, ("label",), (), num_samples).items():
        if row["label"] not in numbers:
            raise DataError(f"{path}, line {line}: the label must be one of the audit's, got {row['label']!r}")
        found[number] = numbers[row["label"]]
    return found
