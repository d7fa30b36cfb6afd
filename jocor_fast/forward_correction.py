"""Forward correction: the loss of labels that a transition matrix has flipped (Patrini et al., CVPR 2017).

With p = softmax(z) and T[i, j] = P(noisy j | clean i), the network's prediction of the *noisy* label is p·T, and its
cross-entropy -log((p·T)[y]) is smallest where p is the clean distribution. How the matrix is estimated stands in
transition_estimate.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from jocor_fast._extension import _C, call, operators
from jocor_fast.arguments import check_dense, check_distributions

_loss = operators.forward_corrected_loss.default


def forward_corrected_loss(logits: Tensor, target: Tensor, transition: Any, *, reduction: str = "mean") -> Tensor:
    """-log((p·T)[y]), the cross-entropy of the noisy label, by log-sum-exp.

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
            row of T that does not sum to 1 within 1e-5. On CUDA, where looking would mean waiting, such a label's loss
            is NaN, and the matrix is taken as it is.
    """
    matrix = check_corrected_arguments(logits, target, transition, reduction)
    return corrected_loss(logits, target, log_transposed(matrix, logits.dtype), mean=reduction == "mean")[0]


def log_transposed(transition: Tensor, dtype: torch.dtype) -> Tensor:
    """log Tᵀ as `corrected_loss` takes it, for logits of a dtype."""
    return transition.double().log().t().to(torch.promote_types(dtype, torch.float32)).contiguous()


def corrected_loss(
    logits: Tensor, target: Tensor, log_transition_t: Tensor, *, mean: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean loss, differentiable; the loss of each row, [B]; how many of those are not finite.

    Without `mean` the first is the loss of each row, and the second is empty. The values of the matrix are not checked.
    """
    loss, per_sample, num_nonfinite = call(_loss, _C.forward_corrected_loss, logits, target, log_transition_t, mean)[:3]
    return loss, per_sample, num_nonfinite


def check_corrected_arguments(logits: Tensor, target: Tensor, transition: Any, reduction: str) -> Tensor:
    """The transition matrix as a tensor beside the logits; TypeError or ValueError that names the argument."""
    if reduction not in ("mean", "none"):
        error = ValueError if isinstance(reduction, str) else TypeError
        raise error(f"reduction must be 'mean' or 'none', got {reduction!r}")
    for name, tensor in (("logits", logits), ("target", target)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        check_dense(name, tensor)
    if not logits.is_floating_point():
        raise TypeError(f"logits must be of a floating-point type, got {logits.dtype}")
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise TypeError(f"target must be of an integer type, got {target.dtype}")
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must be [batch, classes] with at least one class, got shape {tuple(logits.shape)}")
    if target.shape != logits.shape[:1]:
        raise ValueError(f"target must have a label for each row of logits, got shape {tuple(target.shape)}")
    if target.device != logits.device:
        raise ValueError(f"target must be on {logits.device} like logits, got {target.device}")
    return _check_transition(transition, logits)


def _check_transition(transition: Any, logits: Tensor) -> Tensor:
    matrix = transition if isinstance(transition, Tensor) else torch.from_numpy(_float_array(transition))
    if not matrix.is_floating_point():
        raise TypeError(f"transition must be of a floating-point type, got {matrix.dtype}")
    classes = logits.shape[1]
    if matrix.shape != (classes, classes):
        raise ValueError(f"transition must be of shape ({classes}, {classes}), got {tuple(matrix.shape)}")
    # A compiler cannot follow a branch on values, and its stand-ins for tensors, of types of their own, have none.
    has_values = not is_compiling() and type(matrix) in (Tensor, nn.Parameter)
    if matrix.device.type == "cpu" and has_values:
        check_distributions("transition", matrix.detach().double())
    if isinstance(transition, Tensor) and matrix.device != logits.device:
        raise ValueError(f"transition must be on {logits.device} like logits, got {matrix.device}")
    return matrix.detach().to(logits.device)


def _float_array(transition: Any) -> np.ndarray:
    array = np.asarray(transition)
    if array.dtype.kind != "f":
        raise TypeError(f"transition must be a floating-point array or tensor, got {array.dtype}")
    return np.array(array, dtype=np.float64)  # a copy: whatever its strides, and writable, as torch wants it
