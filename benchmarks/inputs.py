"""The inputs of a case, the same on every call."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import jocor_fast as jf
from cases import Case
from jocor_fast import _C

CO_LAMBDA = 0.9


@dataclass(frozen=True)
class Inputs:
    logits1: Tensor  # [B, C], a leaf that requires its gradient; the second alike
    logits2: Tensor
    target: Tensor  # int64 [B]
    kept: int
    num_selected: Tensor  # kept, as the kernels read it: 0-d int64
    one: Tensor  # the gradient of the loss with respect to itself: 0-d
    losses: Tensor  # float32 [B]: what the selection ranks
    statistics: Tensor  # float32 [B, 4]: what the gradient needs of the rows
    selected: Tensor  # bool [B]


def make_inputs(case: Case, device: str) -> Inputs:
    """Logits as of two half-trained networks: of one scale, alike but not equal."""
    rows, classes = case.shape.rows, case.shape.classes
    generator = torch.Generator(device).manual_seed(0)
    shared, own1, own2 = (torch.randn(rows, classes, generator=generator, device=device) for _ in range(3))
    target = torch.randint(classes, (rows,), generator=generator, device=device)
    logits1, logits2 = ((2 * shared + own).to(case.dtype) for own in (own1, own2))
    if case.work == "selection":
        losses, statistics = own1[:, 0].square(), torch.empty(0, device=device)
    else:
        losses, statistics = _C.joint_loss_forward(logits1, logits2, target, CO_LAMBDA)
    return Inputs(
        logits1=logits1.requires_grad_(),
        logits2=logits2.requires_grad_(),
        target=target,
        kept=case.shape.kept,
        num_selected=torch.tensor(case.shape.kept, device=device),
        one=torch.ones((), device=device),
        losses=losses,
        statistics=statistics,
        selected=jf.select_small_loss(losses, case.shape.kept),
    )
