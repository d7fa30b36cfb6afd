"""Forward correction: the loss of labels that a transition matrix has flipped (Patrini et al., CVPR 2017).

With p = softmax(z) and T[i, j] = P(noisy j | clean i), the network's prediction of the *noisy* label is p·T, and its
cross-entropy -log((p·T)[y]) is smallest where p is the clean distribution.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jocor_fast._operators import operator
from jocor_fast.arguments import check_reduction
from jocor_fast.tensor_arguments import check_transition

_loss = operator("forward_corrected_loss")


def forward_corrected_loss(logits: Tensor, target: Tensor, transition: Any, *, reduction: str = "mean") -> Tensor:
    """Return -log((p·T)[y]), the cross-entropy of the noisy label, by log-sum-exp.

    >>> import torch
    >>> import jocor_fast as jf
    >>> sure = torch.tensor([[9.0, 0.0, 0.0]])  # of class 0, whose label is wrong with probability 0.4
    >>> jf.forward_corrected_loss(sure, torch.tensor([1]), jf.noise.symmetric(3, 0.4)).exp().reciprocal()
    tensor(0.2000)

    Args:
        logits: [B, C]; float16, bfloat16, float32 or float64, any strides.
        target: [B] noisy labels in [0, C), any integer type, same device.
        transition: T [C, C], T[i, j] = P(noisy j | clean i): a floating-point array, or a tensor on the same device. It
            gets no gradient.
        reduction: "mean", or "none" for the loss of each row.

    Returns:
        0-d (0 for an empty batch), or [B] for reduction "none"; differentiable in the logits; float32 (float64 for
        float64 logits). A row whose loss is not finite keeps it, takes the mean along, and gets a zero gradient.

    Raises:
        TypeError: a wrong type or dtype.
        RuntimeError: differentiating twice.
        ValueError: a wrong shape, device or value; on the CPU also a label outside [0, C), an entry of T under 0, or a
            row of T that does not sum to 1 within 1e-5. On CUDA, where a check would wait for the device, such a
            label's loss is NaN, and the matrix is taken as it is.
    """
    mean = check_reduction(reduction) == "mean"
    matrix = check_transition(transition, logits)
    return corrected_loss(logits, target, log_transposed(matrix, logits.dtype), mean=mean)[0]


def log_transposed(transition: Tensor, dtype: torch.dtype) -> Tensor:
    """Return log Tᵀ as `corrected_loss` takes it, for logits of a dtype."""
    return transition.log().t().to(torch.promote_types(dtype, torch.float32)).contiguous()


def corrected_loss(
    logits: Tensor, target: Tensor, log_transition_t: Tensor, *, mean: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean loss, differentiable; the loss of each row, [B]; how many of those are not finite.

    Without `mean` the first is the loss of each row, and the second is empty. The values of the matrix are not checked.
    """
    loss, per_sample, num_nonfinite = _loss(logits, target, log_transition_t, mean)[:3]
    return loss, per_sample, num_nonfinite
