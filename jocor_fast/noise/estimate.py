"""The transition matrix of label noise: counted, or estimated from networks that were trained on the noisy labels.

Where a sample surely is of class i (an "anchor"), a network trained on noisy labels predicts of it how class i is
labelled: row i of T, T[i, j] = P(noisy j | clean i) (Patrini et al., CVPR 2017, theorem 3).

Or it is counted how the samples are labelled that surely are of class i (ours). Unless networks have memorised these
labels, their certainty does not depend on them.
"""

from __future__ import annotations

import numpy as np

_PERCENTILE = 97.0
SUREST = 0.3  # the share of the samples taken for a class whose labels are believed to tell its row
HIGHEST_FORGET_RATE = 0.95  # of an estimate: some of each batch must be left to learn from


def pair_counts(first: np.ndarray, second: np.ndarray, num_classes: int) -> np.ndarray:
    """How often class i of the one goes with class j of the other: int64 [C, C], of two arrays int64 [N]."""
    return np.bincount(first * num_classes + second, minlength=num_classes**2).reshape(num_classes, num_classes)


def rows_of_counts(counts: np.ndarray) -> np.ndarray:
    """T from counts [C, C] by true class and label, rows that sum to 1; a class without any keeps its label."""
    sums = counts.sum(axis=1, keepdims=True)
    return np.where(sums > 0, counts / np.where(sums > 0, sums, 1), np.eye(len(counts)))


def anchor_percentile(num_classes: int) -> float:
    """Which percentile of a class's probability its anchor has: 97, as in the paper, for outliers lie above it.

    100, the arg-max, where a class has fewer than the 3 % of the samples that lie above the 97th percentile, which then
    is no sample of that class: beyond 33 classes, such as on CIFAR-100.
    """
    return _PERCENTILE if num_classes * (100.0 - _PERCENTILE) <= 100.0 else 100.0


def estimate_transition(probabilities: np.ndarray, percentile: float) -> np.ndarray:
    """T from what a network trained on the noisy labels predicts.

    Args:
        probabilities: [N, C], each row summing to 1; it is not written to.
        percentile: in [0, 100], of the probability of class i over the samples, at which the anchor of class i lies
            (the sample with the next lower probability, the first of several).

    Returns:
        float64 [C, C]: row i is what is predicted of the anchor of class i, and sums to 1.

    Raises:
        ValueError: probabilities is not a matrix of finite numbers with a row, or percentile is out of range.
    """
    matrix = np.asarray(probabilities, dtype=np.float64)
    if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all():
        raise ValueError(f"probabilities must be a matrix [N, C] of finite numbers, got shape {matrix.shape}")
    if not 0 <= percentile <= 100:  # NaN fails the comparison
        raise ValueError(f"percentile must lie in [0, 100], got {percentile!r}")
    at_percentile = np.percentile(matrix, percentile, axis=0, method="lower")
    anchors = (matrix == at_percentile).argmax(axis=0)
    rows = matrix[anchors]  # a copy
    return rows / rows.sum(axis=1, keepdims=True)


def surest(
    predicted: np.ndarray, certainty: np.ndarray, num_classes: int, share: float = SUREST, least: int = 1
) -> np.ndarray:
    """Return this share of the rows of each prediction, the surest of them, and `least` rows at least."""
    order = np.lexsort((-certainty, predicted))
    counts = np.bincount(predicted, minlength=num_classes)
    starts = np.cumsum(counts) - counts
    place = np.arange(len(order)) - starts[predicted[order]]
    return order[place < np.maximum(np.ceil(share * counts), least)[predicted[order]]]


def rate_and_rows_of_surest(
    labels: np.ndarray, predicted: np.ndarray, certainty: np.ndarray, num_classes: int, share: float = SUREST
) -> tuple[float, np.ndarray]:
    """Return τ and T, by how the samples of each prediction are labelled that networks are surest of.

    Args:
        labels: int64 [N], the noisy labels.
        predicted: int64 [N].
        certainty: float [N], in any unit.
        num_classes: C.
        share: of the samples of each prediction, those that are counted.

    Returns:
        τ, the share of wrong labels in [0, 1], and T, float64 [C, C].
    """
    sure = surest(predicted, certainty, num_classes, share)
    joint = pair_counts(predicted[sure], labels[sure], num_classes)
    return rate_and_rows(joint, np.bincount(labels, minlength=num_classes))


def rate_and_rows(joint: np.ndarray, label_counts: np.ndarray) -> tuple[float, np.ndarray]:
    """Return τ and T, from the counts [C, C] by true class and label and how often each label occurs in all."""
    transition = rows_of_counts(joint)
    classes = non_negative_solution(transition.T, label_counts / label_counts.sum())
    return float(classes @ (1.0 - np.diagonal(transition)) / classes.sum()), transition


def non_negative_solution(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the x ≥ 0 for which matrix · x is nearest to the target."""
    from scipy.optimize import nnls  # it takes half a second to import, and every command imports this module

    solution: np.ndarray = nnls(matrix, target)[0]
    return solution
