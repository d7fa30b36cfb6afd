"""What speaks against an audit, a sentence each; how often each is right: benchmarks/results/warnings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jocor_fast.data.classes import first_names
from jocor_fast.diagnosis.wrong_labels import Audit, classes_left_out
from jocor_fast.report.screen import counted
from jocor_fast.report.tables import percent

# On MNIST the F1 score of what is found still grows from epoch 20 (.90 to .98) to epoch 40 (.91 to .985).
FEW_STEPS = 10
FEW_ERRORS = 0.25
LEAST_OF_A_CLASS = 0.1


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What the networks predicted of samples that they were not trained on.

    Attributes:
        name: "test" or "held-out".
        accuracy: at the end of training.
        labels: int64 [n].
    """

    name: str
    accuracy: float
    labels: np.ndarray


def doubts(found: Audit, held_out: HeldOut | None, names: Sequence[str]) -> list[str]:
    """Return why not to believe an audit, then which classes not to believe it of; the subject of each is the run.

    Args:
        found: the audit.
        held_out: what else is known of the networks.
        names: of the classes.
    """
    reason = _few_steps(found) or _nothing_learnt(found) or (held_out and _memorised(found, held_out))
    of_classes = (_classes_given_up(found, names), _classes_left_out(found, names))
    return [sentence for sentence in (reason, *of_classes) if sentence]


def caveat(found: Audit, held_out: HeldOut | None) -> str | None:
    """Return how few labels may be wrong, if networks err on the training samples as on test samples; else None.

    Of the share r of wrong labels and of those right ones on which the networks err, as on a share e of the test data,
    r + (1 - r) e are contradicted. There is nothing to say where they err rarely, where most of what was found is
    beyond that, and where they agree with the training labels less often than with those of test data, which count as
    right. Networks that memorise their samples err less on them: as a rule the share is right nevertheless.
    """
    if held_out is None or held_out.name != "test" or _agreement(found) < held_out.accuracy:
        return None
    errors, share = 1 - held_out.accuracy, found.share
    explained = max(0.0, (share - errors) / (1 - errors)) if errors < 1 else 0.0
    if errors <= FEW_ERRORS or explained >= share / 2:
        return None
    return (
        f"the networks err on {percent(errors)} % of the test samples; if they do on the training samples too, as few "
        f"as {percent(explained)} % of the labels are wrong"
    )


def _few_steps(found: Audit) -> str | None:
    seen = int(np.median(found.seen))
    return f"has seen each sample {counted(seen, 'time')} only: not much to judge by" if seen < FEW_STEPS else None


def _nothing_learnt(found: Audit) -> str | None:
    agreement, by_chance = _agreement(found), _most_frequent(found.given)
    if agreement > _upper_bound(by_chance, len(found.given)):
        return None
    return (
        f"has networks that predict {percent(agreement)} % of the labels, where always the most frequent one would be "
        f"{percent(by_chance)} %: they have learnt nothing to judge by"
    )


def _memorised(found: Audit, held_out: HeldOut) -> str | None:
    """Why not to believe networks that know the labels which they were trained on and no others.

    Of pure noise, JoCoR keeps the labels that its networks happen to agree with, and then learns these. Its history
    looks like that of a good run at a high rate of noise: digits with random labels and with 80 % noise are told apart
    by the accuracy on other samples, .07 to .13 and .30 to .42, and by nothing in the history.
    """
    count, by_chance, agreement = len(held_out.labels), _most_frequent(held_out.labels), _agreement(found)
    # The second condition: where so few samples were held out that chance decides, nothing is claimed.
    if held_out.accuracy > _upper_bound(by_chance, count) or agreement <= _upper_bound(held_out.accuracy, count):
        return None
    return (
        f"has networks that predict {percent(agreement)} % of the labels that they were trained on, but "
        f"{percent(held_out.accuracy)} % of the {held_out.name} labels, where always the most frequent one would be "
        f"{percent(by_chance)} %: the networks have memorised the labels, and the list is no better than chance"
    )


def _classes_given_up(found: Audit, names: Sequence[str]) -> str | None:
    """Which classes not to believe it of: those of which hardly a label would remain, or come from others."""
    given, suggested = (np.bincount(labels, minlength=len(names)) for labels in (found.given, found.suggested))
    given_up = np.flatnonzero(suggested < LEAST_OF_A_CLASS * given)
    if not len(given_up):
        return None
    return (
        f"would label hardly any sample {_named(given_up, names)}, as where networks have not learnt a class, being "
        "rare or under too many wrong labels: look at what is labelled so before that is replaced"
    )


def _classes_left_out(found: Audit, names: Sequence[str]) -> str | None:
    """Which classes are not judged, as training has left them out."""
    left_out = classes_left_out(found, found.given)
    if not len(left_out):
        return None
    return (
        f"has hardly trained on what is labelled {_named(left_out, names)}, and does not judge these labels: a run "
        "with a selection per class does"
    )


def _named(classes: np.ndarray, names: Sequence[str]) -> str:
    return first_names([names[number] for number in classes.tolist()])


def _agreement(found: Audit) -> float:
    return float(np.mean(found.prediction == found.given))


def _most_frequent(labels: np.ndarray) -> float:
    return float(np.bincount(labels).max()) / len(labels)


def _upper_bound(share: float, count: int) -> float:
    """Three standard deviations above the share of `count` samples."""
    return share + 3 * math.sqrt(share * (1 - share) / count)
