"""One step of training: from stored samples to updated parameters. Nothing in here waits for the device."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from jocor_fast.composed_losses import Terms
from jocor_fast.data.samples import InputSource, SparseInputs
from jocor_fast.engine import augment
from jocor_fast.engine.loss_scale import LossScale
from jocor_fast.engine.networks import DistributedNetworks, NetworkGroup, SeparateNetworks
from jocor_fast.engine.optimizer import build_optimizer
from jocor_fast.engine.paired_mlp import PairedMLP
from jocor_fast.engine.plan import StepRates
from jocor_fast.engine.processes import ALONE, Processes
from jocor_fast.engine.selection_scope import loss_over_all
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.sparse_perceptrons import SparsePerceptrons
from jocor_fast.methods import Keep, Method, StepLoss


class TrainingStep:
    """Networks, method and optimiser of a run, and how a batch passes through them."""

    def __init__(
        self,
        settings: TrainSettings,
        method: Method,
        networks: Sequence[nn.Module],
        source: InputSource,
        device: torch.device,
        generator: torch.Generator,
        processes: Processes = ALONE,
    ) -> None:
        """`method` is that of the settings, which has made its state."""
        self.settings = settings
        self.device = device
        self.source = source
        self.generator = generator  # of the augmentation
        self.processes = processes
        self.selects_over_all = settings.selection_scope == "global" and processes.count > 1
        self.method = method
        self.trained_state = [tensor for tensor in method.state.values() if tensor.requires_grad]
        plain = is_plain(settings, method, processes)
        sparse = isinstance(source, SparseInputs)
        layout = {
            "channels_last": _gains_by_channels_last(networks, source, device),
            "compiled": settings.compile,
        }
        if processes.count > 1:
            self.group: NetworkGroup = DistributedNetworks(networks, source.first(), **layout)
        elif plain and sparse and SparsePerceptrons.fits_sparse(networks, source.first()):
            self.group = SparsePerceptrons(networks)
        elif plain and not sparse and PairedMLP.fits(networks, source.first()):
            self.group = PairedMLP(networks)
        else:
            self.group = SeparateNetworks(networks, **layout)
        self.group.parameters += self.trained_state
        self.reads_sparse_rows = isinstance(self.group, SparsePerceptrons)  # else networks are given dense batches
        self.optimizer = build_optimizer(settings, self.group)
        self.per_class = self.is_per_class(epoch=1)
        self.class_weights: Tensor | None = None  # [C], as float32
        self.loss_scale = LossScale(device) if settings.precision == "float16" else None

    def is_per_class(self, epoch: int) -> bool:
        """Return whether the steps of an epoch are to select per class, as `per_class` has it; never, if not in 1."""
        if not self.method.selects:
            return False
        in_ramp = epoch <= self.settings.ramp_epochs and not self.method.chooses_samples
        return self.settings.selection_per_class or (self.settings.balanced_ramp and in_ramp)

    def __call__(
        self,
        stored: Tensor,
        labels: Tensor,
        rates: StepRates,
        ranks: Tensor | None = None,
        samples: Tensor | None = None,
    ) -> StepLoss:
        """Forward, loss, backward, update.

        Args:
            stored: [B, ...], samples as the source hands them out.
            labels: int64 [B].
            ranks: [B], of the samples in their classes, where the selection is per class.
            samples: int64 [B], their numbers, which a method with a state needs.

        Returns:
            What the method made of the batch; nothing of it keeps more than the logits alive.
        """
        if self.settings.augment == "crop-flip" and not self.source.reads_files:
            stored = augment.crop_flip(stored, self.generator, self.processes)
        # Held until the step is over: what runs on a second stream still reads them after autograd has let go of them.
        inputs = self.source.network_input(stored)
        self.optimizer.catch_up(inputs)
        with self.autocast():
            logits = self.group.logits(inputs)
        others = [type(output).__name__ for output in logits if not isinstance(output, Tensor)]
        if others:
            raise TypeError(f"networks must give logits [B, C] in training mode as in evaluation mode, got {others[0]}")
        keep = self._with_terms(rates.keep, labels, ranks)
        if self.method.state:
            keep = keep._replace(samples=samples)
        outcome = self._loss(logits, labels, keep)
        skip = None if outcome.skip is None else self.processes.least(outcome.skip)
        if self.loss_scale is None:
            self._backward(outcome.loss)
        else:
            self._backward(self.loss_scale.scaled(outcome.loss))
            gradients = [parameter.grad for parameter in self.group.parameters if parameter.grad is not None]
            overflow = self.loss_scale.unscale(gradients)
            skip = overflow if skip is None else torch.maximum(overflow, skip)
        self.optimizer.step(lr=rates.lr, beta1=rates.beta1, skip=skip)
        return outcome._replace(loss=outcome.loss.detach(), logits=tuple(network.detach() for network in logits))

    def _loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        if self.selects_over_all:
            return loss_over_all(self.method, logits, labels, keep, self.processes)
        return self.method.loss(logits, labels, keep)

    def _backward(self, loss: Tensor) -> None:
        self.group.backward(loss)
        for parameter in self.trained_state:  # DistributedDataParallel averages those of networks alone
            if parameter.grad is not None:
                self.processes.average(parameter.grad)

    def _with_terms(self, keep: Keep, labels: Tensor, ranks: Tensor | None) -> Keep:
        smoothing = self.settings.label_smoothing
        if not (self.per_class or smoothing or self.class_weights is not None):
            return keep
        groups, precedence = (labels, ranks) if self.per_class else (None, None)
        return keep._replace(terms=Terms(self.class_weights, smoothing, groups, precedence))

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Return the precision of the run, for what the networks compute."""
        if self.settings.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.settings.precision))


def is_plain(settings: TrainSettings, method: Method, processes: Processes) -> bool:
    """Return whether a step may use the groups of perceptrons: their backward pass differentiates the logits alone."""
    trained = any(tensor.requires_grad for tensor in method.state.values())
    plain = settings.precision == "float32" and not settings.compile and not callable(settings.optimizer)
    return plain and not trained and processes.count == 1


def _gains_by_channels_last(networks: Sequence[nn.Module], source: InputSource, device: torch.device) -> bool:
    """Return whether the networks convolve images on a GPU, where tensor cores need adjacent channels."""
    convolves = any(isinstance(layer, nn.Conv2d) for network in networks for layer in network.modules())
    return device.type == "cuda" and convolves and source.first().dim() == 4
