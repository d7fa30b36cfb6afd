"""Predictions of samples by networks that never saw them: plain training on either half of the data, briefly."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from jocor_fast.data.samples import EvalData, TrainData, take
from jocor_fast.engine.evaluate import EvaluationSet
from jocor_fast.engine.networks import build_networks, evaluating
from jocor_fast.engine.plan import plan_epoch
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.trainer import Trainer
from jocor_fast.errors import RunError
from jocor_fast.machine import resolve_device, seeded_generators

LEAST_EPOCHS, LEAST_STEPS = 5, 1000  # of each network; on MNIST the estimates no longer change after them
MOST_EPOCHS = 50  # few samples do not get better by being seen ever again


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
    """How many epochs the networks are trained where nothing else is said."""
    steps = max(1, num_samples // 2 // batch_size)
    return min(MOST_EPOCHS, max(LEAST_EPOCHS, math.ceil(LEAST_STEPS / steps)))


def cross_fit(
    settings: TrainSettings,
    build_network: Callable[[], nn.Module],
    train: TrainData,
    num_classes: int,
    *,
    epochs: int,
    val: EvalData | None = None,
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
    plain = replace(settings, method="standard", forget_rate=0.0, recipe="paper", epochs=epochs)
    plain = replace(plain, lr_plan="linear", decay_start=epochs)  # the rate stays as it is
    half = np.zeros(len(train.labels), dtype=bool)
    half[np.random.default_rng([settings.seed, 2]).permutation(len(half))[len(half) // 2 :]] = True
    probability = np.zeros((len(half), num_classes))
    val_probability = None if val is None else np.zeros((2, len(val.labels), num_classes))
    with seeded_generators(settings.seed, device):
        for number, held_out in enumerate((~half, half)):
            trained, others = np.flatnonzero(~held_out), np.flatnonzero(held_out)
            part = TrainData(
                take(train.inputs, trained), train.labels[torch.from_numpy(trained)], None, train.input_scale
            )
            rest = EvalData(take(train.inputs, others), train.labels[torch.from_numpy(others)], train.input_scale)
            trainer = Trainer(plain, build_networks(build_network, 1, "standard", device), part, None, None, device)
            sets = [EvaluationSet(data, device, plain.batch_size) for data in (rest, val) if data is not None]
            for epoch in range(1, epochs + 1):
                plan = plan_epoch(plain, epoch, len(trained))
                trainer.train_epoch(plan, stop=lambda: False)
                _, fault = trainer.finish_epoch(plan)
                if fault is not None:
                    raise RunError(
                        f"the warm-up that estimates the noise diverged in epoch {epoch}: {fault['reason']}; a smaller "
                        "learning rate may help"
                    )
                probability[others] += _probabilities(trainer, sets[0], num_classes) / epochs
                if val_probability is not None:
                    val_probability[number] += _probabilities(trainer, sets[1], num_classes) / epochs
                if on_epoch is not None:
                    on_epoch(number * epochs + epoch, 2 * epochs)
            trainer.release()
    return CrossFit(half, probability, val_probability)


@torch.no_grad()
def _probabilities(trainer: Trainer, data: EvaluationSet, num_classes: int) -> np.ndarray:
    """float64 [n, C], NaN for samples that could not be read."""
    device = data.labels.device
    result = torch.full((len(data), num_classes), math.nan, device=device)
    with evaluating(trainer.networks), trainer.step.autocast():
        for samples, stored in data.source.batches(data.order, data.batch_size):
            (logits,) = trainer.step.group.logits(data.source.network_input(stored))
            result[samples] = logits.float().softmax(1)
    return result.double().cpu().numpy()
