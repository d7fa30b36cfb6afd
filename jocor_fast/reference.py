"""The losses and the selection in plain PyTorch, on any device: the oracle of the tests and the benches' baseline.

Same signatures and rules as the functions of `jocor_fast` with the same names. Read this to learn the rules; the
formulas are those of Wei et al., CVPR 2020, with p = softmax(z1), q = softmax(z2), labels y and the log ratio
d_j = log p_j - log q_j:

    l = (1 - λ) (CE(z1, y) + CE(z2, y)) + λ (KL(p‖q) + KL(q‖p))

Half-precision logits are computed in float32. On a CUDA device one thing differs: with a forget rate and an
ignore_index the host reads the number of eligible rows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from jocor_fast.arguments import (
    check_batch_size,
    check_co_lambda,
    check_forget_rate,
    check_ignore_index,
    check_keep_arguments,
    check_keep_arguments_or_tensors,
    check_num_keep,
    check_rounding,
    check_switch,
    check_tensor,
    dtype_name,
)
from jocor_fast.forward_correction import check_reduction, check_transition
from jocor_fast.losses import CoTeachingOutput, DecouplingOutput, JoCoROutput

__all__ = [
    "coteaching_loss",
    "decoupling_loss",
    "forward_corrected_loss",
    "jocor_loss",
    "joint_loss",
    "num_keep",
    "select_small_loss",
]

_FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGER_TYPES = (
    torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64,
)  # fmt: skip


def jocor_loss(
    logits1: Tensor,
    logits2: Tensor,
    target: Tensor,
    *,
    co_lambda: float = 0.9,
    forget_rate: float | None = None,
    num_keep: int | Tensor | None = None,
    ignore_index: int | None = None,
) -> JoCoROutput:
    """Return the mean of the smallest joint losses (paper, equations 1 to 5); see `jocor_fast.jocor_loss`."""
    forget_rate, num_keep = check_keep_arguments(forget_rate, num_keep, logits1)
    per_sample, eligible = _joint_loss(logits1, logits2, target, co_lambda, ignore_index)
    if forget_rate is not None:
        rows = len(eligible) if ignore_index is None else int(eligible.sum())
        num_keep = _num_keep(rows, forget_rate, "ceil")
    assert num_keep is not None  # exactly one of the two is given
    losses = per_sample.detach()
    selected = _smallest(losses, num_keep, eligible)
    loss = _mean_over(selected, per_sample)
    return JoCoROutput(loss, losses, selected, selected.sum(), (eligible & ~losses.isfinite()).sum())


def joint_loss(
    logits1: Tensor, logits2: Tensor, target: Tensor, *, co_lambda: float = 0.9, ignore_index: int | None = None
) -> Tensor:
    """Return the joint loss of each row, [B] (paper, equation 1); see `jocor_fast.joint_loss`."""
    return _joint_loss(logits1, logits2, target, co_lambda, ignore_index)[0]


def coteaching_loss(
    logits1: Tensor,
    logits2: Tensor,
    target: Tensor,
    *,
    forget_rate: float | Tensor | None = None,
    num_keep: int | Tensor | None = None,
    disagreement: bool = False,
    ignore_index: int | None = None,
    rounding: str = "ceil",
) -> CoTeachingOutput:
    """Train each network on the small-loss rows of the other; see `jocor_fast.coteaching_loss`."""
    forget_rate, num_keep = check_keep_arguments_or_tensors(forget_rate, num_keep, logits1)
    check_switch("disagreement", disagreement)
    check_rounding(rounding)
    losses1, losses2, eligible = _cross_entropies(logits1, logits2, target, ignore_index)
    if disagreement:
        differing = eligible & _predictions_differ(logits1, logits2)
        eligible = torch.where(differing.any(), differing, eligible)
    if forget_rate is not None:
        if not isinstance(forget_rate, Tensor) or forget_rate.device.type == "cpu":
            forget_rate = check_forget_rate(float(forget_rate))
        num_keep = _num_keep(int(eligible.sum()), float(forget_rate), rounding)
    assert num_keep is not None  # exactly one of the two is given
    finite = (losses1 + losses2).detach().isfinite()
    selected1, selected2 = (_smallest(losses.detach(), num_keep, eligible & finite) for losses in (losses1, losses2))
    return CoTeachingOutput(
        _mean_over(selected2, losses1) + _mean_over(selected1, losses2),
        losses1.detach(),
        losses2.detach(),
        selected1,
        selected2,
        selected1.sum(),
        selected2.sum(),
        (eligible & ~finite).sum(),
    )


def decoupling_loss(
    logits1: Tensor, logits2: Tensor, target: Tensor, *, ignore_index: int | None = None
) -> DecouplingOutput:
    """Return the cross-entropies of rows with differing predictions; see `jocor_fast.decoupling_loss`."""
    losses1, losses2, eligible = _cross_entropies(logits1, logits2, target, ignore_index)
    finite = (losses1 + losses2).detach().isfinite()
    selected = eligible & finite & _predictions_differ(logits1, logits2)
    return DecouplingOutput(_mean_over(selected, losses1) + _mean_over(selected, losses2), selected, selected.sum())


def forward_corrected_loss(logits: Tensor, target: Tensor, transition: Any, *, reduction: str = "mean") -> Tensor:
    """Return -log((p·T)[y]); see `jocor_fast.forward_corrected_loss`."""
    check_reduction(reduction)
    matrix = check_transition(transition, logits)
    _check_type("logits", logits, _FLOAT_TYPES)
    _check_matrix("logits", logits)
    _check_target(target, "logits", logits)
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    valid = _check_labels(target, z, torch.ones_like(target, dtype=torch.bool), None)
    label = _column_of_labels(target, valid)[:, 0]
    log_columns = matrix.double().log().to(z.dtype).t()[label]  # [B, C]: log T[i, y] of each row's label y
    with torch.no_grad():  # rows that get no gradient are computed from other logits, which keeps NaN out of it
        losses = -(z.log_softmax(1) + log_columns).logsumexp(1)
        trains = (valid & losses.isfinite())[:, None]
    corrected = torch.where(trains, z, 0).log_softmax(1) + torch.where(trains, log_columns, 0)
    largest = corrected.detach().amax(1, keepdim=True)  # taken off, or its size would cost the gradient its digits
    corrected_losses = -(largest[:, 0] + (corrected - largest).logsumexp(1))
    losses = torch.where(trains[:, 0], corrected_losses, torch.where(valid, losses, torch.nan))
    return losses if reduction == "none" else losses.sum() / max(len(losses), 1)


def select_small_loss(losses: Tensor, num_keep: int | Tensor, *, eligible: Tensor | None = None) -> Tensor:
    """Return the mask of the num_keep eligible rows with the smallest losses; see `jocor_fast.select_small_loss`."""
    _check_losses(losses, eligible)
    return _smallest(losses.detach(), check_num_keep(num_keep, losses), eligible)


def num_keep(batch_size: int, forget_rate: float, *, rounding: str = "ceil") -> int:
    """Return how many of batch_size rows a forget rate keeps; see `jocor_fast.num_keep`."""
    return _num_keep(check_batch_size(batch_size), check_forget_rate(forget_rate), check_rounding(rounding))


# --- the rules --------------------------------------------------------------------------------------------------------


def _num_keep(rows: int, forget_rate: float, rounding: str) -> int:
    """Return R·n, rounded, at least 1; the slack undoes the rounding of the rate: .3 of 10 rows keeps 7, not 8."""
    exact, slack = (1.0 - forget_rate) * rows, 1e-9 * rows
    keep = math.ceil(exact - slack) if rounding == "ceil" else math.floor(exact + slack)
    return min(max(keep, 1), rows)


def _mean_over(selected: Tensor, losses: Tensor) -> Tensor:
    """Return the mean of the selected losses, 0 without any; large ones do not overflow, divided before the sum."""
    return torch.where(selected, losses / selected.sum().clamp(min=1), 0).sum()


def _predictions_differ(logits1: Tensor, logits2: Tensor) -> Tensor:
    """Return whether the largest logits lie in different classes, [B]; see `_prediction`."""
    return _prediction(logits1.detach()) != _prediction(logits2.detach())


def _prediction(logits: Tensor) -> Tensor:
    """Return the first class with the largest logit; NaN counts as the smallest, except in class 0, which then wins."""
    ordered = torch.where(logits.isnan(), -torch.inf, logits)
    first_is_nan = logits[:, :1].isnan().any(1)
    return torch.where(first_is_nan, 0, ordered.argmax(1))


def _cross_entropies(
    logits1: Tensor, logits2: Tensor, target: Tensor, ignore_index: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return CE1 and CE2 [B], each half the joint loss of a network with itself, and which rows are eligible."""
    _check_logits(logits1, logits2)
    losses1, eligible = _joint_loss(logits1, logits1, target, 0.0, ignore_index)
    losses2, _ = _joint_loss(logits2, logits2, target, 0.0, ignore_index)
    return losses1 / 2, losses2 / 2, eligible


def _smallest(losses: Tensor, num_keep: int | Tensor, eligible: Tensor | None) -> Tensor:
    """Return the mask of the first num_keep rows in the order of their losses, the lower row first among equals."""
    if isinstance(num_keep, Tensor) and num_keep.device.type == "cpu":  # elsewhere the host does not wait for its value
        num_keep = check_num_keep(int(num_keep), losses)
    candidates = losses.isfinite() if eligible is None else losses.isfinite() & eligible
    # Adding 0 turns -0 into +0: whether a sort takes them for equal differs between devices.
    order = torch.where(candidates, losses + 0.0, torch.inf).argsort(stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return candidates & (rank < num_keep)


def _joint_loss(
    logits1: Tensor, logits2: Tensor, target: Tensor, co_lambda: float, ignore_index: int | None
) -> tuple[Tensor, Tensor]:
    """Return per-sample losses [B], differentiable, and which rows are eligible [B]."""
    co_lambda, ignore_index = check_co_lambda(co_lambda), check_ignore_index(ignore_index)
    _check_logits(logits1, logits2)
    _check_target(target, "logits1", logits1)
    labels = target.long()
    eligible = torch.ones_like(labels, dtype=torch.bool) if ignore_index is None else labels != ignore_index
    if target.dtype == torch.uint64:  # past int64 a label turns negative: it is invalid, and no ignore_index
        eligible = eligible | (labels < 0)
    valid = _check_labels(target, logits1, eligible, ignore_index)
    losses: Tensor = _JointLoss.apply(logits1, logits2, target, valid, co_lambda)
    # Where the host is not to wait for the device, an invalid label is a loss that is never selected.
    return torch.where(eligible & ~valid, torch.nan, losses), eligible


class _JointLoss(torch.autograd.Function):
    """l of each valid row, 0 for the others, and its gradient in closed form.

    Autograd would differentiate every step of the formula separately and compute 0·inf where a probability is 0: NaN,
    which leaks even out of rows that are later multiplied by 0. Hence the closed form, written only to rows that have a
    gradient.
    """

    @staticmethod
    def forward(ctx: Any, logits1: Tensor, logits2: Tensor, target: Tensor, valid: Tensor, co_lambda: float) -> Tensor:
        log_p, log_q, p, q = _log_probabilities_and_probabilities(logits1, logits2)
        losses = log_p.new_zeros(len(target))
        if co_lambda != 1:  # a term without weight is not evaluated: it may be infinite
            label = _column_of_labels(target, valid)
            losses = losses - (1 - co_lambda) * (log_p.gather(1, label) + log_q.gather(1, label))[:, 0]
        if co_lambda != 0:
            # KL(p‖q) + KL(q‖p) as one sum of terms >= 0: nothing cancels where the networks nearly agree
            absent = (p == 0) & (q == 0)
            losses = losses + co_lambda * torch.where(absent, 0, (p - q) * (log_p - log_q)).sum(1)
        losses = torch.where(valid, losses, 0)
        ctx.save_for_backward(logits1, logits2, target, valid, losses.isfinite())
        ctx.co_lambda = co_lambda
        return losses

    @staticmethod
    def backward(ctx: Any, grad_losses: Tensor) -> tuple[Tensor | None, ...]:
        logits1, logits2, target, valid, finite = ctx.saved_tensors
        log_p, log_q, p, q = _log_probabilities_and_probabilities(logits1, logits2)
        label = _column_of_labels(target, valid)
        trains = (valid & finite & (grad_losses != 0))[:, None]

        def gradient(p: Tensor, q: Tensor, log_ratio: Tensor) -> Tensor:
            supervised = p.scatter_add(1, label, -torch.ones_like(p[:, :1]))  # p_j - [j = y]
            per_row = (1 - ctx.co_lambda) * supervised
            if ctx.co_lambda != 0:
                kl = torch.where(p == 0, 0, p * log_ratio).sum(1, keepdim=True)
                agreement = torch.where(p == 0, 0, p * (log_ratio - kl)) + p - q
                per_row = per_row + ctx.co_lambda * agreement
            return torch.where(trains, per_row * grad_losses[:, None], 0).to(logits1.dtype)

        grad1 = gradient(p, q, log_p - log_q) if ctx.needs_input_grad[0] else None
        grad2 = gradient(q, p, log_q - log_p) if ctx.needs_input_grad[1] else None
        return grad1, grad2, None, None, None


def _column_of_labels(target: Tensor, valid: Tensor) -> Tensor:
    """Return [B, 1] to index classes with; rows without a valid label point at class 0 and are overwritten later."""
    return torch.where(valid, target.long(), 0)[:, None]


def _log_probabilities_and_probabilities(logits1: Tensor, logits2: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log p, log q, p, q in at least float32; contiguous: equal rows give equal bits wherever they lie."""
    z1, z2 = (z.to(torch.promote_types(z.dtype, torch.float32)).contiguous() for z in (logits1, logits2))
    return z1.log_softmax(1), z2.log_softmax(1), z1.softmax(1), z2.softmax(1)


# --- checks of tensors, with the messages of csrc/arguments.h; plain numbers are checked in arguments.py -------------


def _check_logits(logits1: Tensor, logits2: Tensor) -> None:
    _check_type("logits1", logits1, _FLOAT_TYPES)
    _check_type("logits2", logits2, _FLOAT_TYPES)
    if logits1.dtype != logits2.dtype:
        raise TypeError(f"logits2 must be of type {dtype_name(logits1)} like logits1, got {dtype_name(logits2)}")
    _check_matrix("logits1", logits1)
    if logits1.shape != logits2.shape:
        raise ValueError(f"logits2 must have shape {list(logits1.shape)} like logits1, got {list(logits2.shape)}")
    _check_device("logits2", logits2, "logits1", logits1)


def _check_matrix(name: str, logits: Tensor) -> None:
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"{name} must have shape [batch, classes] with at least one class, got {list(logits.shape)}")


def _check_target(target: Tensor, name: str, logits: Tensor) -> None:
    check_tensor("target", target)
    if target.dtype not in _INTEGER_TYPES:
        raise TypeError(f"target must be of an integer type, got {dtype_name(target)}")
    if target.shape != logits.shape[:1]:
        raise ValueError(f"target must have shape [{len(logits)}] like the rows of {name}, got {list(target.shape)}")
    _check_device("target", target, name, logits)


def _check_labels(target: Tensor, logits: Tensor, eligible: Tensor, ignore_index: int | None) -> Tensor:
    """Return which eligible rows have a label in [0, C); on the CPU raise ValueError for one that has not."""
    labels, classes = target.long(), logits.shape[1]
    valid = eligible & (labels >= 0) & (labels < classes)
    if labels.device.type == "cpu" and not torch.equal(valid, eligible):
        row = int((eligible & ~valid).nonzero()[0])
        accepted = f"[0, {classes})" + ("" if ignore_index is None else " or ignore_index")
        raise ValueError(f"target must hold labels in {accepted}, got {target[row]} in row {row}")
    return valid


def _check_losses(losses: Tensor, eligible: Tensor | None) -> None:
    _check_type("losses", losses, _FLOAT_TYPES)
    if losses.dim() != 1:
        raise ValueError(f"losses must have shape [batch], got {list(losses.shape)}")
    if eligible is None:
        return
    _check_type("eligible", eligible, (torch.bool,))
    if eligible.shape != losses.shape:
        raise ValueError(f"eligible must have shape {list(losses.shape)} like losses, got {list(eligible.shape)}")
    _check_device("eligible", eligible, "losses", losses)


def _check_type(name: str, tensor: Tensor, accepted: tuple[torch.dtype, ...]) -> None:
    check_tensor(name, tensor)
    if tensor.dtype not in accepted:
        *others, last = (str(dtype).removeprefix("torch.") for dtype in accepted)
        names = f"{', '.join(others)} or {last}" if others else last
        raise TypeError(f"{name} must be of type {names}, got {dtype_name(tensor)}")


def _check_device(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    if tensor.device != other.device:
        raise ValueError(f"{name} must be on {other.device} like {other_name}, got {tensor.device}")
