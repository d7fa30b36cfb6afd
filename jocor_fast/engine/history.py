"""What the steps of a run saw of each sample: kept where they compute, read on request.

A label that both networks keep contradicting is probably wrong: `jocor_fast.audit` ranks by what stands here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jocor_fast.engine.processes import Processes
from jocor_fast.methods import StepLoss

WINDOW = 5  # a moving mean forgets a fifth of itself with each step of the sample: one an epoch
LARGEST_LOSS = 1e4  # what a loss that is not finite counts as: one of them must not make a mean useless for ever
STEPS_AT_ONCE = 16  # recorded one by one they take 6 % of a step of MNIST's perceptrons on a CPU, so together 1 %
_FIRST_MEAN = 3  # before it: times seen, times selected, and the sum of the weights that the means were given


@dataclass(frozen=True, eq=False)
class SampleStatistics:
    """The history of N samples under K networks, on the host.

    Attributes:
        labels: int64 [N], what the run was trained on.
        seen: int64 [N], steps that the sample was in. An epoch leaves out what does not fill a batch.
        selected: int64 [N], how often it was chosen to train on, by all choices of the method together (Co-teaching
            makes two a step).
        loss: float64 [N], moving mean of the loss that the method ranks by; NaN for a sample never seen, as are
        probability: float64 [K, N], moving mean of each network's probability of the given label.
        prediction: int64 [K, N], what each network predicted in the last step of the sample; −1 if there was none.
    """

    labels: np.ndarray
    seen: np.ndarray
    selected: np.ndarray
    loss: np.ndarray
    probability: np.ndarray
    prediction: np.ndarray

    @staticmethod
    def of(state: Mapping[str, Tensor]) -> SampleStatistics:
        """Make the statistics from `SampleHistory.state_dict`."""
        table = state["table"].double().cpu().t().numpy()
        seen, selected, weight = table[:_FIRST_MEAN]
        num_networks = (len(table) - _FIRST_MEAN - 1) // 2
        means = np.where(
            seen > 0, table[_FIRST_MEAN : _FIRST_MEAN + 1 + num_networks] / np.maximum(weight, 1e-30), np.nan
        )
        prediction = np.where(seen > 0, table[-num_networks:], -1.0)
        return SampleStatistics(
            labels=state["labels"].long().cpu().numpy(),
            seen=seen.astype(np.int64),
            selected=selected.astype(np.int64),
            loss=means[0],
            probability=means[1:],
            prediction=prediction.astype(np.int64),
        )


class SampleHistory:
    """One table on the device, a row a sample, that a step adds its batch to.

    All of it is float32 (counts and classes are exact in it up to 2²⁴), so a step reads and writes its rows with
    one operation each. Nothing in `record` waits for the device, and the table stays in its place.
    """

    def __init__(self, labels: Tensor, num_networks: int, *, ranked: bool = False, certainties: bool = False) -> None:
        """Begin a history.

        Args:
            labels: int64 [N], on the run's device.
            num_networks: K.
            ranked: whether `rank` is to be called before each epoch.
            certainties: whether to keep how sure the networks are of what they predict, for `certainty`.
        """
        self.labels = labels
        self.num_networks = num_networks
        self.ranks = torch.zeros(len(labels), device=labels.device) if ranked else None
        self.certainty = torch.zeros(len(labels), device=labels.device) if certainties else None
        means = 1 + num_networks
        self.table = torch.zeros(len(labels), _FIRST_MEAN + means + num_networks, device=labels.device)
        # A row r becomes keep · r + add · x: counts add up, means move, predictions are replaced. The means start at
        # 0 and are divided by the sum of their weights when they are read.
        keep = [1.0, 1.0, *[1.0 - 1.0 / WINDOW] * (1 + means), *[0.0] * num_networks]
        add = [1.0, 1.0, *[1.0 / WINDOW] * (1 + means), *[1.0] * num_networks]
        self._keep, self._add = torch.tensor([keep, add], device=labels.device).unbind()
        self._noted: list[tuple[Tensor, Tensor, StepLoss]] = []

    def note(self, samples: Tensor, labels: Tensor, outcome: StepLoss) -> None:
        """Take a step's samples int64 [B], their labels and its outcome as they are, to be recorded with others."""
        self._noted.append((samples, labels, outcome))
        if len(self._noted) == STEPS_AT_ONCE:
            self.record_noted()

    def record_noted(self) -> None:
        """Record what has been noted: before a sample comes again, and before the table is read."""
        if self._noted:
            samples, labels, outcomes = zip(*self._noted, strict=True)
            self.record(torch.cat(samples), torch.cat(labels), outcomes)
            self._noted.clear()

    def rank(self) -> None:
        """Rank the samples of each class by the moving means of their losses: 0 the lowest, towards 1 the highest.

        In each class the ranks are evenly spread, whatever its losses are. Samples without a loss come first.
        """
        assert self.ranks is not None
        weight, loss = self.table[:, _FIRST_MEAN - 1], self.table[:, _FIRST_MEAN]
        order = (loss / weight.clamp(min=1e-30)).argsort(stable=True)
        order = order[self.labels[order].argsort(stable=True)]
        labels = self.labels[order]
        place = torch.arange(len(order), device=order.device)
        first = torch.searchsorted(labels, labels)
        size = torch.searchsorted(labels, labels, right=True) - first
        self.ranks[order] = (place - first) / size

    def ranks_of(self, samples: Tensor) -> Tensor | None:
        """Return the ranks of a step's samples, [B]; None where there are none."""
        return None if self.ranks is None else self.ranks.index_select(0, samples)

    @torch.no_grad()
    def record(self, samples: Tensor, labels: Tensor, outcomes: Sequence[StepLoss]) -> None:
        """Take down a step, or several at once, which takes hardly longer.

        Args:
            samples: int64 [M], the numbers of the samples in all their batches, none twice.
            labels: int64 [M].
        """
        num_networks = len(outcomes[0].logits)
        logits = [outcome.logits[network].t() for network in range(num_networks) for outcome in outcomes]
        # Classes first: torch's softmax over rows of ten numbers takes fifteen times as long as over columns.
        by_class = torch.cat(logits, 1).softmax(0, dtype=torch.float32)  # [C, K · M]
        given = by_class.gather(0, labels.expand(num_networks, -1).reshape(1, -1))[0].nan_to_num_(nan=0.0)
        largest, predicted = by_class.max(0)
        seen = torch.ones(len(samples), device=samples.device)
        selected = [sum(outcome.selected[1:], outcome.selected[0].float()) for outcome in outcomes]
        losses = [outcome.per_sample.float() for outcome in outcomes]
        new = torch.cat([seen, *selected, seen, *losses, given, predicted.float()]).view(-1, len(samples))
        new[_FIRST_MEAN].nan_to_num_(nan=LARGEST_LOSS, posinf=LARGEST_LOSS)
        rows = self.table.index_select(0, samples).mul_(self._keep).addcmul_(new.t(), self._add)
        self.table.index_copy_(0, samples, rows)
        if self.certainty is not None:
            self.certainty.index_copy_(0, samples, largest.view(num_networks, -1).mean(0))

    def losses(self) -> Tensor:
        """Return [N], the moving means of the losses, on the device; NaN for a sample never seen."""
        return self._means(_FIRST_MEAN)

    def probabilities(self) -> Tensor:
        """Return [K, N], the moving means of each network's probability of the given label; NaN likewise."""
        return torch.stack([self._means(_FIRST_MEAN + 1 + network) for network in range(self.num_networks)])

    def predictions(self) -> Tensor:
        """Return int64 [K, N], what each network predicted last; −1 for a sample never seen."""
        self.record_noted()
        return torch.where(self.table[:, 0] > 0, self.table[:, -self.num_networks :].t(), -1.0).long()

    def _means(self, column: int) -> Tensor:
        self.record_noted()
        seen, weight = self.table[:, 0] > 0, self.table[:, _FIRST_MEAN - 1]
        return torch.where(seen, self.table[:, column] / weight, torch.nan)

    def share(self, samples: Tensor, processes: Processes) -> None:
        """Give all processes the rows of what each has trained on since the epoch began, int64 [M] in each."""
        self.record_noted()
        share_rows(self.table, samples, processes)
        if self.certainty is not None:
            share_rows(self.certainty, samples, processes)

    def state_dict(self) -> dict[str, Any]:
        """Return the table, not copied, and the labels that its probabilities are of."""
        self.record_noted()
        further = {name: tensor for name, tensor in self._further().items() if tensor is not None}
        return {"table": self.table, "labels": self.labels.int(), **further}

    def _further(self) -> dict[str, Tensor | None]:
        return {"ranks": self.ranks, "certainty": self.certainty}

    def statistics(self) -> SampleStatistics:
        """Return what there is, on the host."""
        return SampleStatistics.of(self.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy what `state_dict` returned, of a run on the same labels."""
        self.table.copy_(state["table"])
        for name, tensor in self._further().items():
            if tensor is not None:
                tensor.copy_(state[name])


@torch.no_grad()
def share_rows(table: Tensor, samples: Tensor, processes: Processes) -> None:
    """Give all processes the rows of a table [N, …] of what each has trained on since the epoch began, int64 [M].

    A sample is in one process's share of an epoch (one that takes the place of bad files may be in several: the mean of
    its rows is kept).
    """
    flat = table.view(len(table), -1)
    numbers = flat if flat.is_floating_point() else flat.double()
    trained = torch.zeros(len(table), 1, device=table.device)
    trained[samples] = 1.0
    rows = processes.total(torch.cat([torch.where(trained > 0, numbers, 0.0), trained], 1))
    count = rows[:, -1:]
    flat.copy_(torch.where(count > 0, rows[:, :-1] / count.clamp(min=1.0), numbers))
