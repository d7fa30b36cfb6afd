"""Evaluation on the device: every sample is counted exactly once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jocor_fast.data.samples import InputSource, ResidentInputs, Samples, SparseInputs
from jocor_fast.engine.networks import NetworkGroup, evaluating
from jocor_fast.engine.processes import ALONE, Processes
from jocor_fast.engine.sparse_perceptrons import logits_of
from jocor_fast.losses import num_keep, select_small_loss

EVALUATION_BATCH = 512  # on MNIST 256 to 1000 take 60 ms, more or fewer up to a fifth longer
# On a GPU a batch costs the host as much as many samples cost the device: batches of so many numbers (MNIST's test set
# is one), of at least `EVALUATION_BATCH` samples.
EVALUATION_NUMBERS_ON_GPU = 2**23
DENSE_NUMBERS = 2**23  # of a batch of sparse rows, at most, for networks that are given it dense


class EvaluationSet:
    """Samples to evaluate on, on the device, of which each process has a share; files in batches of `batch_size`."""

    def __init__(
        self,
        data: Samples,
        device: torch.device,
        batch_size: int = EVALUATION_BATCH,
        processes: Processes = ALONE,
    ) -> None:
        self.source: InputSource = data.open(device, batch_size)
        self.labels = data.labels.to(device)
        self.order = processes.share_of(torch.arange(len(self.labels), device=device))
        self.batch_size = batch_size if self.source.reads_files else evaluation_rows(self.source)
        if device.type == "cuda" and isinstance(self.source, ResidentInputs):
            self.batch_size = max(EVALUATION_BATCH, EVALUATION_NUMBERS_ON_GPU // max(1, self.source.first(1).numel()))
        self.keep_rate = data.keep_rate

    def __len__(self) -> int:
        return len(self.labels)


def evaluation_rows(source: InputSource) -> int:
    """Return how many rows of a source in memory to evaluate at a time."""
    if not isinstance(source, SparseInputs):
        return EVALUATION_BATCH
    return max(1, min(EVALUATION_BATCH, DENSE_NUMBERS // source.stored.shape[1]))


@torch.no_grad()
def count_correct(
    group: NetworkGroup, networks: Sequence[nn.Module], data: EvaluationSet | None, processes: Processes = ALONE
) -> Tensor:
    """Count the samples that each network classifies correctly, in evaluation mode; nothing waits for the device.

    Where only a part is counted, it is that of the smallest cross-entropy, summed over the networks: a measure that is
    the same for every method and every λ, and so does not take sides between them.

    Returns:
        float64 on the device, of this process's share: how many are counted (files that cannot be read are not), then
        one number, or for two networks three, the third for the arg-max of their mean probabilities; [0] where there
        are no data.
    """
    if data is None:
        return torch.empty(0, dtype=torch.float64, device=group.parameters[0].device)
    right: list[Tensor] = []
    losses: list[Tensor] = []
    seen = 0
    with evaluating(networks):
        for samples, stored in data.source.batches(data.order, data.batch_size):
            seen += len(samples)
            logits = [z.float() for z in group.logits(data.source.network_input(stored))]
            labels = data.labels.index_select(0, samples)
            if data.keep_rate < 1:
                losses.append(torch.stack([F.cross_entropy(z, labels, reduction="none") for z in logits]).sum(0))
            if len(logits) == 2:
                logits.append(logits[0].softmax(1) + logits[1].softmax(1))
            right.append(torch.stack([z.argmax(1) == labels for z in logits]))
    counted = torch.cat(right, dim=1) if right else data.labels.new_empty(2 * len(networks) - 1, 0, dtype=torch.bool)
    if data.keep_rate < 1:
        chosen, seen = _smallest(torch.cat(losses) if losses else counted.new_empty(0).float(), data, seen, processes)
        counted &= chosen
    correct = counted.sum(1).double()
    return torch.cat([correct.new_full((1,), seen), correct])


def _smallest(own: Tensor, data: EvaluationSet, seen: int, processes: Processes) -> tuple[Tensor, int]:
    """Which of this process's losses [seen] are among the smallest of all, and how many of those count as its own."""
    count = num_keep(sum(processes.objects(seen)), 1.0 - data.keep_rate)
    padded = own.new_full((-(-len(data) // processes.count),), math.inf)  # as long in each process; never selected
    padded[:seen] = own
    chosen = select_small_loss(processes.gathered(padded).flatten(), count)
    return chosen.view(processes.count, -1)[processes.rank, :seen], count if processes.first else 0


@torch.no_grad()
def predicted_probabilities(
    network: nn.Module, source: InputSource, device: torch.device, file_batch: int = EVALUATION_BATCH
) -> np.ndarray:
    """Return a network's probabilities of all samples, float64 [N, C].

    `file_batch` is how many a source of files was opened for.
    """
    order = torch.arange(len(source), device=device)
    rows = file_batch if source.reads_files else evaluation_rows(source)
    with evaluating([network]):
        call = logits_of([network], sparse=isinstance(source, SparseInputs))
        logits = [call(source.network_input(stored))[0] for _, stored in source.batches(order, rows)]
    probabilities: np.ndarray = torch.cat(logits).double().softmax(1).cpu().numpy()
    return probabilities


@dataclass(frozen=True)
class Accuracy:
    """Accuracies in [0, 1]; None where there is nothing to evaluate on, or no second network."""

    first: float | None = None
    second: float | None = None
    mean: float | None = None
    ensemble: float | None = None

    @staticmethod
    def of(numbers: Sequence[float]) -> Accuracy:
        """Make the accuracies from the numbers of `count_correct`."""
        if not numbers or not numbers[0]:
            return Accuracy()
        count, *correct = numbers
        shares = [number / count for number in correct]
        if len(shares) == 1:
            return Accuracy(first=shares[0], mean=shares[0])
        return Accuracy(shares[0], shares[1], (shares[0] + shares[1]) / 2, shares[2])
