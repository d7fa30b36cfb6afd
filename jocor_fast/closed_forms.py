"""Losses by torch's operators whose gradients are closed forms: half of autograd's work, and finite where it is not.

A function `…_rows` returns the loss of each row and its gradient with respect to the logits of each network. With p =
softmax(z), the label y and its one-hot e, that of cross-entropy is p − e. A class whose logit is −inf has p = 0 and a
gradient of 0. A row whose loss is not finite has an arbitrary gradient, which nothing reads.
"""

from __future__ import annotations

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


@torch.no_grad()
def row_shares(losses: Tensor, trains: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return which rows have a share in the mean, the share of each, both [B], and how many losses are not finite.

    Those that train ([B] bool; None: all) share evenly, but for rows whose loss is not finite.
    """
    finite = losses.isfinite()
    selected = finite if trains is None else finite & trains
    return selected, selected / selected.sum().clamp(min=1).to(losses.dtype), len(finite) - finite.sum()


def mean_loss(rows: Rows, logits: Sequence[Tensor], trains: Tensor | None = None) -> MeanLoss:
    """Return the mean over the rows that train, [B] bool (None: all), but for those whose loss is not finite."""
    selected, share, num_nonfinite = row_shares(rows.losses, trains)
    with torch.no_grad():
        value = torch.where(selected, rows.losses, 0.0).dot(share)
        gradients = [torch.where(selected[:, None], gradient, 0.0) * share[:, None] for gradient in rows.gradients]
    return MeanLoss(differentiable(value, gradients, logits), selected, num_nonfinite)


def log_probabilities(logits: Tensor) -> Tensor:
    """Return log softmax of [B, C], in float32 at least, without its gradient."""
    return logits.detach().log_softmax(1, dtype=torch.promote_types(logits.dtype, torch.float32))


def cross_entropy_rows(log_p: Tensor, labels: Tensor, p: Tensor | None = None) -> Rows:
    """Return −log p_y of int64 labels [B]."""
    column = labels[:, None]
    gradient = log_p.exp() if p is None else p.clone()
    gradient.scatter_add_(1, column, gradient.new_full((), -1.0).expand_as(column))
    return Rows(-log_p.gather(1, column)[:, 0], (gradient,))


def elr_rows(log_p: Tensor, p: Tensor, labels: Tensor, moving_mean: Tensor, strength: float) -> Rows:
    """Return CE + L log(1 − ⟨t, p⟩), with t `moving_mean`; see `elr_loss`."""
    losses, (gradient,) = cross_entropy_rows(log_p, labels, p)
    # 1 − ⟨t, p⟩ as ⟨1 − t, p⟩, of which nothing cancels; and t − ⟨t, p⟩ = ⟨1 − t, p⟩ − (1 − t).
    others = 1.0 - moving_mean
    rest = (others * p).sum(1, keepdim=True)
    bounded = rest.clamp(min=LEAST_REST)
    gradient -= strength * p * ((rest - others) / bounded)
    return Rows(losses + strength * bounded[:, 0].log(), (gradient,))


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


def entropy_rows(p: Tensor) -> Rows:
    """Return H(p) = −Σ p log p."""
    parts = torch.special.entr(p)
    entropy = parts.sum(1)
    return Rows(entropy, (parts - p * entropy[:, None],))


def divergence_rows(p: Tensor, log_goal: Tensor) -> Rows:
    """Return KL(p‖g) to distributions of which the logarithms are given, [B, C]."""
    parts = -torch.special.entr(p) - p * log_goal
    divergence = parts.sum(1)
    return Rows(divergence, (parts - p * divergence[:, None],))


def soft_cross_entropy_rows(log_p: Tensor, p: Tensor, goal: Tensor) -> Rows:
    """Return −Σ g log p of soft labels g, [B, C]."""
    return Rows(-torch.where(goal > 0, goal * log_p, 0.0).sum(1), (p - goal,))


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
