"""The losses and the selection in plain PyTorch, on any device: the oracle of the tests and the benches' baseline.

Same signatures and rules as the functions of `jocor_fast` with the same names. Read this to learn the rules; the
formulas are those of Wei et al., CVPR 2020, with p = softmax(z1), q = softmax(z2), labels y and the log ratio
d_j = log p_j - log q_j:

    l = (1 - λ) (CE(z1, y) + CE(z2, y)) + λ (KL(p‖q) + KL(q‖p))

Half-precision logits are computed in float32. The public functions run these where there are no compiled kernels for
the tensors' device. Three things differ from the kernels: with a forget rate, and an ignore_index or `disagreement`,
the host reads the number of eligible rows; under torch.compile a label outside [0, C) is treated on the CPU as on CUDA;
and the losses can be differentiated twice, where the logits are finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from jocor_fast.arguments import (
    at_least,
    check_batch_size,
    check_co_lambda,
    check_forget_rate,
    check_ignore_index,
    check_label_smoothing,
    check_positive_part,
    check_reduction,
    check_rounding,
    check_switch,
    not_negative,
)
from jocor_fast.errors import ArgumentValueError
from jocor_fast.outputs import CoresOutput, CoTeachingOutput, DecouplingOutput, JoCoROutput
from jocor_fast.tensor_arguments import (
    FLOAT_TYPES,
    SHARES_TOLERANCE,
    check_class_weights,
    check_keep_arguments,
    check_keep_arguments_or_tensors,
    check_linear_pair,
    check_logits,
    check_losses,
    check_matrix,
    check_moving_mean,
    check_num_keep,
    check_number_of_weights,
    check_soft_target,
    check_target,
    check_transition,
    check_type,
)

__all__ = [
    "cores_loss",
    "coteaching_loss",
    "decoupling_loss",
    "dml_loss",
    "elr_loss",
    "forward_corrected_loss",
    "gce_loss",
    "jocor_loss",
    "joint_loss",
    "linear_jocor_loss",
    "linear_joint_loss",
    "nce_rce_loss",
    "num_keep",
    "sce_loss",
    "select_small_loss",
]

ROBUST_KINDS = ("gce", "sce", "nce_rce", "cores")  # in the order of RobustKind in csrc/joint_loss_math.h
_LEAST_REST = 1e-12  # of 1 - t·p in `elr_loss`


def jocor_loss(
    logits1: Tensor,
    logits2: Tensor,
    target: Tensor,
    *,
    co_lambda: float = 0.9,
    forget_rate: float | None = None,
    num_keep: int | Tensor | None = None,
    ignore_index: int | None = None,
    class_weights: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> JoCoROutput:
    """Return the mean of the smallest joint losses (paper, equations 1 to 5); see `jocor_fast.jocor_loss`."""
    forget_rate, num_keep = check_keep_arguments(forget_rate, num_keep, logits1)
    per_sample, eligible = _joint_loss(logits1, logits2, target, co_lambda, ignore_index, None, label_smoothing)
    if forget_rate is not None:
        num_keep = _kept(len(eligible) if ignore_index is None else eligible.sum(), forget_rate, "ceil")
    assert num_keep is not None  # exactly one of the two is given
    losses = per_sample.detach()
    selected = _smallest(losses, num_keep, eligible)
    if class_weights is not None:  # which the ranking does not know
        per_sample, _ = _joint_loss(logits1, logits2, target, co_lambda, ignore_index, class_weights, label_smoothing)
    loss = _mean_over(selected, per_sample, _row_weights(target, class_weights, eligible))
    return JoCoROutput(loss, losses, selected, selected.sum(), (eligible & ~losses.isfinite()).sum())


def joint_loss(
    logits1: Tensor,
    logits2: Tensor,
    target: Tensor,
    *,
    co_lambda: float = 0.9,
    ignore_index: int | None = None,
    class_weights: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the joint loss of each row, [B] (paper, equation 1); see `jocor_fast.joint_loss`."""
    return _joint_loss(logits1, logits2, target, co_lambda, ignore_index, class_weights, label_smoothing)[0]


def linear_jocor_loss(
    hidden1: Tensor,
    weight1: Tensor,
    hidden2: Tensor,
    weight2: Tensor,
    target: Tensor,
    *,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    co_lambda: float = 0.9,
    forget_rate: float | None = None,
    num_keep: int | Tensor | None = None,
    ignore_index: int | None = None,
    chunk_rows: int | None = None,
) -> JoCoROutput:
    """Return `jocor_loss` of the whole logits; see `jocor_fast.linear_jocor_loss`. chunk_rows changes nothing."""
    logits1, logits2 = _linear(hidden1, weight1, bias1, hidden2, weight2, bias2, target, chunk_rows)
    return jocor_loss(
        *(logits1, logits2, target),
        co_lambda=co_lambda,
        forget_rate=forget_rate,
        num_keep=num_keep,
        ignore_index=ignore_index,
    )


def linear_joint_loss(
    hidden1: Tensor,
    weight1: Tensor,
    hidden2: Tensor,
    weight2: Tensor,
    target: Tensor,
    *,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    co_lambda: float = 0.9,
    ignore_index: int | None = None,
    chunk_rows: int | None = None,
) -> Tensor:
    """Return `joint_loss` of the whole logits; see `jocor_fast.linear_joint_loss`. chunk_rows changes nothing."""
    logits1, logits2 = _linear(hidden1, weight1, bias1, hidden2, weight2, bias2, target, chunk_rows)
    return joint_loss(logits1, logits2, target, co_lambda=co_lambda, ignore_index=ignore_index)


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
    class_weights: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> CoTeachingOutput:
    """Train each network on the small-loss rows of the other; see `jocor_fast.coteaching_loss`."""
    forget_rate, num_keep = check_keep_arguments_or_tensors(forget_rate, num_keep, logits1)
    check_switch("disagreement", disagreement)
    check_rounding(rounding)
    losses1, losses2, eligible = _cross_entropies(logits1, logits2, target, ignore_index, None, label_smoothing)
    if disagreement:
        differing = eligible & _predictions_differ(logits1, logits2)
        eligible = torch.where(differing.any(), differing, eligible)
    if forget_rate is not None:
        if not is_compiling() and (not isinstance(forget_rate, Tensor) or forget_rate.device.type == "cpu"):
            forget_rate = check_forget_rate(float(forget_rate))
        num_keep = _kept(eligible.sum(), forget_rate, rounding)
    assert num_keep is not None  # exactly one of the two is given
    finite = (losses1 + losses2).detach().isfinite()
    selected1, selected2 = (_smallest(losses.detach(), num_keep, eligible & finite) for losses in (losses1, losses2))
    weighted1, weighted2 = losses1, losses2
    if class_weights is not None:
        weighted1, weighted2, _ = _cross_entropies(
            logits1, logits2, target, ignore_index, class_weights, label_smoothing
        )
    weights = _row_weights(target, class_weights, eligible)
    return CoTeachingOutput(
        _mean_over(selected2, weighted1, weights) + _mean_over(selected1, weighted2, weights),
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
    out = decoupling_rows(logits1, logits2, target, ignore_index=ignore_index)
    return DecouplingOutput(out.loss, out.selected, out.num_selected)


def decoupling_rows(
    logits1: Tensor, logits2: Tensor, target: Tensor, *, ignore_index: int | None = None
) -> JoCoROutput:
    """Return `decoupling_loss` as a JoCoROutput; see `jocor_fast.losses.decoupling_rows`."""
    losses1, losses2, eligible = _cross_entropies(logits1, logits2, target, ignore_index)
    per_sample = (losses1 + losses2).detach()
    differing, finite = eligible & _predictions_differ(logits1, logits2), per_sample.isfinite()
    selected = differing & finite
    loss = _mean_over(selected, losses1) + _mean_over(selected, losses2)
    return JoCoROutput(loss, per_sample, selected, selected.sum(), (differing & ~finite).sum())


def forward_corrected_loss(logits: Tensor, target: Tensor, transition: Any, *, reduction: str = "mean") -> Tensor:
    """Return -log((p·T)[y]); see `jocor_fast.forward_corrected_loss`."""
    mean = check_reduction(reduction) == "mean"
    matrix = check_transition(transition, logits)
    return corrected_loss(logits, target, matrix.log().t(), mean=mean)[0]


def elr_loss(
    logits: Tensor, target: Tensor, moving_mean: Tensor, *, strength: float = 3.0, reduction: str = "mean"
) -> Tensor:
    """Return CE + L log(1 - t·p), of which autograd makes the gradient; see `jocor_fast.elr_loss`."""
    mean, strength = check_reduction(reduction) == "mean", not_negative("strength", strength)
    (z,), label, valid = _rows_of((logits,), target)
    check_moving_mean(moving_mean, logits)

    def losses(z: Tensor) -> Tensor:
        rest = ((1 - moving_mean.detach().to(z.dtype)) * z.softmax(1)).sum(1)
        return -z.log_softmax(1).gather(1, label)[:, 0] + strength * rest.clamp(min=_LEAST_REST).log()

    return _reduced(losses, (z,), valid, mean)


def dml_loss(logits1: Tensor, logits2: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return CE1 + KL(q‖p) + CE2 + KL(p‖q), the first of each a constant; see `jocor_fast.dml_loss`."""
    mean = check_reduction(reduction) == "mean"
    check_logits(logits1, logits2)
    (z1, z2), label, valid = _rows_of((logits1, logits2), target)

    def taught(z: Tensor, other: Tensor) -> Tensor:
        teacher, log_p = other.detach().log_softmax(1), z.log_softmax(1)
        known = teacher > -torch.inf
        ratio = torch.where(known, teacher, 0) - torch.where(known, log_p, 0)
        return -log_p.gather(1, label)[:, 0] + (teacher.exp() * ratio).sum(1)

    return _reduced(lambda z1, z2: taught(z1, z2) + taught(z2, z1), (z1, z2), valid, mean)


def corrected_loss(
    logits: Tensor, target: Tensor, log_transition_t: Tensor, *, mean: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, the losses of the rows, and how many are not finite; see `forward_correction.corrected_loss`."""
    check_type("logits", logits, FLOAT_TYPES)
    check_matrix("logits", logits)
    check_target("logits", logits, target)
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    valid = check_labels(target, z.shape[1], torch.ones_like(target, dtype=torch.bool), None)
    label = _column_of_labels(target, valid)[:, 0]
    log_columns = log_transition_t.to(z.dtype)[label]  # [B, C]: log T[i, y] of each row's label y
    with torch.no_grad():  # rows that get no gradient are computed from other logits, which keeps NaN out of it
        losses = -(z.log_softmax(1) + log_columns).logsumexp(1)
        trains = (valid & losses.isfinite())[:, None]
    corrected = torch.where(trains, z, 0).log_softmax(1) + torch.where(trains, log_columns, 0)
    largest = corrected.detach().amax(1, keepdim=True)  # taken off, or its size would cost the gradient its digits
    corrected_losses = -(largest[:, 0] + (corrected - largest).logsumexp(1))
    losses = torch.where(trains[:, 0], corrected_losses, torch.where(valid, losses, torch.nan))
    per_sample = losses.detach()
    loss = losses.sum() / max(len(losses), 1) if mean else losses
    return loss, per_sample, (~per_sample.isfinite()).sum()


def gce_loss(
    logits: Tensor, target: Tensor, *, q: float = 0.7, ignore_index: int | None = None, reduction: str = "mean"
) -> Tensor:
    """Return the generalised cross-entropy (1 − p_y^q) / q; see `jocor_fast.gce_loss`."""
    mean = check_reduction(reduction) == "mean"
    return _mean_or_rows(robust_rows(logits, target, "gce", check_positive_part("q", q), 0.0, ignore_index), mean)


def sce_loss(
    logits: Tensor,
    target: Tensor,
    *,
    alpha: float = 0.1,
    beta: float = 1.0,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the symmetric cross-entropy; see `jocor_fast.sce_loss`."""
    mean, weights = check_reduction(reduction) == "mean", (not_negative("alpha", alpha), not_negative("beta", beta))
    return _mean_or_rows(robust_rows(logits, target, "sce", *weights, ignore_index), mean)


def nce_rce_loss(
    logits: Tensor,
    target: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the normalised plus the reverse cross-entropy; see `jocor_fast.nce_rce_loss`."""
    mean, weights = check_reduction(reduction) == "mean", (not_negative("alpha", alpha), not_negative("beta", beta))
    return _mean_or_rows(robust_rows(logits, target, "nce_rce", *weights, ignore_index), mean)


def cores_loss(
    logits: Tensor, target: Tensor, *, beta: float = 2.0, sieve: bool = True, ignore_index: int | None = None
) -> CoresOutput:
    """Return the confidence-regularised loss over its sieve; see `jocor_fast.cores_loss`."""
    weight, sieve = not_negative("beta", beta), check_switch("sieve", sieve)
    return robust_mean(robust_rows(logits, target, "cores", 0.0, weight, ignore_index), sieve=sieve)


class RobustRows(NamedTuple):
    """The rows of a robust loss, [B]: its values, differentiable; which are not ignored; which are in the sieve."""

    losses: Tensor
    eligible: Tensor
    in_sieve: Tensor


def robust_rows(logits: Tensor, target: Tensor, kind: str, a: float, b: float, ignore_index: int | None) -> RobustRows:
    """Return the rows of a loss of `ROBUST_KINDS`; `a` is q or α, and `b` is β."""
    ignore_index = check_ignore_index(ignore_index)
    check_type("logits", logits, FLOAT_TYPES)
    check_matrix("logits", logits)
    check_target("logits", logits, target)
    # Contiguous: equal rows give equal bits wherever they lie.
    z = logits.to(torch.promote_types(logits.dtype, torch.float32)).contiguous()
    eligible = eligible_rows(target, ignore_index)
    valid = check_labels(target, z.shape[1], eligible, ignore_index)
    label = _column_of_labels(target, valid)
    with torch.no_grad():  # rows that get no gradient are computed from other logits, which keeps NaN out of it
        losses, in_sieve = _robust_loss(z, label, kind, a, b)
        trains = valid & losses.isfinite()
    own, _ = _robust_loss(torch.where(trains[:, None], z, 0), label, kind, a, b)
    others = torch.where(valid, losses, torch.where(eligible, torch.nan, 0.0))
    return RobustRows(torch.where(trains, own, others), eligible, in_sieve)


def robust_mean(rows: RobustRows, *, sieve: bool) -> CoresOutput:
    """Return the mean over the rows whose loss is finite, with `sieve` over those in it."""
    losses = rows.losses.detach()
    finite = losses.isfinite()
    candidates = rows.eligible & (rows.in_sieve | ~finite) if sieve else rows.eligible
    selected = candidates & finite
    loss = _mean_over(selected, rows.losses)
    return CoresOutput(loss, losses, selected, selected.sum(), (candidates & ~finite).sum())


def select_small_loss(
    losses: Tensor, num_keep: int | Tensor, *, eligible: Tensor | None = None, groups: Tensor | None = None
) -> Tensor:
    """Return the mask of the num_keep eligible rows with the smallest losses; see `jocor_fast.select_small_loss`."""
    check_losses(losses, eligible, groups)
    losses, num_keep = losses.detach(), check_num_keep(num_keep, losses)
    if groups is None:
        return _smallest(losses, num_keep, eligible)
    return _smallest_per_group(losses, int(num_keep), eligible, groups)


def num_keep(batch_size: int, forget_rate: float, *, rounding: str = "ceil") -> int:
    """Return how many of batch_size rows a forget rate keeps; see `jocor_fast.num_keep`."""
    return _num_keep(check_batch_size(batch_size), check_forget_rate(forget_rate), check_rounding(rounding))


def _linear(
    hidden1: Tensor,
    weight1: Tensor,
    bias1: Tensor | None,
    hidden2: Tensor,
    weight2: Tensor,
    bias2: Tensor | None,
    target: Tensor,
    chunk_rows: int | None,
) -> tuple[Tensor, Tensor]:
    """Return both logits [B, C], of arguments that are checked."""
    check_linear_pair(hidden1, weight1, bias1, hidden2, weight2, bias2)
    check_target("hidden1", hidden1, target)
    if chunk_rows is not None:
        at_least("chunk_rows", chunk_rows, 1)
    return torch.nn.functional.linear(hidden1, weight1, bias1), torch.nn.functional.linear(hidden2, weight2, bias2)


# --- the rules --------------------------------------------------------------------------------------------------------


def _num_keep(rows: int, forget_rate: float, rounding: str) -> int:
    """Return R·n, rounded, at least 1; the slack undoes the rounding of the rate: .3 of 10 rows keeps 7, not 8."""
    exact, slack = (1.0 - forget_rate) * rows, 1e-9 * rows
    keep = math.ceil(exact - slack) if rounding == "ceil" else math.floor(exact + slack)
    return min(max(keep, 1), rows)


def _kept(rows: int | Tensor, forget_rate: float | Tensor, rounding: str) -> int | Tensor:
    """Return `_num_keep` of numbers that may lie on a device: read by the host, except where torch.compile traces."""
    if not is_compiling() or (isinstance(rows, int) and not isinstance(forget_rate, Tensor)):
        return _num_keep(int(rows), float(forget_rate), rounding)
    count = torch.as_tensor(rows)
    return torch.minimum(kept_on_device(count, forget_rate, rounding), count)


def kept_on_device(rows: Tensor, forget_rate: float | Tensor, rounding: str) -> Tensor:
    """Return `num_keep` of a 0-d int64 tensor, as one, for which the host does not wait; 1 of no rows."""
    exact, slack = (1.0 - forget_rate) * rows.double(), 1e-9 * rows.double()
    keep = (exact - slack).ceil() if rounding == "ceil" else (exact + slack).floor()
    return keep.long().clamp(min=1)


def _robust_loss(z: Tensor, label: Tensor, kind: str, a: float, b: float) -> tuple[Tensor, Tensor]:
    """Return a loss of `ROBUST_KINDS` of each row, and whether n ≤ S / C.

    S is the sum over the classes that are not masked, of which there are C. A term without weight is not evaluated.
    """
    shifted = z - z.detach().amax(1, keepdim=True)
    log_sum = shifted.exp().sum(1).log()
    masked = shifted == -torch.inf
    classes = (~masked).sum(1)
    n = log_sum - shifted.gather(1, label)[:, 0]
    total = classes * log_sum - torch.where(masked, 0, shifted).sum(1)
    in_sieve = n * classes <= total  # without a division: equal logits are in it
    if kind == "gce":
        return -torch.expm1(-a * n) / a, in_sieve
    if kind == "cores":
        return n - b * (total / classes) if b else n, in_sieve
    loss = torch.zeros_like(n)
    if a and kind == "sce":
        loss = loss + a * n
    elif a:  # of one class n is all of S
        several = classes > 1
        loss = loss + a * torch.where(several, n / torch.where(several, total, 1), 1 + n)
    if b:
        loss = loss + b * 4 * math.log(10) * -torch.expm1(-n)
    return loss, in_sieve


def _mean_or_rows(rows: RobustRows, mean: bool) -> Tensor:
    return rows.losses.sum() / rows.eligible.sum().clamp(min=1) if mean else rows.losses


def _mean_over(selected: Tensor, losses: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean of the selected losses, 0 without any; large ones do not overflow, divided before the sum.

    Losses that are weighted already are divided by the sum of their weights [B].
    """
    total = selected.sum() if weights is None else weights[selected].sum()
    return torch.where(selected, losses / torch.where(total > 0, total, 1), 0).sum()


def _row_weights(target: Tensor, class_weights: Tensor | None, eligible: Tensor) -> Tensor | None:
    """Return what torch's cross_entropy divides by the sum of: the weights of labels, but 1 for each soft target."""
    if class_weights is None or target.is_floating_point():
        return None
    weights = class_weights.double()
    return weights[torch.where(eligible, target.long(), 0).clamp(0, len(weights) - 1)]


def _rows_of(networks: tuple[Tensor, ...], target: Tensor) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Return the logits in the type of the losses, the labels as a column, and which of them lie in [0, C)."""
    name = "logits" if len(networks) == 1 else "logits1"
    check_type(name, networks[0], FLOAT_TYPES)
    check_matrix(name, networks[0])
    check_target(name, networks[0], target)
    valid = check_labels(target, networks[0].shape[1], torch.ones_like(target, dtype=torch.bool), None)
    real = torch.promote_types(networks[0].dtype, torch.float32)
    return tuple(logits.to(real) for logits in networks), _column_of_labels(target, valid), valid


def _reduced(losses: Callable[..., Tensor], networks: tuple[Tensor, ...], valid: Tensor, mean: bool) -> Tensor:
    """Return the rows' losses or their mean; a row whose loss is not finite keeps it and gets no gradient."""
    found = torch.where(valid, losses(*(logits.detach() for logits in networks)), torch.nan)
    trains = found.isfinite()
    rows = torch.where(trains, losses(*(torch.where(trains[:, None], logits, 0) for logits in networks)), found)
    return rows.sum() / max(len(rows), 1) if mean else rows


def _predictions_differ(logits1: Tensor, logits2: Tensor) -> Tensor:
    """Return whether the largest logits lie in different classes, [B]; see `_prediction`."""
    return _prediction(logits1.detach()) != _prediction(logits2.detach())


def _prediction(logits: Tensor) -> Tensor:
    """Return the first class with the largest logit; NaN counts as the smallest, except in class 0, which then wins."""
    ordered = torch.where(logits.isnan(), -torch.inf, logits)
    first_is_nan = logits[:, :1].isnan().any(1)
    return torch.where(first_is_nan, 0, ordered.argmax(1))


def _cross_entropies(
    logits1: Tensor,
    logits2: Tensor,
    target: Tensor,
    ignore_index: int | None,
    class_weights: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return CE1 and CE2 [B], each half the joint loss of a network with itself, and which rows are eligible."""
    check_logits(logits1, logits2)
    masked = _masked(logits1, logits2) if label_smoothing else None
    (losses1, eligible), (losses2, _) = (
        _joint_loss(logits, logits, target, 0.0, ignore_index, class_weights, label_smoothing, masked)
        for logits in (logits1, logits2)
    )
    return losses1 / 2, losses2 / 2, eligible


def _smallest(losses: Tensor, num_keep: int | Tensor, eligible: Tensor | None) -> Tensor:
    """Return the mask of the first num_keep rows in the order of their losses, the lower row first among equals."""
    # Elsewhere the host does not wait for its value, and while torch.compile traces there is none.
    if isinstance(num_keep, Tensor) and num_keep.device.type == "cpu" and not is_compiling():
        num_keep = check_num_keep(int(num_keep), losses)
    candidates = losses.isfinite() if eligible is None else losses.isfinite() & eligible
    # Adding 0 turns -0 into +0: whether a sort takes them for equal differs between devices.
    order = torch.where(candidates, losses + 0.0, torch.inf).argsort(stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return candidates & (rank < num_keep)


def _smallest_per_group(losses: Tensor, num_keep: int, eligible: Tensor | None, groups: Tensor) -> Tensor:
    """Return the mask of num_keep rows of which each group has its share, by largest remainders."""
    candidates = losses.isfinite() if eligible is None else losses.isfinite() & eligible
    rows, numbers, names = candidates.nonzero().flatten().tolist(), losses.tolist(), groups.tolist()
    members: dict[int, list[int]] = {}
    for row in sorted(rows, key=lambda row: (numbers[row], row)):
        members.setdefault(names[row], []).append(row)
    keep = min(num_keep, len(rows))
    shares = {name: divmod(len(own) * keep, len(rows)) for name, own in members.items()}
    chosen = [row for name, own in members.items() for row in own[: shares[name][0]]]
    next_ones = [(-shares[name][1], own[shares[name][0]]) for name, own in members.items() if shares[name][1]]
    next_ones.sort(key=lambda pair: (pair[0], numbers[pair[1]], pair[1]))
    chosen += [row for _, row in next_ones[: keep - len(chosen)]]
    selected = torch.zeros_like(candidates)
    selected[chosen] = True
    return selected


def _masked(logits1: Tensor, logits2: Tensor) -> Tensor:
    """Return which classes either network has masked, [B, C]: they are not smoothed over."""
    return (logits1.detach() == -torch.inf) | (logits2.detach() == -torch.inf)


def _joint_loss(
    logits1: Tensor,
    logits2: Tensor,
    target: Tensor,
    co_lambda: float,
    ignore_index: int | None,
    class_weights: Tensor | None = None,
    label_smoothing: float = 0.0,
    masked: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return per-sample losses [B], differentiable, and which rows are eligible [B]."""
    co_lambda, ignore_index = check_co_lambda(co_lambda), check_ignore_index(ignore_index)
    label_smoothing = check_label_smoothing(label_smoothing)
    check_logits(logits1, logits2)
    if class_weights is not None:
        check_class_weights(class_weights)
        check_number_of_weights(class_weights, logits1)
    if label_smoothing and masked is None:
        masked = _masked(logits1, logits2)
    real = torch.promote_types(logits1.dtype, torch.float32)
    if isinstance(target, Tensor) and target.is_floating_point() and target.dim() == 2:
        return _soft_loss(logits1, logits2, target, co_lambda, ignore_index, class_weights, label_smoothing, masked)
    check_target("logits1", logits1, target)
    eligible = eligible_rows(target, ignore_index)
    valid = check_labels(target, logits1.shape[1], eligible, ignore_index)
    shares = None
    if class_weights is not None or label_smoothing:
        shares = torch.zeros(logits1.shape, dtype=real, device=logits1.device)
        shares.scatter_(1, _column_of_labels(target, valid), 1.0)
        shares = _weighted(_smoothed(shares, label_smoothing, masked), class_weights)
    other = logits2.view_as(logits2) if logits2 is logits1 else logits2  # torch.compile takes no argument twice
    losses: Tensor = _JointLoss.apply(logits1, other, target, valid, co_lambda, shares)
    # Where the host is not to wait for the device, an invalid label is a loss that is never selected.
    return torch.where(eligible & ~valid, torch.nan, losses), eligible


def _soft_loss(
    logits1: Tensor,
    logits2: Tensor,
    target: Tensor,
    co_lambda: float,
    ignore_index: int | None,
    class_weights: Tensor | None,
    label_smoothing: float,
    masked: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return `_joint_loss` of targets that are probabilities [B, C]."""
    if ignore_index is not None:
        raise ArgumentValueError("ignore_index", "must be left out where target holds probabilities")
    check_soft_target(target, logits1)
    shares = target.detach().to(torch.promote_types(logits1.dtype, torch.float32))
    sums = shares.sum(1, keepdim=True)
    valid = (shares >= 0).all(1) & ((sums[:, 0] - 1).abs() <= SHARES_TOLERANCE)
    if target.device.type == "cpu" and not valid.all():
        row = int((~valid).nonzero()[0])
        raise ArgumentValueError(
            "target", f"must hold rows of probabilities that sum to 1, got {target[row].tolist()} in row {row}"
        )
    shares = _weighted(_smoothed(shares / sums, label_smoothing, masked), class_weights)
    other = logits2.view_as(logits2) if logits2 is logits1 else logits2  # torch.compile takes no argument twice
    losses: Tensor = _JointLoss.apply(logits1, other, target, valid, co_lambda, shares)
    return torch.where(valid, losses, torch.nan), torch.ones_like(valid)


def _smoothed(shares: Tensor, label_smoothing: float, masked: Tensor | None) -> Tensor:
    """Return (1 - ε) t + ε/C; the part of a masked class stays with the class of the largest share."""
    if masked is None:
        return shares
    part = torch.full_like(shares, label_smoothing / shares.shape[1])
    kept = torch.where(masked, part, 0).sum(1, keepdim=True)
    spread = (1 - label_smoothing) * shares + torch.where(masked, 0, part)
    return spread.scatter_add(1, shares.argmax(1, keepdim=True), kept)


def _weighted(shares: Tensor, class_weights: Tensor | None) -> Tensor:
    return shares if class_weights is None else shares * class_weights.detach().to(shares.dtype)


class _JointLoss(torch.autograd.Function):
    """l of each valid row, 0 for the others, and its gradient in closed form.

    Autograd would differentiate every step of the formula separately and compute 0·inf where a probability is 0: NaN,
    which leaks even out of rows that are later multiplied by 0. Hence the closed form, written only to rows that have a
    gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits1: Tensor,
        logits2: Tensor,
        target: Tensor,
        valid: Tensor,
        co_lambda: float,
        shares: Tensor | None,
    ) -> Tensor:
        """Compute the losses; `shares` [B, C] are the targets, times class weights, where they are not the labels."""
        log_p, log_q, p, q = _log_probabilities_and_probabilities(logits1, logits2)
        losses = log_p.new_zeros(len(target))
        if co_lambda != 1:  # a term without weight is not evaluated: it may be infinite
            if shares is None:
                label = _column_of_labels(target, valid)
                supervised = (log_p.gather(1, label) + log_q.gather(1, label))[:, 0]
            else:
                supervised = torch.where(shares == 0, 0, shares * (log_p + log_q)).sum(1)
            losses = losses - (1 - co_lambda) * supervised
        if co_lambda != 0:
            # KL(p‖q) + KL(q‖p) as one sum of terms >= 0: nothing cancels where the networks nearly agree
            absent = (p == 0) & (q == 0)
            agreement = torch.where(absent, 0, (p - q) * (log_p - log_q)).sum(1)
            losses = losses + co_lambda * (agreement if shares is None else shares.sum(1) * agreement)
        losses = torch.where(valid, losses, 0)
        ctx.save_for_backward(logits1, logits2, target, valid, losses.isfinite(), shares)
        ctx.co_lambda = co_lambda
        return losses

    @staticmethod
    def backward(ctx: Any, grad_losses: Tensor) -> tuple[Tensor | None, ...]:
        logits1, logits2, target, valid, finite, shares = ctx.saved_tensors
        log_p, log_q, p, q = _log_probabilities_and_probabilities(logits1, logits2)
        trains = (valid & finite & (grad_losses != 0))[:, None]

        def gradient(p: Tensor, q: Tensor, log_ratio: Tensor) -> Tensor:
            if shares is None:
                label = _column_of_labels(target, valid)
                supervised, weight = p.scatter_add(1, label, -torch.ones_like(p[:, :1])), 1  # p_j - [j = y]
            else:
                weight = shares.sum(1, keepdim=True)
                supervised = weight * p - shares
            per_row = (1 - ctx.co_lambda) * supervised
            if ctx.co_lambda != 0:
                kl = torch.where(p == 0, 0, p * log_ratio).sum(1, keepdim=True)
                agreement = torch.where(p == 0, 0, p * (log_ratio - kl)) + p - q
                per_row = per_row + ctx.co_lambda * weight * agreement
            return torch.where(trains, per_row * grad_losses[:, None], 0).to(logits1.dtype)

        grad1 = gradient(p, q, log_p - log_q) if ctx.needs_input_grad[0] else None
        grad2 = gradient(q, p, log_q - log_p) if ctx.needs_input_grad[1] else None
        return grad1, grad2, None, None, None, None


def _column_of_labels(target: Tensor, valid: Tensor) -> Tensor:
    """Return [B, 1] to index classes with; rows without a valid label point at class 0 and are overwritten later."""
    return torch.where(valid, target.long(), 0)[:, None]


def _log_probabilities_and_probabilities(logits1: Tensor, logits2: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log p, log q, p, q in at least float32; contiguous: equal rows give equal bits wherever they lie."""
    z1, z2 = (z.to(torch.promote_types(z.dtype, torch.float32)).contiguous() for z in (logits1, logits2))
    return z1.log_softmax(1), z2.log_softmax(1), z1.softmax(1), z2.softmax(1)


# --- checks of values; arguments.py has those of types, shapes and plain numbers --------------------------------------


def eligible_rows(target: Tensor, ignore_index: int | None) -> Tensor:
    """Return which labels are not ignored, [B] bool."""
    labels = target.long()
    eligible = torch.ones_like(labels, dtype=torch.bool) if ignore_index is None else labels != ignore_index
    if target.dtype == torch.uint64:  # past int64 a label turns negative: it is invalid, and no ignore_index
        eligible = eligible | (labels < 0)
    return eligible


def check_labels(target: Tensor, classes: int, eligible: Tensor, ignore_index: int | None) -> Tensor:
    """Return which eligible rows have a label in [0, C); on the CPU raise ValueError for one that has not.

    Not while torch.compile traces, which cannot follow a branch on values.
    """
    labels = target.long()
    valid = eligible & (labels >= 0) & (labels < classes)
    if labels.device.type == "cpu" and not is_compiling() and not torch.equal(valid, eligible):
        row = int((eligible & ~valid).nonzero()[0])
        accepted = f"[0, {classes})" + ("" if ignore_index is None else " or ignore_index")
        raise ValueError(f"target must hold labels in {accepted}, got {target[row]} in row {row}")
    return valid
