"""Labels drawn by a transition matrix, and the rates of wrong ones: expected by the matrix, or realised by a draw."""

from __future__ import annotations

from typing import Any

import numpy as np

from jocor_fast.arguments import as_integer
from jocor_fast.data.classes import class_numbers
from jocor_fast.errors import ArgumentValueError
from jocor_fast.noise.matrices import check_transition


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
    seed = as_integer("seed", seed)
    if not 0 <= seed < 2**32:
        raise ArgumentValueError("seed", f"must lie in [0, 2**32), got {seed}")
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
        raise ArgumentValueError(
            "noisy_labels", f"must have the shape of clean_labels, {clean.shape}, got {noisy.shape}"
        )
    wrong = clean != noisy
    return float(wrong.mean()) if wrong.size else 0.0
