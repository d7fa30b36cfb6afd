"""Losses by torch's operators whose gradients are closed forms: half of autograd's work, and finite where it is not.

A function `…_rows` returns the loss of each row and its gradient with respect to the logits of each network. With p =
softmax(z), the label y and its one-hot e, that of cross-entropy is p − e. A class whose logit is −inf has p = 0 and a
gradient of 0. A row whose loss is not finite has an arbitrary gradient, which nothing reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from jocor_fast.arguments import check_reduction, not_negative
from jocor_fast.reference import check_labels
from jocor_fast.tensor_arguments import (
    FLOAT_TYPES,
    check_logits,
    check_matrix,
    check_moving_mean,
    check_target,
    check_type,
)

LEAST_REST = 1e-12  # of 1 − ⟨t, p⟩, which is 0 where a prediction and its mean are sure of the same class


class Rows(NamedTuple):
    """The rows of a batch."""

    losses: Tensor  # [B]
    gradients: tuple[Tensor, ...]  # [B, C] for each network: of the row's loss with respect to its logits


class MeanLoss(NamedTuple):
    """The mean loss of the rows that train."""

    loss: Tensor  # 0-d, differentiable
    selected: Tensor  # [B] bool: the rows that are meant to train and have a finite loss
    num_nonfinite: Tensor  # 0-d int64: rows whose loss is not finite


class _WithGradients(torch.autograd.Function):
    """A value whose gradients with respect to some tensors are known."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, count: int, *gradients_and_inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients_and_inputs[:count])
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        factor = upstream[:, None] if upstream.dim() else upstream
        return None, None, *(None for _ in gradients), *(gradient * factor for gradient in gradients)


def differentiable(value: Tensor, gradients: Sequence[Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """Return a value whose gradient with respect to each input is the given one; [B] of rows, or 0-d."""
    result: Tensor = _WithGradients.apply(value, len(gradients), *gradients, *inputs)
    return result


def value_with_slopes(value: Tensor, slopes: Sequence[Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """Return `value`, 0-d, whose gradient with respect to each input is the slope of its shape.

    It is the sum of the inputs times their slopes, overwritten: autograd's own operators take a sixth of the time of
    a Function in Python, and a method's step has nothing that would differentiate it twice.
    """
    parts = [(tensor * slope).sum() for tensor, slope in zip(inputs, slopes, strict=True)]
    whole = sum(parts[1:], parts[0])
    whole.detach().copy_(value)
    return whole


def rows_that_train(losses: Tensor, trains: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return which of the rows that are meant to train ([B] bool; None: all) have a finite loss, [B] bool.

    Further how many these are, at least 1, and how many rows have a loss that is not finite: both 0-d, int64.
    """
    finite = losses.abs() < math.inf  # false of NaN too, and half of what isfinite takes
    num_finite = finite.sum()
    if trains is None:
        return finite, num_finite.clamp(min=1), len(finite) - num_finite
    selected = finite & trains
    return selected, selected.sum().clamp(min=1), len(finite) - num_finite


def mean_loss(rows: Rows, logits: Sequence[Tensor], trains: Tensor | None = None) -> MeanLoss:
    """Return the mean over the rows that train, [B] bool (None: all), but for those whose loss is not finite."""
    selected, count, num_nonfinite = rows_that_train(rows.losses, trains)
    total = torch.where(selected, rows.losses, 0.0).sum()
    slopes = [torch.where(selected[:, None], gradient, 0.0) for gradient in rows.gradients]
    return MeanLoss(value_with_slopes(total, slopes, logits) / count, selected, num_nonfinite)


def log_probabilities(logits: Tensor) -> Tensor:
    """Return log softmax of [B, C], in float32 at least, without its gradient."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return logits.detach().t().log_softmax(0, dtype=dtype).t()  # of ten classes, rows take three times as long


def cross_entropy_rows(log_p: Tensor, labels: Tensor, p: Tensor | None = None) -> Rows:
    """Return −log p_y of int64 labels [B]."""
    column = labels[:, None]
    p = log_p.exp() if p is None else p
    gradient = p.scatter_add(1, column, torch.full_like(column, -1.0, dtype=p.dtype))
    return Rows(-log_p.gather(1, column)[:, 0], (gradient,))


def elr_rows(log_p: Tensor, p: Tensor, labels: Tensor, moving_mean: Tensor, strength: float) -> Rows:
    """Return CE + L log(1 − ⟨t, p⟩), with t `moving_mean`; see `elr_loss`."""
    losses, (gradient,) = cross_entropy_rows(log_p, labels, p)
    # 1 − ⟨t, p⟩ as ⟨1 − t, p⟩, of which nothing cancels; and t − ⟨t, p⟩ = ⟨1 − t, p⟩ − (1 − t).
    others = 1.0 - moving_mean
    rest = (others * p).sum(1, keepdim=True)
    bounded = rest.clamp(min=LEAST_REST)
    gradient.addcmul_(p, (rest - others) / bounded, value=-strength)
    return Rows(losses.add_(bounded[:, 0].log(), alpha=strength), (gradient,))


def dml_rows(log_p1: Tensor, log_p2: Tensor, labels: Tensor) -> Rows:
    """Return CE1 + KL(p2‖p1) + CE2 + KL(p1‖p2); see `dml_loss`."""
    p1, p2 = log_p1.exp(), log_p2.exp()
    (losses1, (gradient1,)), (losses2, (gradient2,)) = (
        cross_entropy_rows(log_p1, labels, p1),
        cross_entropy_rows(log_p2, labels, p2),
    )
    difference = p1 - p2
    ratio = torch.where(log_p1 == log_p2, 0.0, log_p1 - log_p2)  # a class that both have masked adds nothing
    return Rows(losses1 + losses2 + (difference * ratio).sum(1), (gradient1 + difference, gradient2 - difference))


def complementary_rows(log_p: Tensor, p: Tensor, others: Tensor) -> Rows:
    """Return −log(1 − p_c) of a class c that is not the row's, int64 [B] (Kim et al., ICCV 2019, equation 2)."""
    without = log_p.scatter(1, others[:, None], -torch.inf)
    losses = -without.logsumexp(1)
    return Rows(losses, (p - (without + losses[:, None]).exp(),))


def divergence_rows(p: Tensor, log_goal: Tensor, entropy_weight: float = 0.0) -> Rows:
    """Return KL(p‖g) + β H(p), for distributions g of which the logarithms are given, [B, C]."""
    parts = (torch.special.entr(p) * (entropy_weight - 1.0)).addcmul_(p, log_goal, value=-1.0)
    divergence = parts.sum(1, keepdim=True)
    return Rows(divergence[:, 0], (parts.addcmul(p, divergence, value=-1.0),))


def elr_loss(
    logits: Tensor, target: Tensor, moving_mean: Tensor, *, strength: float = 3.0, reduction: str = "mean"
) -> Tensor:
    """Return the loss of early-learning regularisation, CE + L log(1 − ⟨t, p⟩) (Liu et al., NeurIPS 2020, equation 6).

    The second term keeps predictions near their own moving mean t, which networks have learnt before they memorise
    wrong labels. The caller moves t, before the loss as in the authors' code: t ← β t + (1 − β) p, from t = 0. They
    bound p to [1e-4, 1 − 1e-4] in the mean.

    >>> import torch
    >>> import jocor_fast as jf
    >>> logits, target = torch.tensor([[2.0, 0.0, 0.0]], requires_grad=True), torch.tensor([1])
    >>> mean = 0.7 * torch.tensor([[0.9, 0.05, 0.05]]) + 0.3 * logits.detach().softmax(1)
    >>> jf.elr_loss(logits, target, mean).backward()
    >>> logits.grad[0, 0] < 0  # away from the label, towards the class that was predicted so far
    tensor(True)

    Args:
        logits: [B, C]; float16, bfloat16, float32 or float64, any strides.
        target: [B] labels in [0, C), any integer type, same device.
        moving_mean: t [B, C], floating, entries in [0, 1], the rows of these samples; same device. It gets no gradient.
        strength: L ≥ 0.
        reduction: "mean", or "none" for the loss of each row.

    Returns:
        0-d (0 for an empty batch), or [B] for reduction "none"; differentiable once in the logits; float32 (float64 for
        float64 logits). Where 1 − ⟨t, p⟩ is below 1e-12 it counts as that. A row whose loss is not finite keeps it,
        takes the mean along, and gets a zero gradient.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape, device or value; on the CPU also a label outside [0, C), whose loss is NaN on CUDA.
    """
    mean = check_reduction(reduction) == "mean"
    strength = not_negative("strength", strength)
    labels, valid = _labels(logits, target, "logits")
    check_moving_mean(moving_mean, logits)
    with torch.no_grad():
        log_p = log_probabilities(logits)
        rows = elr_rows(log_p, log_p.exp(), labels, moving_mean.to(log_p.dtype), strength)
    return _public(rows, (logits,), valid, mean)


def dml_loss(logits1: Tensor, logits2: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return the loss of deep mutual learning: CE1 + KL(p2‖p1) + CE2 + KL(p1‖p2) (Zhang et al., CVPR 2018, eq. 5).

    To each network the other's prediction is a constant: the gradient is that of CE1 + KL(p2‖p1) with respect to the
    first logits, and of CE2 + KL(p1‖p2) with respect to the second.

    >>> import torch
    >>> import jocor_fast as jf
    >>> logits1, logits2 = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    >>> round(jf.dml_loss(logits1, logits2, torch.tensor([0])).item(), 4)
    1.2375

    Args:
        logits1: [B, C] of the first network; float16, bfloat16, float32 or float64, any strides.
        logits2: [B, C] of the second; same dtype and device.
        target: [B] labels in [0, C), any integer type, same device.
        reduction: "mean", or "none" for the loss of each row.

    Returns:
        0-d (0 for an empty batch), or [B] for reduction "none"; differentiable once in both logits; float32 (float64
        for float64 logits). A row whose loss is not finite keeps it, takes the mean along, and gets a zero gradient.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape, device or value; on the CPU also a label outside [0, C), whose loss is NaN on CUDA.
    """
    mean = check_reduction(reduction) == "mean"
    check_logits(logits1, logits2)
    labels, valid = _labels(logits1, target, "logits1")
    with torch.no_grad():
        rows = dml_rows(log_probabilities(logits1), log_probabilities(logits2), labels)
    return _public(rows, (logits1, logits2), valid, mean)


def _labels(logits: Tensor, target: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The labels to index with, int64 [B], and which are in [0, C); on the CPU those that are not raise ValueError."""
    check_type(name, logits, FLOAT_TYPES)
    check_matrix(name, logits)
    check_target(name, logits, target)
    valid = check_labels(target, logits.shape[1], torch.ones_like(target, dtype=torch.bool), None)
    return torch.where(valid, target.long(), 0), valid


def _public(rows: Rows, logits: Sequence[Tensor], valid: Tensor, mean: bool) -> Tensor:
    """The rows' losses or their mean: a loss that is not finite stays, without a gradient."""
    losses = torch.where(valid, rows.losses, torch.nan)
    trains = losses.isfinite()[:, None]
    count = max(len(losses), 1) if mean else 1
    gradients = [torch.where(trains, gradient, 0.0) / count for gradient in rows.gradients]
    return differentiable(losses.sum() / count if mean else losses, gradients, logits)
