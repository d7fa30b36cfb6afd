"""Losses of one network that resist wrong labels: GCE, SCE, NCE+RCE and CORES².

With p = softmax(z), the label y, n = −log p_y, C classes and S = −Σ_c log p_c. R = 4 log 10 · (1 − p_y) is the reverse
cross-entropy, −Σ_c p_c log e_c of the label's one-hot e, with log 0 read as log 10⁻⁴, as in the code of both papers.

A class that is masked (logit −inf) is none of the C classes, and S is a sum over the others: the row's loss and
gradient are those of its logits without the column, which itself gets the gradient 0.
"""

from __future__ import annotations

from torch import Tensor

from jocor_fast._operators import operator
from jocor_fast.arguments import check_ignore_index, check_positive_part, check_reduction, check_switch, not_negative
from jocor_fast.outputs import CoresOutput
from jocor_fast.reference import ROBUST_KINDS, eligible_rows

_loss = operator("robust_loss")


def gce_loss(
    logits: Tensor, target: Tensor, *, q: float = 0.7, ignore_index: int | None = None, reduction: str = "mean"
) -> Tensor:
    """Return the generalised cross-entropy (1 − p_y^q) / q (Zhang and Sabuncu, NeurIPS 2018, equation 6).

    It lies between cross-entropy (q → 0) and 1 − p_y (q = 1), and the gradient is p_y^q times that of cross-entropy: a
    label that the network contradicts counts less. It is finite also where the label's class is masked.

    >>> import torch
    >>> import jocor_fast as jf
    >>> logits = torch.tensor([[2.0, 0, -1], [2.0, 0, -1]])
    >>> jf.gce_loss(logits, torch.tensor([0, 2]), reduction="none")
    tensor([0.1601, 1.2732])

    Args:
        logits: [B, C]; float16, bfloat16, float32 or float64, any strides.
        target: [B] labels in [0, C), any integer type, same device.
        q: in (0, 1].
        ignore_index: label of rows to ignore.
        reduction: "mean", over the rows that are not ignored, or "none" for the loss of each row.

    Returns:
        0-d (0 where there are no rows), or [B] for reduction "none", with 0 for ignored rows; differentiable in the
        logits; float32 (float64 for float64 logits). A row whose loss is not finite keeps it, takes the mean along, and
        gets a zero gradient.

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong shape, device or value; on the CPU also a label outside [0, C). On CUDA, where a check would
            wait for the device, such a label's loss is NaN, and its gradient 0.
        RuntimeError: differentiating twice.
    """
    return _reduced(logits, target, "gce", check_positive_part("q", q), 0.0, ignore_index, reduction)


def sce_loss(
    logits: Tensor,
    target: Tensor,
    *,
    alpha: float = 0.1,
    beta: float = 1.0,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the symmetric cross-entropy α n + β R (Wang et al., ICCV 2019, equation 7).

    The paper's α and β: 0.01 and 1 for MNIST, 0.1 and 1 for CIFAR-10, 6 and 0.1 for CIFAR-100.

    >>> import torch
    >>> import jocor_fast as jf
    >>> jf.sce_loss(torch.zeros(1, 10), torch.tensor([3]))  # 0.1 · log 10 + 4 log 10 · 0.9
    tensor(8.5196)

    Args:
        logits: [B, C], as in `gce_loss`.
        target: [B] labels.
        alpha: α ≥ 0, the weight of the cross-entropy. A term of weight 0 is left out, also where it is infinite.
        beta: β ≥ 0, the weight of the reverse cross-entropy.
        ignore_index: label of rows to ignore.
        reduction: "mean" or "none".

    Returns and errors as in `gce_loss`.
    """
    weights = not_negative("alpha", alpha), not_negative("beta", beta)
    return _reduced(logits, target, "sce", *weights, ignore_index, reduction)


def nce_rce_loss(
    logits: Tensor,
    target: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return α n / S + β R: normalised plus reverse cross-entropy (Ma et al., ICML 2020, equations 9 and 12).

    The paper's α and β: 1 and 10 for MNIST, 1 and 1 for CIFAR-10. Of a row with one class n / S is 1.

    >>> import torch
    >>> import jocor_fast as jf
    >>> jf.nce_rce_loss(torch.zeros(1, 10), torch.tensor([3]), beta=0.0)
    tensor(0.1000)

    Args:
        logits: [B, C], as in `gce_loss`.
        target: [B] labels.
        alpha: α ≥ 0, the weight of the normalised cross-entropy, which lies in [0, 1].
        beta: β ≥ 0, the weight of the reverse cross-entropy.
        ignore_index: label of rows to ignore.
        reduction: "mean" or "none".

    Returns and errors as in `gce_loss`.
    """
    weights = not_negative("alpha", alpha), not_negative("beta", beta)
    return _reduced(logits, target, "nce_rce", *weights, ignore_index, reduction)


def cores_loss(
    logits: Tensor, target: Tensor, *, beta: float = 2.0, sieve: bool = True, ignore_index: int | None = None
) -> CoresOutput:
    """Return CORES²'s loss n − β S / C, averaged over its sieve (Cheng et al., ICLR 2021, equations 3 and 4).

    S / C is the mean over all classes of the cross-entropy that they would have as the label, so a confident prediction
    is rewarded whatever the label is, and the loss may be negative. The sieve keeps the rows with n ≤ S / C: there is
    no forget rate. (The authors' code adds 10⁻⁸ to each probability, which bounds the reward; the equation does not.)

    >>> import torch
    >>> import jocor_fast as jf
    >>> logits = torch.tensor([[2.0, 0, -1], [2.0, 0, -1]])
    >>> out = jf.cores_loss(logits, torch.tensor([0, 2]))
    >>> out.per_sample
    tensor([-3.5032, -0.5032])
    >>> out.selected
    tensor([ True, False])

    Args:
        logits: [B, C], as in `gce_loss`.
        target: [B] labels.
        beta: β ≥ 0, the weight of the reward.
        sieve: whether to keep only the rows with n ≤ S / C; else every row with a finite loss is selected.
        ignore_index: label of rows to ignore.

    Returns:
        CoresOutput: loss (float32, float64 for float64 logits), per_sample, selected, num_selected, num_nonfinite. Rows
        that are not selected get gradients that are exactly zero.

    Raises:
        TypeError, ValueError, RuntimeError: as in `gce_loss`.
    """
    weight, sieve = not_negative("beta", beta), check_switch("sieve", sieve)
    return selected_mean(logits, target, "cores", 0.0, weight, sieve=sieve, ignore_index=ignore_index)


def selected_mean(
    logits: Tensor,
    target: Tensor,
    kind: str,
    a: float,
    b: float,
    *,
    sieve: bool = False,
    ignore_index: int | None = None,
) -> CoresOutput:
    """Return the mean of a loss of `ROBUST_KINDS` over the rows where it is finite, with `sieve` of those in it.

    Args:
        logits: [B, C].
        target: [B] labels.
        kind: the loss.
        a: q or α; not checked.
        b: β; not checked.
        sieve: as in `cores_loss`.
        ignore_index: label of rows to ignore.
    """
    ignored = check_ignore_index(ignore_index)
    return CoresOutput(*_loss(logits, target, ignored, ROBUST_KINDS.index(kind), a, b, sieve, True)[:5])


def loss_of_rows(
    logits: Tensor, target: Tensor, kind: str, a: float, b: float, ignore_index: int | None = None
) -> Tensor:
    """Return a loss of `ROBUST_KINDS` of each row, [B], differentiable; arguments as in `selected_mean`."""
    ignored = check_ignore_index(ignore_index)
    rows: Tensor = _loss(logits, target, ignored, ROBUST_KINDS.index(kind), a, b, False, False)[0]
    return rows


def _reduced(
    logits: Tensor, target: Tensor, kind: str, a: float, b: float, ignore_index: int | None, reduction: str
) -> Tensor:
    mean = check_reduction(reduction) == "mean"
    rows = loss_of_rows(logits, target, kind, a, b, ignore_index)
    if not mean:
        return rows
    if ignore_index is None:
        return rows.sum() / max(len(rows), 1)
    return rows.sum() / eligible_rows(target, ignore_index).sum().clamp(min=1)
