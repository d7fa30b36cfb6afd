"""Successive halving: many candidates are trained a little, the better half of them longer, until one is left.

A candidate is a run with the schedules of its full length; it pauses at each rung and goes on from there if it is kept.
(Jamieson and Talwalkar, 2016. The paper says which λ it searched and by which accuracy, not how; how is ours.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

# An accuracy is the mean over so many epochs: on some thousand samples that of one epoch strays further than
# neighbouring λ differ.
SCORED_EPOCHS = 5


def rungs(epochs: int, *, ramp_epochs: int, candidates: int) -> list[int]:
    """The epochs at which candidates are compared, the last being the end of the runs.

    Each is twice the one before. The first comes when selection has been in full force for as long as it took to get
    there, at twice the ramp: before, a large λ, which learns more slowly, is behind those that it overtakes (on MNIST
    with half of the labels wrong, three epochs after the ramp, the best λ was third of four). There are no more than it
    takes to get from all candidates to one.
    """
    found = [epochs]
    halvings = math.ceil(math.log2(candidates))
    while len(found) <= halvings and (earlier := math.ceil(found[0] / 2)) >= 2 * ramp_epochs and earlier < found[0]:
        found.insert(0, earlier)
    return found


def score(metrics: Sequence[Mapping[str, Any]], rung: int) -> float | None:
    """The mean validation accuracy over the last epochs up to a rung; None where the run did not get there.

    Later epochs than the rung are not looked at, so that a search that is run again decides as it did before.
    """
    if len(metrics) < rung:
        return None
    values = [line["val_accuracy"] for line in metrics[max(0, rung - SCORED_EPOCHS) : rung]]
    return None if None in values else fmean(values)


def ranked(scores: Mapping[float, float | None]) -> list[float]:
    """Candidates by score, the best first; of equals the larger (in the paper larger is better); no score: left out."""
    scored = {candidate: value for candidate, value in scores.items() if value is not None}
    return sorted(scored, key=lambda candidate: (scored[candidate], candidate), reverse=True)


def kept(scores: Mapping[float, float | None]) -> list[float]:
    """The better half, rounded up, of all candidates of a rung, in ascending order; fewer where most have failed."""
    return sorted(ranked(scores)[: math.ceil(len(scores) / 2)])
