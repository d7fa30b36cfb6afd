"""The inputs of a case, the same on every call."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import jocor_fast as jf
from cases import Case
from jocor_fast import _C

CO_LAMBDA = 0.9
ROWS_A_STEP = 1024  # of the batch, for each of which the number of kept rows may move by one


def number_to_keep(losses: Tensor) -> int:
    """About half of the rows: so many that the next loss is well above the last one kept.

    Among 65,536 losses two that differ by less than float32's rounding are no rarity; where they stand at the limit,
    contenders that are all right would choose differently.
    """
    middle, reach = len(losses) // 2, len(losses) // ROWS_A_STEP
    gaps = losses.sort().values.diff()[middle - reach - 1 : middle + reach]
    return middle - reach + int(gaps.argmax())


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
    kept = number_to_keep(losses)
    return Inputs(
        logits1=logits1.requires_grad_(),
        logits2=logits2.requires_grad_(),
        target=target,
        kept=kept,
        num_selected=torch.tensor(kept, device=device),
        one=torch.ones((), device=device),
        losses=losses,
        statistics=statistics,
        selected=jf.select_small_loss(losses, kept),
    )
