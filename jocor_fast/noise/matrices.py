"""Transition matrices of label noise, Q[i, j] = P(noisy = j | clean = i) (paper, section 4.1).

A rate is nominal (what the matrix was made with), expected (what the matrix means for given clean labels) or realised
(what a draw gave). The three differ: asymmetric noise leaves classes alone, inclusive noise may draw the true class.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from jocor_fast.arguments import as_integer, check_choice, check_distributions, check_switch
from jocor_fast.data.arrays import read_npy, user_path
from jocor_fast.data.classes import as_array
from jocor_fast.errors import ArgumentTypeError, ArgumentValueError, DataError
from jocor_fast.noise.class_pairs import ASYMMETRIC_PAIRS
from jocor_fast.noise_kinds import NOISE_KINDS, check_rate

_MOST_CLASSES = 2**20  # whose matrix has 8 TiB
_ASYMMETRIC_BY_DATASET = {name: name for name in ("mnist", "cifar10", "cifar100")}


def symmetric(num_classes: int, rate: float, *, include_true: bool = False) -> np.ndarray:
    """Symmetry: a label turns, with probability `rate`, into any other with equal probability.

    >>> import jocor_fast as jf
    >>> jf.noise.symmetric(3, 0.3)
    array([[0.7 , 0.15, 0.15],
           [0.15, 0.7 , 0.15],
           [0.15, 0.15, 0.7 ]])

    Args:
        num_classes: C, int ≥ 1 (≥ 2 for a rate above 0), at most 2²⁰.
        rate: r in [0, 1).
        include_true: draw the new label among all C classes, the true one included, as some tools do: labels are then
            wrong with probability r · (C − 1)/C only.

    Returns:
        float64 [C, C]: 1 − r on the diagonal and r/(C − 1) elsewhere; with `include_true` 1 − r + r/C and r/C.

    Raises:
        TypeError, ValueError: an argument has the wrong type or lies outside what is said above.
    """
    num_classes, rate = _checked(num_classes, rate)
    include_true = check_switch("include_true", include_true)
    if num_classes == 1:
        return np.ones((1, 1))
    other = rate / num_classes if include_true else rate / (num_classes - 1)
    matrix = np.full((num_classes, num_classes), other)
    np.fill_diagonal(matrix, 1 - rate + other if include_true else 1 - rate)
    return matrix


def pairflip(num_classes: int, rate: float) -> np.ndarray:
    """Pair flip: class i turns into i + 1 (the last into the first) with probability `rate`.

    Returns:
        float64 [C, C].

    Raises:
        TypeError, ValueError: as for `symmetric`.
    """
    num_classes, rate = _checked(num_classes, rate)
    return _flipping(num_classes, {c: (c + 1) % num_classes for c in range(num_classes)}, rate)


def asymmetric(dataset: str, rate: float) -> np.ndarray:
    """Asymmetry: classes turn into a class they are easily taken for, with probability `rate`.

    Args:
        dataset: "mnist" (7→1, 2→7, 5↔6, 3→8), "cifar10" (truck→automobile, bird→airplane, cat↔dog, deer→horse),
            "cifar100" (the next class within the superclass, circular), or "cifar100-published" (what the authors' code
            does instead: the next within blocks of five consecutive numbers, circular).
        rate: r in [0, 1). The share of wrong labels in the whole set is near r/2 for the first two, r for the others.

    Returns:
        float64 [C, C].

    Raises:
        TypeError, ValueError: `dataset` or `rate` has the wrong type or is not among the above.
    """
    num_classes, pairs = ASYMMETRIC_PAIRS[check_choice("dataset", dataset, ASYMMETRIC_PAIRS)]
    return _flipping(num_classes, pairs, check_rate(rate))


def transition_matrix(kind: str, num_classes: int, rate: float, dataset: str | None = None) -> np.ndarray:
    """Return the matrix of a kind of noise by its name.

    Args:
        kind: one of `NOISE_KINDS`.
        num_classes: C.
        rate: r in [0, 1); 0 for "clean".
        dataset: name of the data set, which the asymmetric kinds need ("asymmetric-published" exists for cifar100).

    Returns:
        float64 [C, C].

    Raises:
        TypeError, ValueError: an argument is wrong, or the data set has no pairs for this kind.
    """
    check_choice("kind", kind, NOISE_KINDS)
    if kind == "clean":
        if check_rate(rate) != 0:
            raise ArgumentValueError("rate", f"must be 0 for clean labels, got {rate}")
        return symmetric(num_classes, 0.0)
    if as_integer("num_classes", num_classes) == 1 and check_rate(rate) > 0:
        raise ArgumentValueError(
            "rate", f"must be 0 for {dataset or 'these data'}, whose labels are all of one class, got {rate:g}"
        )
    if kind == "pairflip":
        return pairflip(num_classes, rate)
    if kind in ("symmetric", "symmetric-inclusive"):
        return symmetric(num_classes, rate, include_true=kind == "symmetric-inclusive")
    known = {"cifar100": "cifar100-published"} if kind == "asymmetric-published" else _ASYMMETRIC_BY_DATASET
    if dataset not in known:
        raise ArgumentValueError(
            "kind",
            f"must be symmetric, pairflip or a matrix of your own for {dataset!r}, got {kind}, which is defined for "
            f"{', '.join(known)} only",
        )
    return asymmetric(known[dataset], rate)


def read_transition(path: str | os.PathLike[str], num_classes: int) -> np.ndarray:
    """Return the matrix in a .npy file [C, C].

    Raises:
        DataError: the file cannot be read or holds no transition matrix for C classes; the message names it.
    """
    matrix = read_npy(user_path(path))
    try:
        return check_transition(matrix, num_classes, f"the matrix in {os.fspath(path)}")
    except (TypeError, ValueError) as error:
        raise DataError(str(error)) from None


def check_transition(transition: Any, num_classes: int | None = None, name: str = "transition") -> np.ndarray:
    """Return a transition matrix as float64 [C, C].

    Args:
        transition: array-like [C, C] of numbers.
        num_classes: C, where it is known.
        name: what messages call the matrix.

    Raises:
        TypeError: not numbers.
        ValueError: not [C, C] (of C = `num_classes` where given), an entry is negative or not finite, or a row does not
            sum to 1 within 1e-5.
    """
    matrix = as_array(transition, name)
    if matrix.dtype.kind not in "fiu":
        raise ArgumentTypeError(name, f"must be an array of floats, got {matrix.dtype}")
    wanted = "C" if num_classes is None else num_classes
    classes = "," if num_classes is None else ", a row and a column a class of the data,"
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] > 0
    if not square or num_classes not in (None, len(matrix)):
        raise ArgumentValueError(name, f"must have shape [{wanted}, {wanted}]{classes} got {list(matrix.shape)}")
    matrix = matrix.astype(np.float64)
    check_distributions(name, matrix)
    return matrix


def _checked(num_classes: int, rate: float) -> tuple[int, float]:
    num_classes, rate = as_integer("num_classes", num_classes), check_rate(rate)
    least = 2 if rate > 0 else 1
    if num_classes < least:
        raise ArgumentValueError("num_classes", f"must be at least {least} for the rate {rate}, got {num_classes}")
    if num_classes > _MOST_CLASSES:
        raise ArgumentValueError("num_classes", f"must be at most {_MOST_CLASSES}, got {num_classes}")
    return num_classes, rate


def _flipping(num_classes: int, pairs: dict[int, int], rate: float) -> np.ndarray:
    matrix = np.eye(num_classes)
    if rate:
        for clean, noisy in pairs.items():
            matrix[clean, clean], matrix[clean, noisy] = 1 - rate, rate
    return matrix
