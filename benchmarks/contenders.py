"""The contenders of the benches, and the shapes: forward and backward of the joint loss over the k rows that it keeps.

Every contender takes the same logits and labels and returns the 0-d loss; `step` adds the backward pass. What is timed
is checked first: `assert_agree` compares losses and gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import jocor_fast as jf

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


def make_inputs(shape: Shape) -> Inputs:
    """Logits as of two half-trained networks: of one scale, alike but not equal."""
    generator = torch.Generator().manual_seed(0)
    shared, own1, own2 = (torch.randn(shape.rows, shape.classes, generator=generator) for _ in range(3))
    target = torch.randint(shape.classes, (shape.rows,), generator=generator)
    return Inputs((2 * shared + own1).requires_grad_(), (2 * shared + own2).requires_grad_(), target, shape.kept)


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


# One compilation a shape: with torch's default a second shape would be compiled for any number of rows, and be slower.
CONTENDERS: dict[str, Loss] = {
    "published formula": published,
    "eager PyTorch": eager,
    "torch.compile": torch.compile(eager, dynamic=False),
    "jocor_fast": ours,
}
OURS = "jocor_fast"


def step(loss: Loss, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Forward and backward: the loss and both gradients."""
    value = loss(inputs.logits1, inputs.logits2, inputs.target, inputs.kept)
    gradient1, gradient2 = torch.autograd.grad(value, (inputs.logits1, inputs.logits2))
    return value, gradient1, gradient2


def assert_agree(inputs: Inputs) -> None:
    """Each contender's loss and gradients agree with the reference in float64, else AssertionError names it."""
    logits1, logits2 = (logits.detach().double().requires_grad_() for logits in (inputs.logits1, inputs.logits2))
    in_float64 = Inputs(logits1, logits2, inputs.target, inputs.kept)

    def reference(logits1: Tensor, logits2: Tensor, target: Tensor, kept: int) -> Tensor:
        return jf.reference.jocor_loss(logits1, logits2, target, co_lambda=CO_LAMBDA, num_keep=kept).loss

    expected = step(reference, in_float64)
    for name, loss in CONTENDERS.items():
        for what, value, right in zip(("loss", "gradient 1", "gradient 2"), step(loss, inputs), expected, strict=True):
            error = ((value - right).abs().max() / right.abs().max()).item()
            assert error <= 1e-5, f"{name}: its {what} is {error:.1e} of the largest entry away from the reference"
