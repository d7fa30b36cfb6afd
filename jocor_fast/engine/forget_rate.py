"""τ that follows the run (`forget_rate="adaptive"`): the share of wrong labels as its own networks see it (ours).

After each epoch of the ramp the share is estimated from the samples that the networks are surest of, whose predictions
hardly err (`noise.estimate.rate_and_rows_of_surest`). τ is the median of the later half of the estimates so far: the
first are far too high where the networks learn slowly. After the ramp τ stays, for networks that memorise find less.

Two groups of losses, as a mixture, do not tell the share: the losses of clean data have two as well, easy and hard
(the rules that were tried, and their figures: benchmarks/results/adaptive).
"""

from __future__ import annotations

from statistics import median

from jocor_fast.engine.history import SampleHistory
from jocor_fast.engine.processes import Processes
from jocor_fast.noise.estimate import HIGHEST_FORGET_RATE, rate_and_rows_of_surest


class AdaptiveForgetRate:
    """τ as a run has estimated it so far.

    Attributes:
        estimates: the share of wrong labels after each epoch of the ramp, in order; kept in checkpoints.
    """

    def __init__(self, ramp_epochs: int) -> None:
        self.ramp_epochs = ramp_epochs
        self.estimates: list[float] = []

    @property
    def value(self) -> float:
        """τ; 0 before the first epoch."""
        later = self.estimates[len(self.estimates) // 2 :]
        return min(median(later), HIGHEST_FORGET_RATE) if later else 0.0

    def follow(self, epoch: int, history: SampleHistory, num_classes: int, processes: Processes) -> None:
        """Learn what the run has seen before an epoch (from 1); after the first one past the ramp, nothing changes."""
        if 1 < epoch <= max(1, self.ramp_epochs) + 1:
            self.estimates.append(processes.from_first(lambda: wrong_share(history, num_classes)))


def wrong_share(history: SampleHistory, num_classes: int) -> float:
    """Return the estimated share of wrong labels, by a history that keeps certainties; waits for the device.

    The surest samples are among those of which all networks predict the same.
    """
    assert history.certainty is not None
    prediction = history.predictions().cpu().numpy()
    seen = prediction[0] >= 0
    agreed = (prediction == prediction[0]).all(axis=0)
    certainty = history.certainty.double().cpu().numpy() * agreed
    labels = history.labels.cpu().numpy()
    return rate_and_rows_of_surest(labels[seen], prediction[0][seen], certainty[seen], num_classes)[0]
