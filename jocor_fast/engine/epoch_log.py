"""What the steps of an epoch leave behind: on the device, read once when the epoch is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from jocor_fast.methods import StepLoss


class EpochLog:
    """The order of an epoch and, a step at a time, what its batches gave; writing to it never waits for the device.

    Attributes:
        order: int64 [steps · B], the sample numbers in the order in which they are trained on.
        step: how many steps are done.
        losses: float64 [steps], the loss of each step.
        nonfinite: int64 [steps], rows of the batch whose loss is not finite.
        selected: bool [choices, steps · B], in the order of `order`.
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
        """Return the sample numbers of several steps, int64 [U · B]; the steps, int64 [U], are on the device alone."""
        return self.order.view(len(self.losses), -1).index_select(0, places).flatten()

    def record_at(self, places: Tensor, outcomes: Sequence[StepLoss]) -> None:
        """Record several steps, int64 [U], that are on the device alone; the caller advances `step`."""
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

    def state_dict(self) -> dict[str, Any]:
        """Return the log of an epoch under way, for a checkpoint."""
        names = ("order", "step", "losses", "nonfinite", "selected", "seconds", "waited")
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def from_state_dict(state: dict[str, Any], device: torch.device) -> EpochLog:
        """Return the log of a checkpoint, to continue."""
        log = EpochLog(state["order"].to(device), len(state["losses"]), len(state["selected"]))
        log.step, log.seconds, log.waited = state["step"], state["seconds"], state["waited"]
        for name in ("losses", "nonfinite", "selected"):
            getattr(log, name).copy_(state[name])
        return log
