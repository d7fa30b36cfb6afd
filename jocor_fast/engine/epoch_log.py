"""What the steps of an epoch leave behind: on the device, read once when the epoch is over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from jocor_fast.engine.processes import Processes
from jocor_fast.methods import StepLoss


class EpochLog:
    """The order of an epoch and, a step at a time, what its batches gave; writing to it never waits for the device.

    Attributes:
        order: int64 [steps · B], the sample numbers in the order in which they are trained on.
        step: how many steps are done.
        losses: float64 [steps], the loss of each step.
        nonfinite: int64 [steps], rows of the batch whose loss is not finite.
        selected: bool [choices, steps · B], beside `order`.
        rows_a_step: B.
        seconds: time spent in its steps.
        waited: how much of that the host waited for files to be read and decoded.
    """

    def __init__(self, order: Tensor, steps: int, num_choices: int) -> None:
        device = order.device
        self.order = order
        self.step = 0
        self.losses = torch.zeros(steps, dtype=torch.float64, device=device)
        self.nonfinite = torch.zeros(steps, dtype=torch.int64, device=device)
        self.selected = torch.zeros(num_choices, len(order), dtype=torch.bool, device=device)
        self.seconds = 0.0
        self.waited = 0.0
        self.rows_a_step = len(order) // steps
        # A view for each step, made at once: making them in the step takes longer than writing to them.
        self._places = list(
            zip(
                self.losses.unbind(),
                self.nonfinite.unbind(),
                zip(*(choice.split(self.rows_a_step) for choice in self.selected), strict=True),
                strict=True,
            )
        )

    def restart(self, order: Tensor) -> None:
        """Begin another epoch of as many steps, in the same tensors: captured steps know where these lie."""
        self.order.copy_(order)
        for numbers in (self.losses, self.nonfinite, self.selected):
            numbers.zero_()
        self.step, self.seconds, self.waited = 0, 0.0, 0.0

    def record(self, outcome: StepLoss) -> None:
        loss, nonfinite, choices = self._places[self.step]
        loss.copy_(outcome.loss)
        nonfinite.copy_(outcome.num_nonfinite)
        for choice, mask in zip(choices, outcome.selected, strict=True):
            choice.copy_(mask)
        self.step += 1

    def rows(self, places: Tensor) -> Tensor:
        """The sample numbers of several steps, int64 [U · B]; the steps, int64 [U], are known to the device alone."""
        return self.order.view(len(self.losses), -1).index_select(0, places).flatten()

    def record_at(self, places: Tensor, outcomes: Sequence[StepLoss]) -> None:
        """Take down several steps, int64 [U], that are known to the device alone; `step` is the caller's to advance."""
        self.losses.index_copy_(0, places, torch.stack([outcome.loss for outcome in outcomes]).double())
        self.nonfinite.index_copy_(0, places, torch.stack([outcome.num_nonfinite for outcome in outcomes]))
        masks = torch.stack([mask for outcome in outcomes for mask in outcome.selected])
        choices, steps = len(self.selected), len(self.losses)
        by_step = self.selected.view(choices, steps, -1)
        by_step.index_copy_(1, places, masks.view(len(outcomes), choices, -1).transpose(0, 1))

    def replace(self, samples: Tensor) -> None:
        """Note what the step to come trains on, int64 [B], where a source replaced some of it."""
        start = self.step * len(samples)
        self.order[start : start + len(samples)] = samples

    @property
    def steps(self) -> int:
        """How many there are in the epoch."""
        return len(self.losses)

    def totals(self, clean: Tensor | None) -> Tensor:
        """The epoch in numbers, for `EpochNumbers`: float64 [6] on the device.

        Args:
            clean: bool [N], True where the noisy label is the true one; None where that is not known.
        """
        steps = self.steps
        selected = self.selected.sum()
        clean_selected = selected * math.nan if clean is None else (self.selected & clean[self.order]).sum()
        finite = self.losses.isfinite()
        broken = (self.nonfinite > 0) | ~finite
        first_broken = torch.arange(steps, dtype=torch.float64, device=broken.device).where(broken, math.inf).amin()
        numbers = [self.losses.mean(), finite.sum(), selected, clean_selected, self.nonfinite.sum(), first_broken]
        return torch.stack([number.double() for number in numbers])

    def class_counts(self, labels: Tensor, classes: int) -> Tensor:
        """How many rows were selected and how many there were, by their noisy label: float64 [2, C] on the device."""
        rows = torch.stack([self.selected.double().mean(0), torch.ones_like(self.losses[:1]).expand(len(self.order))])
        counts = torch.zeros(2, classes, dtype=torch.float64, device=rows.device)
        return counts.index_add_(1, labels[self.order], rows)

    def state_dict(self) -> dict[str, Any]:
        """The log of an epoch that was interrupted, for a checkpoint."""
        names = ("order", "step", "losses", "nonfinite", "selected", "seconds", "waited")
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def from_state_dict(state: dict[str, Any], device: torch.device) -> EpochLog:
        """The log of a checkpoint, to go on with."""
        log = EpochLog(state["order"].to(device), len(state["losses"]), len(state["selected"]))
        log.step, log.seconds, log.waited = state["step"], state["seconds"], state["waited"]
        for name in ("losses", "nonfinite", "selected"):
            getattr(log, name).copy_(state[name])
        return log


@dataclass(frozen=True)
class EpochNumbers:
    """`EpochLog.totals`, on the host.

    Attributes:
        mean_loss: over the steps.
        finite_steps: steps with a finite loss.
        selected: rows that were trained on.
        clean_selected: those of them whose label is the true one; NaN where that is not known.
        nonfinite: rows with a non-finite loss.
        first_broken: the first step, from 0, with such a row or a non-finite loss; infinite if there is none.
    """

    mean_loss: float
    finite_steps: float
    selected: float
    clean_selected: float
    nonfinite: float
    first_broken: float

    @staticmethod
    def of(totals: Sequence[Sequence[float]]) -> EpochNumbers:
        """From `EpochLog.totals` of each process, which have as many steps and rows."""
        mean_loss, finite_steps, selected, clean_selected, nonfinite, first_broken = zip(*totals, strict=True)
        return EpochNumbers(
            fmean(mean_loss), min(finite_steps), sum(selected), sum(clean_selected), sum(nonfinite), min(first_broken)
        )

    @property
    def first_broken_batch(self) -> int | None:
        """Its number, from 1; None where there is none."""
        return int(self.first_broken) + 1 if math.isfinite(self.first_broken) else None

    @property
    def train_loss(self) -> float | None:
        """The mean loss; None where it is not finite, or nothing was trained on."""
        return self.mean_loss if self.selected and math.isfinite(self.mean_loss) else None

    @property
    def label_precision(self) -> float | None:
        """Clean among selected / selected; None where the truth is unknown, or nothing was trained on."""
        return self.clean_selected / self.selected if self.selected and self.clean_selected >= 0 else None

    @property
    def without_loss(self) -> bool:
        """Whether no step of the epoch had a finite loss. (A method may find nothing to train on in sound rows.)"""
        return not self.finite_steps or (not self.selected and self.nonfinite > 0)


def shares(counts: Sequence[float]) -> list[float | None]:
    """The selected share of each class, from `EpochLog.class_counts`; None for a class that did not occur."""
    classes = len(counts) // 2
    pairs = zip(counts[:classes], counts[classes:], strict=True)
    return [selected / rows if rows else None for selected, rows in pairs]


def read_at_once(parts: Sequence[Tensor], processes: Processes) -> list[list[list[float]]]:
    """The numbers of several tensors on a device, in one transfer: of each tensor a list for each process."""
    everywhere = processes.gathered(torch.cat([part.double().flatten() for part in parts]))
    ends = list(accumulate(part.numel() for part in parts))
    rows = everywhere.tolist()
    return [[row[end - part.numel() : end] for row in rows] for part, end in zip(parts, ends, strict=True)]


def summed(numbers: Sequence[Sequence[float]]) -> list[float]:
    """The processes' numbers added up, place by place."""
    return [sum(column) for column in zip(*numbers, strict=True)]
