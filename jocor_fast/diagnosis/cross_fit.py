"""Predictions of samples by networks that never saw them: plain training on either half of the data, briefly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from jocor_fast.data.samples import Samples
from jocor_fast.engine import loop
from jocor_fast.engine.evaluate import EvaluationSet
from jocor_fast.engine.loop import EpochEvent, Observer
from jocor_fast.engine.networks import build_networks, evaluating
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.state import TrainingState
from jocor_fast.errors import RunError
from jocor_fast.machine import resolve_device, seeded_generators

LEAST_EPOCHS, LEAST_STEPS = 5, 1000  # of each network; on MNIST the estimates no longer change after them
MOST_EPOCHS = 50  # few samples gain nothing from more passes


@dataclass(frozen=True, eq=False)
class CrossFit:
    """Probabilities of two networks, averaged over the epochs of their training.

    Attributes:
        half: bool [N], which network a sample was held out from: False from the first, True from the second.
        probability: float64 [N, C], by the network that the sample was held out from; NaN where it could not be read.
        val_probability: float64 [2, V, C], of both networks; None without validation data.
    """

    half: np.ndarray
    probability: np.ndarray
    val_probability: np.ndarray | None


def default_epochs(num_samples: int, batch_size: int) -> int:
    """Return for how many epochs the networks are trained by default."""
    steps = max(1, num_samples // 2 // batch_size)
    return min(MOST_EPOCHS, max(LEAST_EPOCHS, math.ceil(LEAST_STEPS / steps)))


def cross_fit(
    settings: TrainSettings,
    build_network: Callable[[], nn.Module],
    train: Samples,
    num_classes: int,
    *,
    epochs: int,
    val: Samples | None = None,
    on_epoch: Callable[[int, int], None] | None = None,
) -> CrossFit:
    """Train a network on either half of the samples, by cross-entropy on everything.

    Args:
        settings: batch size, optimiser, learning rate, augmentation, seed, device and precision are taken from them.
        epochs: how long each network is trained, at the full learning rate.
        val: what both networks predict besides.
        on_epoch: told after every epoch (epochs done by both networks together, epochs in all).

    Raises:
        ValueError: there is one sample only, or the settings do not go with the data.
        RunError: a network diverged.
    """
    if len(train.labels) < 2:
        raise ValueError("to estimate the noise takes two samples at least: one is trained on, the other predicted")
    device = resolve_device(settings.device)
    plain = replace(settings, method="standard", method_options={}, forget_rate=0.0, recipe="paper", epochs=epochs)
    plain = replace(plain, lr_plan="linear", decay_start=epochs)  # the rate stays as it is
    plain = replace(plain, class_weights=None, label_smoothing=0.0, selection_per_class=False, balanced_ramp=False)
    half = np.zeros(len(train.labels), dtype=bool)
    half[np.random.default_rng([settings.seed, 2]).permutation(len(half))[len(half) // 2 :]] = True
    probability = np.zeros((len(half), num_classes))
    val_probability = None if val is None else np.zeros((2, len(val.labels), num_classes))
    with seeded_generators(settings.seed, device):
        for number, held_out in enumerate((~half, half)):
            trained, others = np.flatnonzero(~held_out), np.flatnonzero(held_out)
            part, rest = (replace(train, clean_labels=None).subset(ids) for ids in (trained, others))
            networks = build_networks(build_network, 1, "standard", device)
            state = TrainingState(plain, networks, part, None, None, device)
            done = (
                None if on_epoch is None else lambda epoch, before=number * epochs: on_epoch(before + epoch, 2 * epochs)
            )
            mean = _MeanPredictions(state, [of for of in (rest, val) if of is not None], epochs, done)
            fault = loop.train(state, range(1, epochs + 1), mean)
            if fault is not None:
                raise RunError(
                    f"the warm-up that estimates the noise diverged in epoch {fault.epoch}: {fault.reason}; a smaller "
                    "learning rate may help"
                )
            probability[others] = mean.of_sets[0]
            if val_probability is not None:
                val_probability[number] = mean.of_sets[1]
            state.release()
    return CrossFit(half, probability, val_probability)


class _MeanPredictions(Observer):
    """What a network predicts of some sets, float64 [n, C] each, as the mean over its epochs."""

    def __init__(
        self, state: TrainingState, sets: Sequence[Samples], epochs: int, done: Callable[[int], None] | None
    ) -> None:
        self.state, self.epochs, self.done = state, epochs, done
        self.sets = [EvaluationSet(data, state.device, state.settings.batch_size) for data in sets]
        self.of_sets = [np.zeros((len(data), state.classes)) for data in self.sets]

    def on_epoch(self, event: EpochEvent) -> None:
        if event.fault is None:
            for mean, data in zip(self.of_sets, self.sets, strict=True):
                mean += _probabilities(self.state, data) / self.epochs
            if self.done is not None:
                self.done(event.epoch)


@torch.no_grad()
def _probabilities(state: TrainingState, data: EvaluationSet) -> np.ndarray:
    """float64 [n, C], NaN for samples that could not be read."""
    result = torch.full((len(data), state.classes), math.nan, device=state.device)
    with evaluating(state.networks), state.step.autocast():
        for samples, stored in data.source.batches(data.order, data.batch_size):
            (logits,) = state.step.group.logits(data.source.network_input(stored))
            result[samples] = logits.float().softmax(1)
    return result.double().cpu().numpy()
