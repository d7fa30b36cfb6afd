"""How many labels are wrong, and what each class is labelled, before a run: τ and the noise matrix (methods ours).

Three ways, by what there is:

- Held-out samples with noisy and true labels: they are counted.
- Nothing but noisy labels: two networks are trained briefly, each on one half of the data, and predict the other half.
  Among the third of the samples taken for class k of which they are surest, hardly any is of another class, and the
  labels were not seen in the choice: their labels are row k of the matrix Q. How frequent the classes themselves are
  follows from the given labels, as the π ≥ 0 that solves Qᵀπ = P(label).
- A clean validation set besides: it tells how often the networks take class k for c, M[k, c], and the counts of what
  was predicted and labelled, J[c, y], are Σ_k M[k, c] · P(true k, label y), which is solved for P.

All take it that a label's noise depends on the class of a sample alone. Where hard samples are mislabelled more often,
the second way finds too few. Where the networks cannot learn the classes, even those that they are surest of are of
others, and it finds too many. It shows: networks that have learnt agree with the labels of the surest hardly more often
than with all others.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jocor_fast.config.resolve import Config
from jocor_fast.config.task import Task
from jocor_fast.diagnosis.cross_fit import CrossFit, cross_fit, default_epochs
from jocor_fast.files.names import MOST_CLASSES_IN_JSON
from jocor_fast.noise.estimate import (
    SUREST,
    non_negative_solution,
    pair_counts,
    rate_and_rows_of_surest,
    rows_of_counts,
    surest,
)

SUREST_OF_ALL = 0.1  # the share by which it is tried whether they can be believed
DRAWS = 100  # of the bootstrap
# Agreement with all labels over that with those of the surest. It is near 1 where networks learn (digits and MNIST,
# whatever the noise) and lower where they do not, as perceptrons on a few thousand images of CIFAR-10.
LEAST_AGREEMENT = 0.85


@dataclass(frozen=True, eq=False)
class NoiseEstimate:
    """An estimate of label noise.

    Attributes:
        rate: τ, the share of wrong labels.
        uncertainty: two standard errors of it; what the assumptions get wrong comes on top.
        transition: float64 [C, C], Q[i, j] = P(label j | true i).
        method: how it was made, a phrase.
    """

    rate: float
    uncertainty: float
    transition: np.ndarray
    method: str

    def as_dict(self) -> dict[str, Any]:
        """Return what files hold; a large matrix is left out."""
        small = len(self.transition) <= MOST_CLASSES_IN_JSON
        return {
            "rate": self.rate,
            "uncertainty": self.uncertainty,
            "transition": self.transition.tolist() if small else None,
            "method": self.method,
        }

    @staticmethod
    def of_dict(content: Mapping[str, Any]) -> NoiseEstimate:
        """Return what `as_dict` gave; its matrix is empty where it was left out."""
        return NoiseEstimate(**{**content, "transition": np.asarray(content["transition"] or [], dtype=float)})

    def __str__(self) -> str:
        return f"{100 * self.rate:.1f} ± {100 * self.uncertainty:.1f} %, {self.method}"


def estimate_noise(
    config: Config, task: Task, *, epochs: int | None = None, on_epoch: Callable[[int, int], None] | None = None
) -> NoiseEstimate:
    """The estimate for what a run is to be trained on, by the best of the three ways that there is.

    Args:
        config: the settings of the run; model, batch size, optimiser, seed and device are those of the warm-up too.
        epochs: of the warm-up; None: `default_epochs`.
        on_epoch: told after every epoch of a warm-up (epochs done, epochs in all).

    Raises:
        ConfigError, DataError, RunError: the settings do not go with the data, a file is at fault, or the warm-up is.
    """
    held_out = np.setdiff1d(np.arange(len(task.given_labels)), task.train_ids)
    num_classes = task.dataset.num_classes
    if len(held_out) and config.val_labels == "clean" and task.true_labels is not None:
        return counted(task.given_labels[held_out], task.true_labels[held_out], num_classes)
    settings = config.training
    val = None if len(held_out) else task.val  # what was held out without true labels says nothing about noise
    with config.engine_complaints():
        fit = cross_fit(
            settings,
            task.build_network,
            task.train,
            num_classes,
            epochs=default_epochs(len(task.train.labels), settings.batch_size) if epochs is None else epochs,
            val=val,
            on_epoch=on_epoch,
        )
    labels = task.train.labels.numpy()
    return from_predictions(fit, labels) if val is None else from_predictions_and_truth(fit, labels, val.labels.numpy())


def counted(noisy: np.ndarray, true: np.ndarray, num_classes: int) -> NoiseEstimate:
    """Return the estimate from samples with noisy and true labels, int64 [n] each."""
    wrong = noisy != true
    rate = float(wrong.mean())
    return NoiseEstimate(
        rate=rate,
        uncertainty=2 * math.sqrt(max(rate * (1 - rate), 1 / len(wrong)) / len(wrong)),
        transition=rows_of_counts(pair_counts(true, noisy, num_classes)),
        method=f"counted on {len(wrong):,} held-out samples with true labels",
    )


def from_predictions(fit: CrossFit, labels: np.ndarray) -> NoiseEstimate:
    """The estimate of noisy labels int64 [N] alone, by predictions of networks that did not see them."""
    num_classes = fit.probability.shape[1]
    known = ~np.isnan(fit.probability[:, 0])
    predicted, labels, half = fit.probability[known].argmax(1), labels[known], fit.half[known]
    certainty = fit.probability[known].max(1)

    def of(rows: np.ndarray, share: float = SUREST) -> tuple[float, np.ndarray]:
        return rate_and_rows_of_surest(labels[rows], predicted[rows], certainty[rows], num_classes, share)

    everything = np.arange(len(labels))
    rate, transition = of(everything)
    first, second = (of(np.flatnonzero(half == which))[0] for which in (False, True))
    generator = np.random.default_rng(0)
    drawn = [of(generator.integers(len(labels), size=len(labels)))[0] for _ in range(_draws(num_classes))]
    uncertainty = 2 * math.hypot(float(np.std(drawn)), (first - second) / 2)
    agrees = predicted == labels
    overall, of_surest = float(agrees.mean()), float(agrees[surest(predicted, certainty, num_classes)].mean())
    if _is_too_high(rate, uncertainty, of(everything, SUREST_OF_ALL)[0], overall / of_surest if of_surest else 1.0):
        warnings.warn(
            "the noise is probably estimated too high: the two networks agree with "
            f"{100 * overall:.1f} % of the labels that they were not trained on, and with {100 * of_surest:.1f} % of "
            "those they are surest of, so they have not learnt the classes well enough to tell; another --model may",
            stacklevel=2,
        )
    method = "by two networks that each predict the half of the data that they were not trained on"
    return NoiseEstimate(rate, uncertainty, transition, method)


def from_predictions_and_truth(fit: CrossFit, labels: np.ndarray, val_labels: np.ndarray) -> NoiseEstimate:
    """The same, where a validation set with true labels int64 [V] tells how often the networks err."""
    assert fit.val_probability is not None
    num_classes = fit.probability.shape[1]
    known = ~np.isnan(fit.probability[:, 0])
    predicted, labels = fit.probability[known].argmax(1), labels[known]
    val_known = ~np.isnan(fit.val_probability[0, :, 0])
    val_predicted, val_labels = fit.val_probability[:, val_known].argmax(2), val_labels[val_known]
    generator = np.random.default_rng(0)

    def of(rows: np.ndarray, val_rows: np.ndarray) -> tuple[float, np.ndarray]:
        both = np.tile(val_labels[val_rows], 2)
        errors = rows_of_counts(pair_counts(both, val_predicted[:, val_rows].ravel(), num_classes))
        joint = pair_counts(predicted[rows], labels[rows], num_classes) / len(rows)
        solved = np.stack([non_negative_solution(errors.T, column) for column in joint.T], axis=1)
        return 1.0 - float(np.trace(solved)) / max(float(solved.sum()), 1e-12), rows_of_counts(solved)

    rate, transition = of(np.arange(len(labels)), np.arange(len(val_labels)))
    sizes = len(labels), len(val_labels)
    drawn = [of(*(generator.integers(n, size=n) for n in sizes))[0] for _ in range(_draws(num_classes))]
    method = f"by two networks whose errors {len(val_labels):,} validation samples with true labels tell"
    return NoiseEstimate(rate, 2 * float(np.std(drawn)), transition, method)


def _is_too_high(rate: float, uncertainty: float, of_surest_of_all: float, agreement: float) -> bool:
    """Return whether an estimate is probably too high.

    That is so where the surest are not all right: the networks agree with them more often than with all others, and the
    estimate falls if it is made from fewer and surer samples. And it is where more than half of the labels would be
    wrong: as a rule it is the networks then. How often this is right stands in benchmarks/results/warnings.

    Args:
        rate: the estimate.
        uncertainty: of it.
        of_surest_of_all: the estimate from a third as many samples.
        agreement: with all labels, over that with those of the surest.
    """
    falls = rate - of_surest_of_all > uncertainty / 2 and rate > 2 * uncertainty
    return (agreement < LEAST_AGREEMENT and falls) or rate - uncertainty > 0.5


def _draws(num_classes: int) -> int:
    """How many times to draw: with many classes each takes long."""
    return DRAWS if num_classes <= 30 else 10
