"""Faults of published code as methods of `train`, to measure what they do; the package has none of them.

`with_faults` and `with_transition` make a subclass of a method. Registered by a name, it is trained like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from jocor_fast import forward_correction, losses
from jocor_fast.methods import CoTeachingPlus, FCorrection, FirstStage, History, Keep, StepLoss
from jocor_fast.schedules import keep_rounding

FAULTS = ("softmax", "division", "fallback")
SECOND_SOFTMAX = ("none", "before", "after")  # T
FALLBACK_STEPS = 5000  # up to this product of the epoch and the number of its batch


class FaultyCoTeachingPlus(CoTeachingPlus):
    """Co-teaching+ with faults of its authors' code (loss.py of github.com/xingruiyu/coteaching_plus).

    "softmax": a cross-entropy, which takes the softmax, is given probabilities. "division": the mean over the k rows of
    a choice is divided by k once more. "fallback": where no predictions differ, both networks train on the whole batch,
    and once epoch · batch (from 0) has come to 5000 on nothing, though Adam's moments still move them; and where
    rounding down keeps none of the rows that differ, all of these are kept.
    """

    faults: ClassVar[frozenset[str]] = frozenset()

    def start(self, labels: Tensor, classes: int) -> None:
        self.state = {"batch": torch.zeros((), dtype=torch.int64, device=labels.device)}

    def begin_epoch(self, keep: Keep, history: History) -> None:
        self.state["batch"].zero_()

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        first, second = (network.softmax(1) for network in logits) if "softmax" in self.faults else logits
        differ = logits[0].argmax(1) != logits[1].argmax(1)
        rounding, rate = keep_rounding(self.recipe), torch.as_tensor(keep.forget_rate, dtype=torch.float64)
        if "fallback" in self.faults and rounding == "floor":
            rate = torch.where((1 - rate + 1e-9) * differ.sum() < 1, 0.0, rate)
        out = losses.coteaching_loss(first, second, labels, forget_rate=rate, disagreement=True, rounding=rounding)
        loss, selected = out.loss, (out.selected1, out.selected2)
        if "division" in self.faults:
            loss = loss / out.num_selected1.clamp(min=1)
        if "fallback" in self.faults:
            whole = losses.coteaching_loss(first, second, labels, num_keep=len(labels)).loss
            early = keep.epoch * self.state["batch"] < FALLBACK_STEPS
            loss = torch.where(differ.any(), loss, whole * early)
            selected = (selected[0].where(differ.any(), early), selected[1].where(differ.any(), early))
        self.state["batch"] += 1
        return StepLoss(loss, selected, out.num_nonfinite, out.per_sample1 + out.per_sample2)


class CorrectionByTransition(FCorrection):
    """F-correction with a T that is handed in, or estimated where there is none, and a second softmax somewhere.

    Its loss is −log((p·T)[y]) with p = softmax(z). "before" T: softmax(p) in the place of p. "after" T: the
    probabilities p·T are given to a cross-entropy, −log softmax(p·T)[y].
    """

    second_softmax: ClassVar[str] = "none"
    given: ClassVar[Callable[[], Any]]  # T [C, C], or None

    def prepare(self, first_stage: FirstStage) -> None:
        given = type(self).given()
        if given is None:
            super().prepare(first_stage)
            return
        self.transition = torch.as_tensor(given, dtype=torch.float64)
        self.log_transition_t = forward_correction.log_transposed(self.transition, torch.float32)

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        if self.second_softmax == "none":
            return super().loss(logits, labels, keep)
        p = logits[0].softmax(1)
        if self.second_softmax == "before":
            return super().loss((p,), labels, keep)
        noisy = p @ self.log_transition_t.t().exp()
        rows = -noisy.log_softmax(1).gather(1, labels[:, None])[:, 0]
        everything = torch.ones_like(labels, dtype=torch.bool)
        return StepLoss(rows.mean(), (everything,), (~rows.isfinite()).sum(), rows.detach())


def with_faults(*faults: str) -> type[FaultyCoTeachingPlus]:
    """Return Co-teaching+ with these of `FAULTS`."""
    return type("FaultyCoTeachingPlus", (FaultyCoTeachingPlus,), {"faults": frozenset(faults)})


def with_transition(given: Callable[[], Any], second_softmax: str) -> type[CorrectionByTransition]:
    """Return F-correction by the T that a function returns (None: by the estimate), with one of `SECOND_SOFTMAX`."""
    named = {"given": staticmethod(given), "second_softmax": second_softmax}
    return type("CorrectionByTransition", (CorrectionByTransition,), named)
