"""Label noise: transition matrices Q[i, j] = P(noisy = j | clean = i), and labels drawn from them (paper, section 4.1).

A rate is nominal (what the matrix was made with), expected (what the matrix means for given clean labels) or realised
(what a draw gave). The three differ: asymmetric noise leaves classes alone, inclusive noise may draw the true class.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from jocor_fast.arguments import ROW_SUM_TOLERANCE, as_integer, as_real, check_switch
from jocor_fast.data.arrays import read_npy, user_path
from jocor_fast.data.classes import as_array, class_numbers
from jocor_fast.data.dataset import DataError
from jocor_fast.noise.cifar100_classes import FINE_CLASSES, SUPERCLASSES

NOISE_KINDS = ("symmetric", "symmetric-inclusive", "pairflip", "asymmetric", "asymmetric-published", "clean")


def _cifar100_within_superclasses() -> dict[int, int]:
    """Each class turns into the next (by number) of its superclass, the last into the first."""
    pairs: dict[int, int] = {}
    for names in SUPERCLASSES.values():
        members = sorted(FINE_CLASSES.index(name) for name in names)
        pairs.update(zip(members, members[1:] + members[:1], strict=True))
    return pairs


# clean class -> the class that it is taken for; classes that are not named stay clean
_ASYMMETRIC_PAIRS: dict[str, tuple[int, dict[int, int]]] = {
    "mnist": (10, {7: 1, 2: 7, 5: 6, 6: 5, 3: 8}),
    "cifar10": (10, {9: 1, 2: 0, 3: 5, 5: 3, 4: 7}),  # truck, bird, cat ↔ dog, deer
    "cifar100": (100, _cifar100_within_superclasses()),
    # The authors' code takes blocks of five consecutive numbers for superclasses, but the numbers are alphabetical.
    "cifar100-published": (100, {c: c // 5 * 5 + (c + 1) % 5 for c in range(100)}),
}
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
    if not isinstance(dataset, str):
        raise TypeError(f"dataset must be a str, got {type(dataset).__name__}")
    if dataset not in _ASYMMETRIC_PAIRS:
        raise ValueError(
            f"dataset must be one of {', '.join(_ASYMMETRIC_PAIRS)} (asymmetric noise is defined for these), "
            f"got {dataset!r}"
        )
    num_classes, pairs = _ASYMMETRIC_PAIRS[dataset]
    return _flipping(num_classes, pairs, _checked_rate(rate))


def transition_matrix(kind: str, num_classes: int, rate: float, dataset: str | None = None) -> np.ndarray:
    """The matrix behind the command line's `--noise KIND --noise-rate RATE`.

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
    if kind not in NOISE_KINDS:
        raise ValueError(f"noise (--noise) must be one of {', '.join(NOISE_KINDS)}, got {kind!r}")
    if kind == "clean":
        if _checked_rate(rate) != 0:
            raise ValueError(f"rate (--noise-rate) must be 0 for clean labels, got {rate}")
        return symmetric(num_classes, 0.0)
    if as_integer("num_classes", num_classes) == 1 and _checked_rate(rate) > 0:
        raise ValueError(
            f"rate (--noise-rate) must be 0 for {dataset or 'these data'}, since all labels there are of one class and "
            f"can turn into no other, got {rate:g}"
        )
    if kind == "pairflip":
        return pairflip(num_classes, rate)
    if kind in ("symmetric", "symmetric-inclusive"):
        return symmetric(num_classes, rate, include_true=kind == "symmetric-inclusive")
    known = {"cifar100": "cifar100-published"} if kind == "asymmetric-published" else _ASYMMETRIC_BY_DATASET
    if dataset not in known:
        raise ValueError(
            f"noise (--noise) {kind} exists for {', '.join(known)} only, got the data set {dataset!r}; "
            "symmetric, pairflip or a matrix from a file (--noise-matrix) serve any"
        )
    return asymmetric(known[dataset], rate)


def read_transition(path: str | os.PathLike[str], num_classes: int) -> np.ndarray:
    """The matrix in a .npy file [C, C] (`--noise-matrix`).

    Raises:
        DataError: the file cannot be read or holds no transition matrix for C classes; the message names it.
    """
    name = f"the matrix in {os.fspath(path)} (--noise-matrix)"
    try:
        return check_transition(read_npy(user_path(path)), num_classes, name)
    except (TypeError, ValueError) as error:  # or a DataError already
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
        raise TypeError(f"{name} must be an array of floats, got {matrix.dtype}")
    wanted = "C" if num_classes is None else num_classes
    classes = "," if num_classes is None else ", a row and a column a class of the data,"
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] > 0
    if not square or num_classes not in (None, len(matrix)):
        raise ValueError(f"{name} must have shape [{wanted}, {wanted}]{classes} got {list(matrix.shape)}")
    matrix = matrix.astype(np.float64)
    if not (np.isfinite(matrix) & (matrix >= 0)).all():
        raise ValueError(f"{name} must hold finite probabilities of at least 0 only")
    sums = matrix.sum(axis=1)
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > ROW_SUM_TOLERANCE:
        raise ValueError(f"{name} must have rows that sum to 1, got {sums[worst]:.6g} in row {worst}")
    return matrix


def corrupt(labels: Any, transition: Any, *, seed: int) -> np.ndarray:
    """Draw noisy labels: every sample flips once, from its clean label.

    Sample n's number u_n of `RandomState(seed).random_sample(N)`, a stream that NumPy keeps for ever, is looked up in
    the cumulative row of its class. The labels hence depend on `seed` and the order of the data set alone, and no
    global generator is touched.

    >>> import jocor_fast as jf
    >>> jf.noise.corrupt([0, 1, 2, 0, 1, 2], jf.noise.symmetric(3, 0.5), seed=0)
    array([1, 1, 2, 1, 1, 2])

    Args:
        labels: clean labels, (N,) or (N, 1), any array-like or tensor of whole numbers in 0 … C−1.
        transition: [C, C], Q[i, j] = P(noisy = j | clean = i).
        seed: int in [0, 2³²).

    Returns:
        int64 [N]. A class that has probability 0 is never drawn.

    Raises:
        TypeError, ValueError: an argument has the wrong type, shape or value; see `check_transition` too.
    """
    transition = check_transition(transition)
    num_classes = len(transition)
    clean = class_numbers(labels, num_classes)
    seed = as_integer("seed (--noise-seed)", seed)
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed (--noise-seed) must lie in [0, 2**32), got {seed}")
    uniform = np.random.RandomState(seed).random_sample(len(clean))
    cumulative = np.cumsum(transition, axis=1)
    noisy = np.empty_like(clean)
    for label in range(num_classes):
        rows = np.flatnonzero(clean == label)
        drawn = np.searchsorted(cumulative[label], uniform[rows], side="right")
        # A row that sums to a hair under 1 leaves a gap at the top: it belongs to the last class that can be drawn.
        noisy[rows] = np.minimum(drawn, np.flatnonzero(transition[label])[-1])
    return noisy


def expected_rate(transition: Any, clean_labels: Any) -> float:
    """The share of wrong labels that the matrix means for these clean labels: the mean of 1 − Q[y, y]; 0 for no labels.

    This is the default forget rate τ where noise is drawn.

    Raises:
        TypeError, ValueError: as for `corrupt`.
    """
    transition = check_transition(transition)
    clean = class_numbers(clean_labels, len(transition), "clean_labels")
    wrong = np.clip(1 - np.diagonal(transition), 0, 1)
    counts = np.bincount(clean, minlength=len(transition))
    return round(float(counts @ wrong) / max(1, len(clean)), 12)  # 1 − (1 − 0.2) is not quite 0.2


def realised_rate(clean_labels: np.ndarray, noisy_labels: np.ndarray) -> float:
    """The share of labels that are wrong: rows where two arrays [N] differ; 0 for no labels.

    Raises:
        ValueError: the arrays differ in shape.
    """
    clean, noisy = np.asarray(clean_labels), np.asarray(noisy_labels)
    if clean.shape != noisy.shape:
        raise ValueError(f"noisy_labels must have the shape of clean_labels, {clean.shape}, got {noisy.shape}")
    wrong = clean != noisy
    return float(wrong.mean()) if wrong.size else 0.0


def _checked(num_classes: int, rate: float) -> tuple[int, float]:
    num_classes, rate = as_integer("num_classes", num_classes), _checked_rate(rate)
    least = 2 if rate > 0 else 1
    if num_classes < least:
        raise ValueError(f"num_classes must be at least {least} for the rate {rate}, got {num_classes}")
    if num_classes > _MOST_CLASSES:
        raise ValueError(f"num_classes must be at most {_MOST_CLASSES}, got {num_classes}")
    return num_classes, rate


def _checked_rate(rate: float) -> float:
    value = as_real("rate (--noise-rate)", rate)
    if not 0 <= value < 1:  # NaN fails every comparison
        raise ValueError(f"rate (--noise-rate) must lie in [0, 1), got {rate}")
    return value


def _flipping(num_classes: int, pairs: dict[int, int], rate: float) -> np.ndarray:
    matrix = np.eye(num_classes)
    if rate:
        for clean, noisy in pairs.items():
            matrix[clean, clean], matrix[clean, noisy] = 1 - rate, rate
    return matrix
