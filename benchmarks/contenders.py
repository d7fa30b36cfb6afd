"""The contenders of the benches, and the shapes: forward and backward of the joint loss over the k rows that it keeps.

A contender is a step: from the same inputs to the loss and both gradients. What is timed is checked first:
`assert_agree` compares losses and gradients with the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import jocor_fast as jf
from jocor_fast import _C

CO_LAMBDA = 0.9
THREADS = 2


@dataclass(frozen=True)
class Shape:
    rows: int
    classes: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.classes}"

    @property
    def kept(self) -> int:
        return self.rows // 2


SHAPES = (Shape(128, 10), Shape(128, 100), Shape(1024, 14), Shape(4096, 100), Shape(4096, 1000))

Loss = Callable[[Tensor, Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Inputs:
    logits1: Tensor  # float32 [B, C], a leaf that requires its gradient; the second alike
    logits2: Tensor
    target: Tensor  # int64 [B]
    kept: int
    num_selected: Tensor  # kept, as the kernels read it: 0-d int64
    one: Tensor  # the gradient of the loss with respect to itself: 0-d


def make_inputs(shape: Shape) -> Inputs:
    """Logits as of two half-trained networks: of one scale, alike but not equal."""
    generator = torch.Generator().manual_seed(0)
    shared, own1, own2 = (torch.randn(shape.rows, shape.classes, generator=generator) for _ in range(3))
    target = torch.randint(shape.classes, (shape.rows,), generator=generator)
    return Inputs(
        logits1=(2 * shared + own1).requires_grad_(),
        logits2=(2 * shared + own2).requires_grad_(),
        target=target,
        kept=shape.kept,
        num_selected=torch.tensor(shape.kept),
        one=torch.ones(()),
    )


def published(logits1: Tensor, logits2: Tensor, target: Tensor, kept: int) -> Tensor:
    """As the paper's published code computes it: two kl_div of softmaxes, rows ranked by argsort on the host."""

    def divergence(logits: Tensor, soft_targets: Tensor) -> Tensor:
        terms = F.kl_div(F.log_softmax(logits, dim=1), F.softmax(soft_targets, dim=1), reduction="none")
        return terms.sum(dim=1)

    supervised1 = F.cross_entropy(logits1, target, reduction="none") * (1 - CO_LAMBDA)
    supervised2 = F.cross_entropy(logits2, target, reduction="none") * (1 - CO_LAMBDA)
    agreement = divergence(logits1, logits2) + divergence(logits2, logits1)
    per_sample = (supervised1 + supervised2 + CO_LAMBDA * agreement).cpu()
    order = np.argsort(per_sample.detach().numpy())
    return per_sample[torch.from_numpy(order[:kept])].mean()


def eager(logits1: Tensor, logits2: Tensor, target: Tensor, kept: int) -> Tensor:
    """The plain formula, each softmax computed once, and torch.topk without sorting: what a careful user writes."""
    log_p, log_q = F.log_softmax(logits1, dim=1), F.log_softmax(logits2, dim=1)
    supervised = F.nll_loss(log_p, target, reduction="none") + F.nll_loss(log_q, target, reduction="none")
    agreement = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=1)
    per_sample = (1 - CO_LAMBDA) * supervised + CO_LAMBDA * agreement
    return torch.topk(per_sample, kept, largest=False, sorted=False).values.mean()


def ours(logits1: Tensor, logits2: Tensor, target: Tensor, kept: int) -> Tensor:
    """The public function."""
    return jf.jocor_loss(logits1, logits2, target, co_lambda=CO_LAMBDA, num_keep=kept).loss


class Result(NamedTuple):
    loss: Tensor | None  # None where a contender does not compute it
    gradient1: Tensor
    gradient2: Tensor


Step = Callable[[Inputs], Result]


def differentiated(loss: Loss) -> Step:
    """Forward and backward through autograd."""

    def step(inputs: Inputs) -> Result:
        value = loss(inputs.logits1, inputs.logits2, inputs.target, inputs.kept)
        gradient1, gradient2 = torch.autograd.grad(value, (inputs.logits1, inputs.logits2))
        return Result(value, gradient1, gradient2)

    return step


def kernels_alone(inputs: Inputs) -> Result:
    """Our three kernels called one by one: what is left of the time without autograd and the dispatcher."""
    logits1, logits2, target = inputs.logits1.detach(), inputs.logits2.detach(), inputs.target
    per_sample, statistics = _C.joint_loss_forward(logits1, logits2, target, CO_LAMBDA)
    selected = _C.select_small_loss(per_sample, inputs.kept)
    gradients = _C.joint_loss_backward(
        inputs.one, logits1, logits2, target, statistics, selected, inputs.num_selected, CO_LAMBDA
    )
    return Result(None, *gradients)


OURS = "jocor_fast"
CONTENDERS: dict[str, Step] = {
    "published formula": differentiated(published),
    "eager PyTorch": differentiated(eager),
    # One compilation a shape: by torch's default the second would be compiled for any number of rows, and be slower.
    "torch.compile": differentiated(torch.compile(eager, dynamic=False)),
    OURS: differentiated(ours),
    "its kernels alone": kernels_alone,
}


def assert_agree(inputs: Inputs) -> None:
    """Each contender's loss and gradients agree with the reference in float64, else AssertionError names it."""

    def reference(logits1: Tensor, logits2: Tensor, target: Tensor, kept: int) -> Tensor:
        return jf.reference.jocor_loss(logits1, logits2, target, co_lambda=CO_LAMBDA, num_keep=kept).loss

    in_float64 = replace(
        inputs,
        logits1=inputs.logits1.detach().double().requires_grad_(),
        logits2=inputs.logits2.detach().double().requires_grad_(),
    )
    expected = differentiated(reference)(in_float64)
    for name, step in CONTENDERS.items():
        for what, value, right in zip(Result._fields, step(inputs), expected, strict=True):
            if value is not None and right is not None:
                error = ((value - right).abs().max() / right.abs().max()).item()
                assert error <= 1e-5, f"{name}: {what} is {error:.1e} of its largest entry away from the reference"
