"""Which labels are wrong, and how many: what a run's history says of each sample (the method is ours).

Networks that leave out of a batch what they contradict (JoCoR) do not learn most of the wrong labels, so their
probability of a given label, seen in the steps of training itself, is nearly that of networks that never saw it. From
it, for a sample with given label y that the networks take for class a:

    odds of being wrong = ((1 − q) / q)^h · T[a, y] / T[y, y],    q = ε + (1 − 2ε) · p(y)

p(y) is the moving mean of the probability, averaged over the networks; T[i, j], how often what is taken for i is
labelled j, is counted over all samples. Without T a sample that is merely hard, such as a 4 that looks like a 9, ranks
above a 7 that was labelled 1 on purpose: on MNIST with asymmetric noise of 40 % the average precision is
.81, with it .96. ε holds back the certainty of networks about what they were trained on, and h says how many
independent witnesses they are: one alone is one, two that were trained to agree are more than one and fewer than two.
A label that no network contradicts is as probably right, at least: networks that have learnt little are sure of
nothing, and their low p(y) would make every label wrong. Nor is a label taken for wrong whose class they were hardly
trained on: selection by loss can drop a rare class entirely, and networks that do not know it contradict its labels.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np

from jocor_fast.data.arrays import user_path
from jocor_fast.engine.history import SampleStatistics
from jocor_fast.noise.estimate import pair_counts, rows_of_counts
from jocor_fast.runs.fit import Run
from jocor_fast.runs.folder import history_in, read_whole_checkpoint

LEAST_PROBABILITY = 0.01  # ε
LEAST_TRAINED = 0.5  # of what is usual: less of it, and the labels of a class are not judged
WRONG = 0.5  # a label with a score above is taken for wrong


@dataclass(frozen=True, eq=False)
class Audit:
    """What `audit` finds; sample i is row i of what the run was trained on.

    Attributes:
        given: int64 [N], the labels that the run was trained on.
        suggested: int64 [N], what they probably should be: the given ones but where `wrong`.
        score: float64 [N] in [0, 1], how probably the given label is wrong; 0 for a sample that no step has seen.
        wrong: bool [N], where the score is above 0.5.
        ranking: int64 [N], the numbers of the samples, the most suspicious first.
        share: the estimated share of wrong labels, the mean of `wrong`.
        share_range: (low, high), what the share may well be: from believing the networks less (as half a witness
            fewer, see the head of wrong_labels.py) to believing each of their contradictions; two standard deviations
            of the sampling are added on both sides.
        noise_matrix: float64 [C, C], Q[i, j] = P(given = j | true = i), estimated.
        prediction: int64 [K, N], what each of the K networks predicted in its last step of the sample; −1: no step.
        selected: int64 [N], how often a sample was chosen to train on.
        seen: int64 [N], how many steps a sample was in.
        classes: the labels as they were given, in the order of their numbers, where `audit_features` numbered them.
    """

    given: np.ndarray
    suggested: np.ndarray
    score: np.ndarray
    wrong: np.ndarray
    ranking: np.ndarray
    share: float
    share_range: tuple[float, float]
    noise_matrix: np.ndarray
    prediction: np.ndarray
    selected: np.ndarray
    seen: np.ndarray
    classes: tuple[str, ...] | None = None


def audit(run: Run | str | os.PathLike[str]) -> Audit:
    """Find the labels that are probably wrong, by what a run has seen of them.

    Nothing but the labels that the run was trained on and the networks' view of them is used. A run of some twenty
    epochs or more of a method that selects serves best: networks that have learnt the wrong labels cannot find them.

    Args:
        run: what `jocor_fast.train` returned, or the folder of a run.

    Returns:
        Audit: arrays over the samples, in the order of the training data (`jocor-fast train` with a validation
        split trains on part of a data set; `jocor-fast audit` says which sample is which).

    Raises:
        TypeError: `run` is neither.
        jocor_fast.errors.RunError: the folder holds no checkpoint with a history.
    """
    if isinstance(run, (str, os.PathLike)):
        folder = user_path(run)
        return audit_history(history_in(folder, read_whole_checkpoint(folder)))
    statistics = getattr(run, "history", None)
    if not isinstance(statistics, SampleStatistics):
        raise TypeError(f"run must be what jocor_fast.train returned or the folder of a run, got {type(run).__name__}")
    return audit_history(statistics)


def audit_history(history: SampleStatistics, num_classes: int | None = None) -> Audit:
    """Return the `audit` of a history; C is one more than the highest class in it unless `num_classes` says more."""
    given, prediction = history.labels, history.prediction
    seen = history.seen > 0
    highest = max(int(given.max(initial=0)), int(prediction.max(initial=0)))
    classes = max(highest + 1, num_classes or 0)
    taken_for = _shares(prediction, np.broadcast_to(given, prediction.shape), classes)
    contradiction = _contradiction(history)
    contradicted = contradiction >= 0
    other = np.where(contradicted, contradiction, _likeliest_other(taken_for)[given])
    witnesses = (1 + len(prediction)) / 2
    judged = ~np.isin(given, classes_left_out(history, given))
    highest_score = np.where(contradicted & judged, 1.0, WRONG)
    score, fewer = (
        np.minimum(_score(history, taken_for, other, witnesses=count), highest_score)
        for count in (witnesses, witnesses - 0.5)
    )
    wrong = score > WRONG
    suggested = np.where(wrong, other, given)
    share = float(wrong[seen].mean()) if seen.any() else 0.0
    bounds = [share, *(float(found[seen].mean()) for found in (fewer > WRONG, contradicted) if seen.any())]
    margin = 2 * math.sqrt(share * (1 - share) / max(1, int(seen.sum())))
    return Audit(
        given=given,
        suggested=suggested,
        score=score,
        wrong=wrong,
        ranking=np.argsort(-score, kind="stable"),
        share=share,
        share_range=(max(0.0, min(bounds) - margin), min(1.0, max(bounds) + margin)),
        noise_matrix=_shares(suggested[seen], given[seen], classes),
        prediction=prediction,
        selected=history.selected,
        seen=history.seen,
    )


def classes_left_out(found: SampleStatistics | Audit, given: np.ndarray) -> np.ndarray:
    """Return the classes that a run has hardly trained on, and does not know.

    These have less than half the average number of samples, are selected less than half as often as the average
    sample, and the networks agree with less than half of their labels. (Methods that train on what networks disagree
    about select well-known classes rarely, too; and a large class of which most labels are wrong is to be found.)
    """
    agreement = (found.prediction == given).mean(0)
    samples, chosen, met, agreed = (
        np.bincount(given, weights=counts) for counts in (found.seen > 0, found.selected, found.seen, agreement)
    )
    rarely = chosen * met.sum() < LEAST_TRAINED * chosen.sum() * met
    few = samples < LEAST_TRAINED * samples.mean()
    return np.flatnonzero(few & rarely & (agreed < LEAST_TRAINED * samples))


def _shares(true: np.ndarray, labelled: np.ndarray, classes: int) -> np.ndarray:
    """Return how often i is labelled j, [C, C] of rows that sum to 1; a class without samples keeps its label."""
    known = true >= 0
    return rows_of_counts(pair_counts(true[known], labelled[known], classes))


def _contradiction(history: SampleStatistics) -> np.ndarray:
    """Return the prediction that is not the given label, of the network that doubts the label most; −1 for none."""
    against = np.where(history.prediction != history.labels, history.prediction, -1)
    doubt = np.where(against >= 0, -np.nan_to_num(history.probability), -np.inf)
    return np.take_along_axis(against, doubt.argmax(axis=0)[None], axis=0)[0]


def _likeliest_other(taken_for: np.ndarray) -> np.ndarray:
    """Return for each label the other class that it most often stands for, for where no network contradicts."""
    others = taken_for.copy()
    np.fill_diagonal(others, -1.0)
    return others.argmax(axis=0)


def _score(history: SampleStatistics, taken_for: np.ndarray, other: np.ndarray, *, witnesses: float) -> np.ndarray:
    """Return the probability that goes with the odds at the head of this file."""
    given, seen = history.labels, history.seen > 0
    mean = np.where(seen, history.probability.mean(axis=0), 1.0)
    bounded = LEAST_PROBABILITY + (1 - 2 * LEAST_PROBABILITY) * mean
    wrong = (1 - bounded) ** witnesses * taken_for[other, given]
    right = bounded**witnesses * taken_for[given, given]
    wrong = np.where(seen & (other != given), wrong, 0.0)
    return wrong / np.maximum(wrong + right, np.finfo(float).tiny)
