"""One step of training: from stored samples to updated parameters. Nothing in here waits for the device."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from jocor_fast.engine import augment
from jocor_fast.engine.networks import NetworkGroup, SeparateNetworks
from jocor_fast.engine.optimizer import build_optimizer
from jocor_fast.engine.paired_mlp import PairedMLP
from jocor_fast.engine.plan import EpochPlan
from jocor_fast.engine.samples import InputSource
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.methods import METHODS, StepLoss


class TrainingStep:
    """Networks, method and optimiser of a run, and how a batch passes through them."""

    def __init__(
        self,
        settings: TrainSettings,
        networks: Sequence[nn.Module],
        source: InputSource,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        self.settings = settings
        self.device = device
        self.source = source
        self.generator = generator  # of the augmentation
        self.method = METHODS[settings.method](settings)
        paired = settings.precision == "float32" and PairedMLP.fits(networks, source.first())
        self.group: NetworkGroup = PairedMLP(networks) if paired else SeparateNetworks(networks)
        self.optimizer = build_optimizer(settings, self.group.parameters)

    def __call__(self, stored: Tensor, labels: Tensor, plan: EpochPlan) -> StepLoss:
        """Forward, loss, backward, update.

        Args:
            stored: [B, ...], samples as the source hands them out.
            labels: int64 [B].
            plan: the epoch's schedules.
        """
        if self.settings.augment == "crop-flip":
            stored = augment.crop_flip(stored, self.generator)
        with self.autocast():
            logits = self.group.logits(self.source.network_input(stored))
        outcome = self.method.loss(logits, labels, plan.num_keep)
        self.group.backward(outcome.loss)
        self.optimizer.step(lr=plan.lr, beta1=plan.beta1)
        return outcome

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """The precision of the run, for what the networks compute."""
        if self.settings.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.settings.precision))
