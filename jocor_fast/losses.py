"""The public loss functions and modules."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from jocor_fast import _operators, arguments, composed_losses, tensor_arguments
from jocor_fast.composed_losses import ALL_ROWS, split, terms_of
from jocor_fast.outputs import CoTeachingOutput, DecouplingOutput, JoCoROutput

_jocor_loss = _operators.operator("jocor_loss")
_coteaching_loss = _operators.operator("coteaching_loss")
_joint_loss = _operators.operator("joint_loss")
_select_small_loss = _operators.operator("select_small_loss")


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
    """Return JoCoR's loss: the mean joint loss of the small-loss samples (paper, equations 1 to 5).

    Per sample l = (1 - λ)(CE1 + CE2) + λ(KL(p‖q) + KL(q‖p)); the k rows with the smallest finite l are averaged. Rows
    that are not selected get gradients that are exactly zero, also where their logits are infinite or NaN.

    >>> import torch
    >>> import jocor_fast as jf
    >>> logits1 = torch.tensor([[2.0, 0, -1], [0, 1, 0], [-1, 0, 3], [0.5, 0.5, 0.5]], requires_grad=True)
    >>> logits2 = torch.tensor([[1.0, 1, -1], [0, 2, 1], [0, -1, 2], [1, 0, 0]], requires_grad=True)
    >>> out = jf.jocor_loss(logits1, logits2, torch.tensor([0, 1, 0, 2]), co_lambda=0.9, forget_rate=0.5)
    >>> out.per_sample
    tensor([0.7495, 0.2056, 0.7983, 0.4835])
    >>> out.selected
    tensor([False,  True, False,  True])
    >>> round(out.loss.item(), 4)
    0.3446
    >>> out.loss.backward()
    >>> logits1.grad[0]
    tensor([0., 0., 0.])

    Args:
        logits1: [B, C] of the first network; float16, bfloat16, float32 or float64, any strides. Tokens or pixels are
            rows: `logits.flatten(0, 1)` of [B, T, C], `logits.movedim(1, -1).flatten(0, -2)` of [B, C, H, W].
        logits2: [B, C] of the second; same dtype and device.
        target: [B] labels in [0, C), any integer type, same device; or [B, C] probabilities, floating, whose rows sum
            to 1 within 0.01 (they are divided by their sums, and get no gradient).
        co_lambda: λ in [0, 1], the weight of the agreement between the networks.
        forget_rate: τ(t) in [0, 1), the share of the eligible rows to drop: k = `num_keep(rows, forget_rate)`. Exactly
            one of forget_rate and num_keep must be given.
        num_keep: k >= 1 itself, an int or a 0-d int64 tensor on the same device (which is read there). From the number
            of rows on it drops none: a k of full batches keeps all of a smaller last batch, where forget_rate scales.
        ignore_index: label of rows to ignore; not with probabilities.
        class_weights: [C], floating, w ≥ 0: the mean over the selected rows is Σ w_y l / Σ w_y, with probabilities or
            smoothing as in torch's cross_entropy; the agreement is weighted by the target's mean weight. Rows are
            ranked without the weights: frequent classes do not crowd out rare ones.
        label_smoothing: ε in [0, 1], the part of each target that is spread evenly over the classes; a class that
            either network masks (-inf) gets none, which its label keeps.

    Returns:
        JoCoROutput: loss (float32, float64 for float64 logits), per_sample, selected, num_selected, num_nonfinite.

    Raises:
        TypeError: a wrong type or dtype; both or neither of forget_rate and num_keep.
        ValueError: a wrong shape, device or value; on the CPU also a label outside [0, C). On CUDA, where a check would
            wait for the device, such a row has per_sample NaN, is not selected, and is counted in num_nonfinite.
        RuntimeError: differentiating twice.
    """
    forget_rate, num_keep = tensor_arguments.check_keep_arguments(forget_rate, num_keep, logits1)
    terms = terms_of(class_weights, label_smoothing, target)
    if terms is not None:
        result = composed_losses.jocor(
            logits1,
            logits2,
            target,
            terms=terms,
            co_lambda=arguments.check_co_lambda(co_lambda),
            forget_rate=forget_rate,
            num_keep=num_keep,
            ignore_index=arguments.check_ignore_index(ignore_index),
        )
        return JoCoROutput(*result)
    result = _jocor_loss(
        logits1,
        logits2,
        target,
        arguments.check_ignore_index(ignore_index),
        arguments.check_co_lambda(co_lambda),
        forget_rate,
        *split(num_keep),
        False,
    )
    return JoCoROutput(*result[:5])


class JoCoRLoss(nn.Module):
    """`jocor_loss` as a module.

    >>> import torch
    >>> import jocor_fast as jf
    >>> criterion = jf.JoCoRLoss(co_lambda=0.9)
    >>> criterion(torch.zeros(4, 10), torch.zeros(4, 10), torch.arange(4), num_keep=2).selected
    tensor([ True,  True, False, False])

    Args:
        co_lambda: λ in [0, 1], the weight of the agreement between the networks.
        ignore_index: label of rows to ignore.
        class_weights: [C], which moves with the module from device to device.
        label_smoothing: ε in [0, 1].
    """

    class_weights: Tensor | None

    def __init__(
        self,
        co_lambda: float = 0.9,
        ignore_index: int | None = None,
        class_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.co_lambda = arguments.check_co_lambda(co_lambda)
        self.ignore_index = arguments.check_ignore_index(ignore_index)
        self.register_buffer("class_weights", class_weights)
        self.label_smoothing = arguments.check_label_smoothing(label_smoothing)

    def forward(
        self,
        logits1: Tensor,
        logits2: Tensor,
        target: Tensor,
        *,
        forget_rate: float | None = None,
        num_keep: int | Tensor | None = None,
    ) -> JoCoROutput:
        """Return the loss of a batch; arguments, result and errors as in `jocor_loss`."""
        return jocor_loss(
            logits1,
            logits2,
            target,
            co_lambda=self.co_lambda,
            forget_rate=forget_rate,
            num_keep=num_keep,
            ignore_index=self.ignore_index,
            class_weights=self.class_weights,
            label_smoothing=self.label_smoothing,
        )

    def extra_repr(self) -> str:
        smoothing = f", label_smoothing={self.label_smoothing}" if self.label_smoothing else ""
        return f"co_lambda={self.co_lambda}, ignore_index={self.ignore_index}{smoothing}"


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
    """Return the joint loss of every sample (paper, equation 1), without a selection.

    >>> import torch
    >>> import jocor_fast as jf
    >>> jf.joint_loss(torch.zeros(2, 10), torch.zeros(2, 10), torch.tensor([0, 9]), co_lambda=0.9)
    tensor([0.4605, 0.4605])

    Args and errors as in `jocor_loss`.

    Returns:
        [B], differentiable in both logits; float32 (float64 for float64 logits), times the class weights, if any. 0 for
        ignored rows; rows whose loss is not finite keep it, and get zero gradients.
    """
    co_lambda, ignore_index = arguments.check_co_lambda(co_lambda), arguments.check_ignore_index(ignore_index)
    terms = terms_of(class_weights, label_smoothing, target)
    if terms is not None:
        return composed_losses.joint_rows(logits1, logits2, target, co_lambda, ignore_index, terms)
    per_sample: Tensor = _joint_loss(logits1, logits2, target, ignore_index, co_lambda)[0]
    return per_sample


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
    """Return Co-teaching's loss: each network's small-loss samples train the other (Han et al., NeurIPS 2018).

    Each network chooses the k rows with the smallest cross-entropy of its own; the loss is the mean CE1 over the choice
    of network 2 plus the mean CE2 over that of network 1. A row whose CE1 or CE2 is not finite is chosen by neither.
    With `disagreement` (Co-teaching+, Yu et al., ICML 2019) only rows with differing predictions are eligible, by
    arg-max, the lowest class on ties; where none differ, all rows are (the paper leaves that open).

    >>> import torch
    >>> import jocor_fast as jf
    >>> first = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> second = torch.tensor([[0.0, 2.0], [0.0, 1.0], [3.0, 0.0]])
    >>> out = jf.coteaching_loss(first, second, torch.tensor([0, 1, 0]), num_keep=1)
    >>> out.selected1, out.selected2
    (tensor([ True, False, False]), tensor([False, False,  True]))

    Args:
        logits1: [B, C] of the first network, as in `jocor_loss`.
        logits2: [B, C] of the second.
        target: [B] labels, or [B, C] probabilities.
        forget_rate: τ(t) in [0, 1), the share of the eligible rows to drop; a float, or a 0-d float64 tensor on the
            same device (which is read there: a captured graph follows it). Exactly one of forget_rate and num_keep must
            be given.
        num_keep: k >= 1 itself, an int or a 0-d int64 tensor likewise.
        disagreement: whether only rows with differing predictions are eligible.
        ignore_index: label of rows to ignore.
        rounding: "ceil" or "floor", how a forget rate becomes a number of rows, as in `num_keep`.
        class_weights: [C], as in `jocor_loss`, in both means.
        label_smoothing: ε in [0, 1] likewise.

    Returns:
        CoTeachingOutput: loss (float32, float64 for float64 logits), per_sample1, per_sample2, selected1, selected2,
        num_selected1, num_selected2, num_nonfinite.

    Raises:
        TypeError, ValueError, RuntimeError: as in `jocor_loss`.
    """
    forget_rate, num_keep = tensor_arguments.check_keep_arguments_or_tensors(forget_rate, num_keep, logits1)
    terms = terms_of(class_weights, label_smoothing, target)
    if terms is not None:
        result = composed_losses.coteaching(
            logits1,
            logits2,
            target,
            terms=terms,
            forget_rate=forget_rate,
            num_keep=num_keep,
            disagreement=arguments.check_switch("disagreement", disagreement),
            ignore_index=arguments.check_ignore_index(ignore_index),
            rounding=arguments.check_rounding(rounding),
        )
        return CoTeachingOutput(*result)
    result = _coteaching_loss(
        logits1,
        logits2,
        target,
        arguments.check_ignore_index(ignore_index),
        *split(forget_rate),
        *split(num_keep),
        arguments.check_rounding(rounding) == "floor",
        arguments.check_switch("disagreement", disagreement),
    )
    return CoTeachingOutput(*result[:8])


def decoupling_loss(
    logits1: Tensor, logits2: Tensor, target: Tensor, *, ignore_index: int | None = None
) -> DecouplingOutput:
    """Return Decoupling's loss: the cross-entropies of rows with differing predictions (Malach & Shalev-Shwartz, 2017).

    The loss is mean CE1 + mean CE2 over those rows; rows whose CE1 or CE2 is not finite are dropped. Predictions are
    the arg-max, the lowest class on ties. Where none differ the loss is 0 and so are the gradients.

    >>> import torch
    >>> import jocor_fast as jf
    >>> first, second = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 2.0], [0.0, 3.0]])
    >>> jf.decoupling_loss(first, second, torch.tensor([0, 1])).selected
    tensor([ True, False])

    Args and errors as in `jocor_loss`.

    Returns:
        DecouplingOutput: loss (float32, float64 for float64 logits), selected, num_selected.
    """
    out = decoupling_rows(logits1, logits2, target, ignore_index=ignore_index)
    return DecouplingOutput(out.loss, out.selected, out.num_selected)


def decoupling_rows(
    logits1: Tensor, logits2: Tensor, target: Tensor, *, ignore_index: int | None = None
) -> JoCoROutput:
    """Return `decoupling_loss` as a JoCoROutput: per_sample is CE1 + CE2, num_nonfinite of the differing rows.

    Both networks train on the same rows: the means of CE1 and CE2 add up to the mean of the joint loss at λ = 0.
    """
    ignored = arguments.check_ignore_index(ignore_index)
    return JoCoROutput(*_jocor_loss(logits1, logits2, target, ignored, 0.0, None, ALL_ROWS, None, True)[:5])


def select_small_loss(
    losses: Tensor, num_keep: int | Tensor, *, eligible: Tensor | None = None, groups: Tensor | None = None
) -> Tensor:
    """Return the mask of the num_keep eligible rows with the smallest finite losses (paper, equation 4).

    Ties go to the lower row, -0 equals +0: the choice of `numpy.argsort(losses, kind="stable")[:num_keep]`.

    With `groups`, such as the labels, each group keeps its own share: of n rows that can be chosen, a group of m has
    the share m·k/n. The whole part of it is kept, the group's smallest losses; the rows that are then missing to k are
    the next ones of the groups with the largest remainders, and of equal remainders the smaller loss. So there are k
    rows as without groups, and a group is less than one row away from its share.

    >>> import torch
    >>> import jocor_fast as jf
    >>> jf.select_small_loss(torch.tensor([2.0, 1.0, 1.0, float("nan"), 1.0]), 2)
    tensor([False,  True,  True, False, False])
    >>> jf.select_small_loss(torch.tensor([1.0, 2.0, 8.0, 9.0]), 2, groups=torch.tensor([0, 0, 1, 1]))
    tensor([ True, False,  True, False])

    Args:
        losses: [B], float16, bfloat16, float32 or float64.
        num_keep: k >= 1, an int or a 0-d int64 tensor on the same device.
        eligible: [B] bool; None: all rows.
        groups: [B] whole numbers, on the same device; None: one group.

    Returns:
        [B] bool, with fewer than num_keep rows where fewer are eligible and finite. It has no derivative.

    Raises:
        TypeError, ValueError, RuntimeError: as in `jocor_loss`.
    """
    keep = tensor_arguments.check_num_keep(num_keep, losses)
    if groups is not None:
        tensor_arguments.check_losses(losses, eligible, groups)
        tensor_arguments.check_known_value(keep, losses)
        return composed_losses.select_per_group(losses.detach(), keep, eligible, groups)
    selected: Tensor = _select_small_loss(losses, *split(keep), eligible)
    return selected


def num_keep(batch_size: int, forget_rate: float, *, rounding: str = "ceil") -> int:
    """Return how many of batch_size rows a forget rate keeps: R·B of the paper's algorithm 1, as a whole number.

    ceil((1 - τ) n - 1e-9 n), in float64, clamped to [1, n]; the slack undoes the binary rounding of τ: forgetting 0.3
    of 10 rows keeps seven.

    >>> import jocor_fast as jf
    >>> jf.num_keep(128, 0.2), jf.num_keep(128, 0.2, rounding="floor"), jf.num_keep(10, 0.3)
    (103, 102, 7)

    Args:
        batch_size: n >= 0; 0 keeps 0.
        forget_rate: τ in [0, 1).
        rounding: "ceil", the paper's "at least R·B", or "floor", the published code's.
    """
    rows: Any = arguments.check_batch_size(batch_size)
    rate = arguments.check_forget_rate(forget_rate)
    return _operators.num_keep(rows, rate, arguments.check_rounding(rounding) == "ceil")
