"""Which labels are wrong, and how many, by features alone: embeddings from any encoder (the method is ours).

Pairs of small networks are trained by JoCoR on the other folds, so none has seen the label that it judges. Of what they
predict, q ∝ p^α has the exponent under which the given labels are likeliest. From q, for the given label y:

    s = log((1 − q(y)) / q(y)) + log(mean T[a, y] / T[y, y]),    P(wrong) = 1 / (1 + exp(−h · s − b))

The mean is over the other classes a, weighted by q(a). T[a, y], how often a is labelled y, is counted on the tenth of
the rows taken for a of which q is surest. b makes the mean of P(wrong) the share of wrong labels.

That share cannot be told from features alone: where q is unsure, labels that people got wrong because the sample is
hard look the same as right labels on which q errs. Known is the share t of wrong labels among the surest rows, and the
share e of right labels that q contradicts if t holds everywhere. The estimate is t + (0.05 + t) · e: people err on a
part of what q errs on, and the more, the more they err elsewhere. It fits drawn noise of annotators whose rates of one,
of a majority and of the worst of three are like those of CIFAR-10N. Noise that does not depend on the sample makes the
estimate too high, and noise that depends on nothing else too low; `share_range` holds both.

b and h suit classes of usual size. A label y of a rare class is called wrong only where it is more probably wrong than
right without them: q(y) is the probability of the label, right or wrong, and Σ q(a) T[a, y] that of its being wrong.

benchmarks/results/audit-features/ has the figures behind each choice.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from jocor_fast.arguments import at_least, check_forget_rate
from jocor_fast.data.arrays import user_path
from jocor_fast.data.classes import as_array, class_numbers, number_classes
from jocor_fast.diagnosis.audit_files import AuditFiles
from jocor_fast.diagnosis.feature_heads import (
    CHUNK_ROWS,
    FOLDS,
    MOST_COLUMNS,
    MOST_COVARIANCE,
    HeldOut,
    Rows,
    predict_held_out,
    rows_of_chunk,
)
from jocor_fast.diagnosis.wrong_labels import WRONG, Audit
from jocor_fast.engine.settings import device_name
from jocor_fast.errors import ArgumentTypeError, ArgumentValueError
from jocor_fast.files.whole_file import check_writable
from jocor_fast.machine import own_modes, resolve_device
from jocor_fast.noise.estimate import pair_counts, rate_and_rows, rows_of_counts, surest
from jocor_fast.report.tables import percent

LEAST_ROWS = 10
MOST_CLASSES = 50_000  # the noise matrix has a number for each pair of them
SUREST = 0.1  # the part of the rows taken for a class whose labels make its row of T,
LEAST_SUREST = 30  # and how many there are at least
LEAST_TRANSITION = 0.05  # added to T: without it, a pair of classes that was not seen would clear a label of all doubt
RARE = 0.5  # of the average number of labels: below it less is added, or a rare class would lose most of its labels
PRIOR_ROWS = 100  # that are added where T is about rare classes: few of their rows and labels are among the surest
STEEPNESS = 2.0  # h: of 0.7 to 2, that of the best F1 on most of the drawn sets
SHARED_ERRORS = 0.05
MOST_OF_CHANCE = 0.7  # random labels are wrong as often as the most frequent is not it; features that tell: up to .66
LEAST_BELIEF, LARGEST_SHIFT = 1e-4, 40.0  # keep logarithms and exponentials finite
EXPONENTS = [number / 10 for number in range(1, 16)]  # α
_FITTED_ROWS = 20_000  # that α is fitted on


def audit_features(
    features: Any,
    labels: Any,
    *,
    num_classes: int | None = None,
    forget_rate: float | str = "auto",
    seed: int = 0,
    device: str | torch.device = "auto",
    epochs: int | None = None,
    output: str | os.PathLike[str] | None = None,
) -> Audit:
    """Find the labels that are probably wrong, from features such as the embeddings of a pretrained encoder.

    >>> import numpy as np
    >>> import jocor_fast as jf
    >>> generator = np.random.default_rng(0)
    >>> true = np.arange(600) % 3
    >>> features = generator.normal(size=(600, 8)) + 4 * np.eye(3, 8)[true]
    >>> given = true.copy()
    >>> given[:30] = (given[:30] + 1) % 3
    >>> found = jf.audit_features(features, given)
    >>> bool((found.suggested == true).mean() > 0.98)
    True

    Args:
        features: [N, D], N ≥ 10, numbers of any type: an array, a tensor, or an array mapped from a file
            (`np.load(path, mmap_mode="r")`), which is read in pieces. They are standardised here.
        labels: [N], whole numbers or strings. Where they are not 0 … C−1, they are numbered in sorted order.
        num_classes: C, where labels are 0 … C−1 and some may be absent.
        forget_rate: the share of wrong labels in [0, 1) where it is known; "auto": it is estimated.
        seed: of the folds and the initial weights.
        device: where to compute.
        epochs: of training; None: 4, or more where there are few rows.
        output: a folder for the files that `jocor-fast audit --features` writes.

    Warns where nearly as many labels seem wrong as if they were random: the features hardly tell the classes apart.

    Returns:
        Audit: `share` is the mean of `score`; `prediction` holds what the two networks predicted of the rows that they
        were not trained on, `seen` and `selected` what the others did. Where the labels were numbered, `classes` has
        them.

    Raises:
        TypeError: features are no numbers, labels are neither whole numbers nor strings, or another argument is of a
            wrong type.
        ValueError: features are not [N, D] with N ≥ 10, not finite, all constant, or but for a few rows all alike;
            labels are not N, all the same, or of more than N / 3 classes; or another argument is out of its range.
        OSError: the output folder cannot be written.
    """
    folder = None if output is None else user_path(output)
    if folder is not None:
        check_writable(folder)
    table = check_features(features)
    given, classes = _given_labels(labels, len(table), num_classes)
    rate = None if isinstance(forget_rate, str) and forget_rate == "auto" else check_forget_rate(forget_rate)  # type: ignore[arg-type]
    found = audit_rows(
        table,
        given,
        len(classes) if classes is not None else max(int(given.max()) + 1, num_classes or 0),
        share=rate,
        seed=at_least("seed", seed, 0),
        device=resolve_device(device_name(device)),
        epochs=None if epochs is None else at_least("epochs", epochs, 1),
        classes=classes,
    )
    if folder is not None:
        labels = classes or tuple(map(str, range(len(found.noise_matrix))))
        files = AuditFiles("features", found, labels, labels, ids=np.arange(len(given)), given_labels=given)
        files.write_all(folder, corrected=True)
    return found


def audit_rows(
    features: np.ndarray,
    given: np.ndarray,
    num_classes: int,
    *,
    share: float | None,
    seed: int,
    device: torch.device,
    epochs: int | None,
    classes: tuple[str, ...] | None = None,
    on_epoch: Callable[[int, int], None] | None = None,
) -> Audit:
    """`audit_features` of what has been checked; classes that no row has cost nothing."""
    if (given == given[0]).all():
        raise ArgumentValueError("labels", "must be of two classes at least, got one")
    present, dense = np.unique(given, return_inverse=True)
    if FOLDS * len(present) > len(given):
        rule = f"must be of at most {len(given) // FOLDS} classes, a third of the rows"
        raise ArgumentValueError("labels", f"{rule}, got {len(present)}: are they the samples' numbers?")
    with own_modes(device):
        heads = predict_held_out(
            Rows(features, device),
            dense,
            len(present),
            forget_rate=share or 0.0,
            epochs=epochs,
            seed=seed,
            on_epoch=on_epoch,
        )
    found = _judged(dense, calibrated(heads.log_probability, dense), heads, share, classes)
    matrix = np.zeros((num_classes, num_classes))
    np.fill_diagonal(matrix, 1.0)
    matrix[np.ix_(present, present)] = found.noise_matrix
    suggested, prediction = present[found.suggested], present[found.prediction]
    return replace(found, given=given, suggested=suggested, prediction=prediction, noise_matrix=matrix)


def memory_needed(features: np.ndarray, num_classes: int) -> float:
    """Return about how many bytes `audit_rows` uses on top of the features."""
    count, width = features.shape
    matrices = 4 * width * (min(width, MOST_COVARIANCE) + 4 * MOST_COLUMNS)
    reduced = 4 * count * MOST_COLUMNS + matrices if width > MOST_COLUMNS else 0
    return reduced + count * (3 * 4 * num_classes + 100) + 5 * 8 * rows_of_chunk(width) * width + 1e7


def _judged(
    given: np.ndarray, belief: np.ndarray, heads: HeldOut, share: float | None, classes: tuple[str, ...] | None
) -> Audit:
    """The audit by the belief q, float32 [N, C]."""
    num_classes = belief.shape[1]
    estimate = _Share.of(belief, given)
    _warn_unless_learnt(given, heads.prediction, estimate.share)
    target = estimate.share if share is None else share
    doubt = _log_odds(belief, given, estimate.transition)
    score = _probability(STEEPNESS * doubt, target, _highest_score(belief, given, estimate))
    wrong = score > WRONG
    other = belief.copy()
    other[np.arange(len(given)), given] = -1.0
    suggested = np.where(wrong, other.argmax(1), given)
    return Audit(
        given=given,
        suggested=suggested,
        score=score,
        wrong=wrong,
        ranking=np.argsort(-doubt, kind="stable"),
        share=target,
        share_range=(min(estimate.low, target), max(estimate.high, target)),
        noise_matrix=rows_of_counts(pair_counts(suggested, given, num_classes)),
        prediction=heads.prediction,
        selected=heads.selected,
        seen=heads.seen,
        classes=classes,
    )


def _warn_unless_learnt(given: np.ndarray, prediction: np.ndarray, share: float) -> None:
    """Warn where nearly as many labels seem wrong as if they were random."""
    most = float(np.bincount(given).max()) / len(given)
    if share <= MOST_OF_CHANCE * (1 - most):
        return
    warnings.warn(
        "the features hardly tell the classes apart: networks trained on them predict "
        f"{percent(float((prediction == given).mean()))} % of the labels that they have not seen, where always the "
        f"most frequent one would be {percent(most)} %, so the estimate that {percent(share)} % of the labels are "
        "wrong and the list are not to be trusted; an encoder without trained weights does this, and labels in "
        "another order",
        stacklevel=2,
    )


def calibrated(log_probability: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Return q, float32 [N, C], in place of log-probabilities up to a constant of the row."""
    logits, labels = torch.from_numpy(log_probability), torch.from_numpy(given)
    sample = slice(None, None, max(1, len(given) // _FITTED_ROWS))
    exponent = min(EXPONENTS, key=lambda power: float(cross_entropy(power * logits[sample], labels[sample])))
    for piece in _pieces(len(given)):
        logits[piece] = torch.softmax(exponent * logits[piece], 1)
    return log_probability


@dataclass(frozen=True, eq=False)
class _Share:
    """The share of wrong labels, its bounds, T, and what it is made of, see the head of this file.

    Attributes:
        counts: of T, by class and label, with `PRIOR_ROWS` more for every class.
    """

    share: float
    low: float
    high: float
    transition: np.ndarray
    counts: np.ndarray
    anchored: float
    contradicted: float

    @staticmethod
    def of(belief: np.ndarray, given: np.ndarray) -> _Share:
        count, num_classes = belief.shape
        predicted, certainty = belief.argmax(1), belief.max(1)
        rows = surest(predicted, certainty, num_classes, SUREST, LEAST_SUREST)
        joint = pair_counts(predicted[rows], given[rows], num_classes)
        prior = _prior_rows(joint, given)
        rare = _frequency(given, num_classes) * num_classes < RARE
        # Few rows are taken for a rare class, and hardly surely: by them alone, a large class could pass for its noise.
        anchored, transition = rate_and_rows(joint + rare[:, None] * prior, np.bincount(given, minlength=num_classes))
        by_chance = 1 - 1 / num_classes
        others = transition[~np.eye(num_classes, dtype=bool)].reshape(num_classes, -1)
        everywhere = float(np.median(others, axis=1).mean()) * (num_classes - 1)
        contradicted = float((predicted != given).mean())
        errors = max(0.0, contradicted - anchored) / max(1 - anchored / by_chance, 1e-9)
        errors = min(errors, 1 - anchored)
        share = anchored + min(1.0, SHARED_ERRORS + anchored) * errors
        margin = 3 * math.sqrt(max(anchored * (1 - anchored), 1 / len(rows)) / len(rows))
        share = min(share, max(contradicted, anchored))
        return _Share(
            share=share,
            low=max(0.0, min(share, everywhere) - margin),
            high=min(1.0, max(share, contradicted) + 2 * math.sqrt(0.25 / count)),
            transition=transition,
            counts=joint + prior,
            anchored=anchored,
            contradicted=contradicted,
        )


def _log_odds(belief: np.ndarray, given: np.ndarray, transition: np.ndarray) -> np.ndarray:
    """Return s, float64 [N]."""
    classes = len(transition)
    frequency = _frequency(given, classes) * classes
    bounded = transition + LEAST_TRANSITION * np.minimum(1.0, frequency / RARE)
    odds = np.empty(len(given))
    for piece in _pieces(len(given)):
        labels, rows = given[piece], np.arange(len(given[piece]))
        others = belief[piece].astype(np.float64)
        right = np.clip(others[rows, labels], LEAST_BELIEF, 1 - LEAST_BELIEF)
        others[rows, labels] = 0.0
        others /= np.maximum(others.sum(1, keepdims=True), np.finfo(float).tiny)
        from_others = np.einsum("nc,nc->n", others, bounded.T[labels]) / bounded[labels, labels]
        odds[piece] = np.log((1 - right) / right) + np.log(np.maximum(from_others, LEAST_BELIEF))
    return odds


def _frequency(given: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the share of each label, float64 [C]."""
    return np.bincount(given, minlength=num_classes) / len(given)


def _prior_rows(counts: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Return `PRIOR_ROWS` rows of each class with labels as wrong as those that are counted, and these as frequent."""
    wrong = 1 - float(np.trace(counts)) / float(counts.sum())
    return PRIOR_ROWS * (wrong * _frequency(given, len(counts)) + (1 - wrong) * np.eye(len(counts)))


def _highest_score(belief: np.ndarray, given: np.ndarray, estimate: _Share) -> np.ndarray:
    """Return WRONG for labels of rare classes that are as probably right as wrong, and 1 for all others."""
    transition = rows_of_counts(estimate.counts)
    np.fill_diagonal(transition, 0.0)
    rare = _frequency(given, len(transition)) * len(transition) < RARE
    rows = np.flatnonzero(rare[given])
    labelled = belief[rows, given[rows]]
    wrongly = np.einsum("nc,nc->n", belief[rows], transition.T[given[rows]])
    highest = np.ones(len(given))
    highest[rows[wrongly <= WRONG * labelled]] = WRONG
    return highest


def _probability(log_odds: np.ndarray, mean: float, highest: np.ndarray | float = 1.0) -> np.ndarray:
    """Return 1 / (1 + exp(−log_odds − b)), at most `highest`, for the b that gives it this mean."""
    low, high = -LARGEST_SHIFT, LARGEST_SHIFT
    for _ in range(60):
        shift = (low + high) / 2
        score = np.minimum(1 / (1 + np.exp(-np.clip(log_odds + shift, -LARGEST_SHIFT, LARGEST_SHIFT))), highest)
        low, high = (low, shift) if score.mean() > mean else (shift, high)
    return score


def _pieces(count: int) -> list[slice]:
    return [slice(start, start + CHUNK_ROWS) for start in range(0, count, CHUNK_ROWS)]


def check_features(features: Any) -> np.ndarray:
    """Return features as an array [N, D] of numbers; ArgumentError where they are none."""
    if isinstance(features, torch.Tensor) and features.is_floating_point() and features.dtype != torch.float64:
        features = features.float()  # `as_array` would make them float64
    table = as_array(features, "features")
    if table.dtype.kind not in "fiub":
        raise ArgumentTypeError("features", f"must be numbers, got {table.dtype}")
    if table.ndim != 2 or not table.shape[1] or len(table) < LEAST_ROWS:
        raise ArgumentValueError("features", f"must have shape [N, D] with N ≥ {LEAST_ROWS}, got {table.shape}")
    return table


def _given_labels(labels: Any, count: int, num_classes: int | None) -> tuple[np.ndarray, tuple[str, ...] | None]:
    if num_classes is not None:
        if at_least("num_classes", num_classes, 2) > MOST_CLASSES:
            raise ArgumentValueError("num_classes", f"must be at most {MOST_CLASSES:,}, got {num_classes:,}")
        given, classes = class_numbers(labels, num_classes), None
    else:
        (given,), classes = number_classes(labels)
    if len(given) != count:
        raise ArgumentValueError("labels", f"must be as many as the rows of features, {count}, got {len(given)}")
    return given, classes
