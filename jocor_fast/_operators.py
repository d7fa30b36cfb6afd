"""The operators behind the public functions: the compiled ones, or plain PyTorch where there are no kernels.

Nothing above this module asks which of the two a call takes.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from jocor_fast import reference
from jocor_fast._extension import DEVICES, compiled, why_plain
from jocor_fast.tensor_arguments import check_tensor

_OUTSIDE = 5  # frames from a warning here to the caller of a public function


def operator(name: str) -> Callable[..., Any]:
    """Return an operator of torch.ops.jocor_fast as a function of its positional arguments.

    For tensors on a device without kernels it is the reference. Elsewhere it calls the operator past its Python front,
    which torch.compile cannot follow: while that traces, the function goes through torch.ops. Errors of the arguments'
    kind are found where the operator fails, not before each call; torch's own words for them name no argument. The
    function raises:
        TypeError: an argument is not a tensor, or one that is not dense.
        RuntimeError: a transform of torch.func wants a derivative; whatever else the operator says.
    """
    if compiled is None:
        return partial(_plainly, _PLAIN[name])
    traced = getattr(torch.ops.jocor_fast, name).default
    return partial(_call, traced, getattr(compiled.operators, name, traced), _PLAIN[name])


def _call(traced: Any, eager: Any, plain: Callable[..., Any], rows: Any, *others: Any) -> Any:
    # is_cpu first: to ask for device.type takes 0.6 µs of the 12 of 128×10 logits.
    if not isinstance(rows, Tensor) or not (rows.is_cpu or rows.device.type in DEVICES):
        _warn(rows)
        return plain(rows, *others)
    if is_compiling():
        return traced(rows, *others)
    try:
        return eager(rows, *others)
    except (RuntimeError, TypeError) as error:
        for parameter, value in zip(traced._schema.arguments, (rows, *others), strict=True):
            _check_argument(parameter, value)
        if "functorch" in str(error):
            raise RuntimeError(
                "the loss cannot be differentiated by the transforms of torch.func (grad, vjp, jvp …): backward() and "
                "torch.autograd.grad are accepted"
            ) from None
        raise


def _plainly(plain: Callable[..., Any], rows: Any, *others: Any) -> Any:
    _warn(rows)
    return plain(rows, *others)


def _warn(rows: Any) -> None:
    if isinstance(rows, Tensor) and not is_compiling():
        _warn_once(why_plain(rows.device.type))


@functools.cache
def _warn_once(sentence: str | None) -> None:
    warnings.warn(str(sentence), stacklevel=_OUTSIDE)


def _check_argument(parameter: torch.Argument, value: Any) -> None:
    """Raise the error of a value that no operator takes for this parameter of its schema."""
    if isinstance(parameter.type, torch.TensorType) or (
        value is not None and str(parameter.type) == "Optional[Tensor]"
    ):
        check_tensor(parameter.name, value)


def num_keep(rows: int, forget_rate: float, round_up: bool) -> int:
    """Return how many of some rows a forget rate keeps."""
    if compiled is not None:
        return int(compiled.num_keep(rows, forget_rate, round_up))
    return reference.num_keep(rows, forget_rate, rounding="ceil" if round_up else "floor")


# --- the operators of csrc/ops.cpp, forward_correction.cpp and robust_loss.cpp in plain PyTorch -----------------------


def _given(number: Any, tensor: Tensor | None) -> Any:
    return number if tensor is None else tensor


def _jocor_loss(
    logits1: Tensor,
    logits2: Tensor,
    target: Tensor,
    ignore_index: int | None,
    co_lambda: float,
    forget_rate: float | None,
    num_keep: int | None,
    num_keep_tensor: Tensor | None,
    only_differing: bool,
) -> tuple[Tensor, ...]:
    if only_differing:
        return reference.decoupling_rows(logits1, logits2, target, ignore_index=ignore_index)
    return reference.jocor_loss(
        logits1,
        logits2,
        target,
        co_lambda=co_lambda,
        forget_rate=forget_rate,
        num_keep=_given(num_keep, num_keep_tensor),
        ignore_index=ignore_index,
    )


def _coteaching_loss(
    logits1: Tensor,
    logits2: Tensor,
    target: Tensor,
    ignore_index: int | None,
    forget_rate: float | None,
    forget_rate_tensor: Tensor | None,
    num_keep: int | None,
    num_keep_tensor: Tensor | None,
    round_down: bool,
    disagreement: bool,
) -> tuple[Tensor, ...]:
    return reference.coteaching_loss(
        logits1,
        logits2,
        target,
        forget_rate=_given(forget_rate, forget_rate_tensor),
        num_keep=_given(num_keep, num_keep_tensor),
        disagreement=disagreement,
        ignore_index=ignore_index,
        rounding="floor" if round_down else "ceil",
    )


def _joint_loss(
    logits1: Tensor, logits2: Tensor, target: Tensor, ignore_index: int | None, co_lambda: float
) -> tuple[Tensor]:
    return (reference.joint_loss(logits1, logits2, target, co_lambda=co_lambda, ignore_index=ignore_index),)


def _linear_joint_loss(
    hidden1: Tensor,
    weight1: Tensor,
    bias1: Tensor | None,
    hidden2: Tensor,
    weight2: Tensor,
    bias2: Tensor | None,
    target: Tensor,
    ignore_index: int | None,
    co_lambda: float,
    *_: Any,
) -> tuple[Tensor]:
    biases: dict[str, Any] = {"bias1": bias1, "bias2": bias2}
    settings: dict[str, Any] = {"co_lambda": co_lambda, "ignore_index": ignore_index}
    return (reference.linear_joint_loss(hidden1, weight1, hidden2, weight2, target, **biases, **settings),)


def _forward_corrected_loss(logits: Tensor, target: Tensor, log_transition_t: Tensor, mean: bool) -> tuple[Tensor, ...]:
    return reference.corrected_loss(logits, target, log_transition_t, mean=mean)


def _robust_loss(
    logits: Tensor,
    target: Tensor,
    ignore_index: int | None,
    kind: int,
    a: float,
    b: float,
    sieve: bool,
    mean: bool,
) -> tuple[Tensor, ...]:
    rows = reference.robust_rows(logits, target, reference.ROBUST_KINDS[kind], a, b, ignore_index)
    return reference.robust_mean(rows, sieve=sieve) if mean else (rows.losses,)


def _select_small_loss(
    losses: Tensor, num_keep: int | None, num_keep_tensor: Tensor | None, eligible: Tensor | None
) -> Tensor:
    return reference.select_small_loss(losses, _given(num_keep, num_keep_tensor), eligible=eligible)


_PLAIN: dict[str, Callable[..., Any]] = {
    "jocor_loss": _jocor_loss,
    "coteaching_loss": _coteaching_loss,
    "joint_loss": _joint_loss,
    "linear_joint_loss": _linear_joint_loss,
    "forward_corrected_loss": _forward_corrected_loss,
    "robust_loss": _robust_loss,
    "select_small_loss": _select_small_loss,
}
