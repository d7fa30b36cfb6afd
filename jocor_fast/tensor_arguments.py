"""Checks of tensors among the arguments, shared by the compiled functions and the reference; numbers: `arguments`.

The compiled operators check tensors themselves, in csrc/arguments.h, with the same messages.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from jocor_fast.arguments import INT64_MAX, as_integer, check_distributions, check_forget_rate, in_64_bits
from jocor_fast.errors import ArgumentTypeError, ArgumentValueError

SHARES_TOLERANCE = 0.01  # of the sums of soft targets, which may be rounded to bfloat16
FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGER_TYPES = (
    torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64,
)  # fmt: skip


def check_num_keep(num_keep: int | Tensor, rows: Tensor) -> int | Tensor:
    """Return k, the number of rows to keep: an int >= 1, >= 0 for an empty batch, or a 0-d int64 tensor.

    Args:
        num_keep: the number, or a tensor on the device of `rows`; its value is not read, for the host would wait.
        rows: the tensor whose first dimension is the batch.
    """
    if type(num_keep) is int and 1 <= num_keep <= INT64_MAX:
        return num_keep
    if isinstance(num_keep, Tensor):
        return _check_scalar("num_keep", "an int or a 0-d int64 tensor", num_keep, torch.int64, rows)
    value = as_integer("num_keep", num_keep)
    empty = isinstance(rows, Tensor) and rows.dim() > 0 and rows.shape[0] == 0
    if value < (0 if empty else 1):
        raise ArgumentValueError("num_keep", f"must be at least 1, got {value}")
    return in_64_bits("num_keep", value)


def check_known_value(num_keep: int | Tensor, rows: Tensor) -> None:
    """Raise ValueError for a tensor below 1 on the CPU, as the operators do; elsewhere the host would wait for it."""
    known = type(num_keep) is Tensor and num_keep.device.type == "cpu" and not torch.compiler.is_compiling()
    if known:
        check_num_keep(int(num_keep), rows)


def check_tensor(name: str, tensor: Any) -> None:
    """Raise TypeError unless the value is a tensor whose numbers lie in memory by strides."""
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(name, f"must be a tensor, got {type(tensor).__name__}")
    kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else None
    if kind is None and tensor.layout != torch.strided:
        kind = str(tensor.layout).removeprefix("torch.").strip("_")
    if kind is not None:
        raise ArgumentTypeError(name, f"must be a dense tensor, got a {kind} one")


def check_readable(name: str, tensor: Tensor) -> None:
    """Raise TypeError for a tensor that is not dense, or has a shape alone (on the device "meta")."""
    check_tensor(name, tensor)
    if tensor.is_meta:
        raise ArgumentTypeError(name, "must hold numbers, got a tensor on the device 'meta'")


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_scalar(name: str, expected: str, tensor: Tensor, dtype: torch.dtype, rows: Tensor) -> Tensor:
    if tensor.dtype != dtype:
        raise ArgumentTypeError(name, f"must be {expected}, got a tensor of {dtype_name(tensor)}")
    if tensor.dim() != 0:
        raise ArgumentValueError(name, f"must be {expected}, got shape {list(tensor.shape)}")
    if isinstance(rows, Tensor) and tensor.device != rows.device:
        raise ArgumentValueError(name, f"must be on {rows.device} like the rows, got {tensor.device}")
    return tensor


def check_keep_arguments(
    forget_rate: float | None, num_keep: int | Tensor | None, rows: Tensor
) -> tuple[float | None, int | Tensor | None]:
    """Return forget_rate and num_keep, of which exactly one must be given, checked; the other is None."""
    if num_keep is None and forget_rate is not None:
        return check_forget_rate(forget_rate), None
    if num_keep is not None and forget_rate is None:
        return None, check_num_keep(num_keep, rows)
    raise TypeError(
        f"exactly one of forget_rate and num_keep must be given, got {'neither' if num_keep is None else 'both'}"
    )


def check_keep_arguments_or_tensors(
    forget_rate: float | Tensor | None, num_keep: int | Tensor | None, rows: Tensor
) -> tuple[float | Tensor | None, int | Tensor | None]:
    """Check the same where the forget rate may also be a 0-d float64 tensor, whose value is not read."""
    if not isinstance(forget_rate, Tensor):
        return check_keep_arguments(forget_rate, num_keep, rows)
    if num_keep is not None:
        raise TypeError("exactly one of forget_rate and num_keep must be given, got both")
    return _check_scalar("forget_rate", "a float or a 0-d float64 tensor", forget_rate, torch.float64, rows), None


def check_class_weights(class_weights: Tensor) -> None:
    """Raise unless the weights are a floating tensor, on the CPU of finite numbers that are not negative."""
    check_type("class_weights", class_weights, FLOAT_TYPES)
    if class_weights.device.type == "cpu" and not is_compiling():
        wrong = ~((class_weights >= 0) & class_weights.isfinite())
        if wrong.any():
            first = class_weights[wrong][0].item()
            raise ArgumentValueError("class_weights", f"must be finite and at least 0, got {first:g}")


def check_number_of_weights(class_weights: Tensor, logits: Tensor) -> None:
    """Raise ValueError unless the weights are [C], on the logits' device."""
    if class_weights.shape != logits.shape[1:]:
        raise ArgumentValueError(
            "class_weights", f"must have shape {list(logits.shape[1:])}, got {list(class_weights.shape)}"
        )
    check_device("class_weights", class_weights, "the logits", logits)


def check_soft_target(target: Tensor, logits: Tensor) -> None:
    """Raise ValueError unless a target of probabilities has the shape and device of the logits."""
    if target.shape != logits.shape:
        raise ArgumentValueError(
            "target", f"must have shape {list(logits.shape)} like the logits, got {list(target.shape)}"
        )
    check_device("target", target, "the logits", logits)


def check_logits(logits1: Tensor, logits2: Tensor) -> None:
    """Raise unless both logits are floating matrices alike in type, shape and device."""
    check_type("logits1", logits1, FLOAT_TYPES)
    check_type("logits2", logits2, FLOAT_TYPES)
    if logits1.dtype != logits2.dtype:
        raise TypeError(f"logits2 must be of type {dtype_name(logits1)} like logits1, got {dtype_name(logits2)}")
    check_matrix("logits1", logits1)
    if logits1.shape != logits2.shape:
        raise ValueError(f"logits2 must have shape {list(logits1.shape)} like logits1, got {list(logits2.shape)}")
    check_device("logits2", logits2, "logits1", logits1)


def check_matrix(name: str, logits: Tensor) -> None:
    """Raise ValueError unless logits are [B, C] with C ≥ 1."""
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"{name} must have shape [batch, classes] with at least one class, got {list(logits.shape)}")


def check_hidden(name: str, hidden: Tensor) -> None:
    """Raise unless hidden states are a floating [B, D] with D ≥ 1."""
    check_type(name, hidden, FLOAT_TYPES)
    if hidden.dim() != 2 or hidden.shape[1] == 0:
        raise ArgumentValueError(name, f"must have shape [batch, features], got {list(hidden.shape)}")


def check_linear_pair(
    hidden1: Tensor, weight1: Tensor, bias1: Tensor | None, hidden2: Tensor, weight2: Tensor, bias2: Tensor | None
) -> None:
    """Raise unless the last layers of two networks fit their hidden states, and each other in rows and classes."""
    check_hidden("hidden1", hidden1)
    check_hidden("hidden2", hidden2)
    if hidden1.shape[0] != hidden2.shape[0]:
        raise ArgumentValueError("hidden2", f"must have {hidden1.shape[0]} rows like hidden1, got {hidden2.shape[0]}")
    named = (("weight1", weight1, hidden1), ("weight2", weight2, hidden2))
    for name, weight, hidden in named:
        check_type(name, weight, FLOAT_TYPES)
        if weight.dim() != 2 or weight.shape[0] == 0 or weight.shape[1] != hidden.shape[1]:
            wanted = f"[classes, {hidden.shape[1]}]"
            raise ArgumentValueError(name, f"must have shape {wanted}, got {list(weight.shape)}")
    if weight1.shape[0] != weight2.shape[0]:
        raise ArgumentValueError("weight2", f"must have {weight1.shape[0]} rows like weight1, got {weight2.shape[0]}")
    for name, bias in (("bias1", bias1), ("bias2", bias2)):
        if bias is not None:
            check_type(name, bias, FLOAT_TYPES)
            if bias.shape != weight1.shape[:1]:
                raise ArgumentValueError(name, f"must have shape [{weight1.shape[0]}], got {list(bias.shape)}")
    others = {"weight1": weight1, "bias1": bias1, "hidden2": hidden2, "weight2": weight2, "bias2": bias2}
    for name, tensor in others.items():
        if tensor is not None:
            if tensor.dtype != hidden1.dtype:
                message = f"must be of type {dtype_name(hidden1)} like hidden1, got {dtype_name(tensor)}"
                raise ArgumentTypeError(name, message)
            check_device(name, tensor, "hidden1", hidden1)


def check_target(name: str, logits: Tensor, target: Tensor) -> None:
    """Raise unless labels are whole numbers [B] on the logits' device; their values are not read."""
    check_tensor("target", target)
    if target.dtype not in INTEGER_TYPES:
        raise TypeError(f"target must be of an integer type, got {dtype_name(target)}")
    if target.shape != logits.shape[:1]:
        raise ValueError(f"target must have shape [{len(logits)}] like the rows of {name}, got {list(target.shape)}")
    check_device("target", target, name, logits)


def check_moving_mean(moving_mean: Tensor, logits: Tensor) -> None:
    """Raise unless mean predictions are floating, of the logits' shape and device; their values are not read."""
    check_type("moving_mean", moving_mean, FLOAT_TYPES)
    if moving_mean.shape != logits.shape:
        raise ValueError(f"moving_mean must have shape {list(logits.shape)} like logits, got {list(moving_mean.shape)}")
    check_device("moving_mean", moving_mean, "logits", logits)


def check_losses(losses: Tensor, eligible: Tensor | None, groups: Tensor | None) -> None:
    """Raise unless losses are a floating [B], and the mask and the groups have their shape and device."""
    check_type("losses", losses, FLOAT_TYPES)
    if losses.dim() != 1:
        raise ValueError(f"losses must have shape [batch], got {list(losses.shape)}")
    for name, tensor, accepted in (("eligible", eligible, (torch.bool,)), ("groups", groups, INTEGER_TYPES)):
        if tensor is not None:
            check_type(name, tensor, accepted)
            if tensor.shape != losses.shape:
                raise ValueError(f"{name} must have shape {list(losses.shape)} like losses, got {list(tensor.shape)}")
            check_device(name, tensor, "losses", losses)


def check_type(name: str, tensor: Tensor, accepted: tuple[torch.dtype, ...]) -> None:
    """Raise TypeError unless the value is a dense tensor of an accepted type."""
    check_tensor(name, tensor)
    if tensor.dtype not in accepted:
        *others, last = (str(dtype).removeprefix("torch.") for dtype in accepted)
        names = f"{', '.join(others)} or {last}" if others else last
        raise TypeError(f"{name} must be of type {names}, got {dtype_name(tensor)}")


def check_device(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Raise ValueError unless both tensors are on one device."""
    if tensor.device != other.device:
        raise ValueError(f"{name} must be on {other.device} like {other_name}, got {tensor.device}")


def check_transition(transition: Any, logits: Tensor) -> Tensor:
    """Return the transition matrix, an array or a tensor, on the device of the logits: float64 (on MPS float32)."""
    check_tensor("logits", logits)
    if not isinstance(transition, Tensor):
        transition = _float_tensor(transition)
    elif transition.device != logits.device:
        raise ValueError(f"transition must be on {logits.device} like logits, got {transition.device}")
    check_tensor("transition", transition)
    if not transition.is_floating_point():
        raise TypeError(f"transition must be of a floating-point type, got {dtype_name(transition)}")
    matrix = transition.detach()
    if logits.dim() == 2 and matrix.shape != (logits.shape[1], logits.shape[1]):
        wanted = [logits.shape[1], logits.shape[1]]
        raise ValueError(f"transition must have shape {wanted}, got {list(matrix.shape)}")
    # A compiler cannot follow a branch on values, and its stand-ins for tensors, of types of their own, have none.
    if matrix.device.type == "cpu" and not is_compiling() and type(matrix) is Tensor and matrix.numel():
        check_distributions("transition", matrix.double())
    return matrix.to(torch.float32 if logits.device.type == "mps" else torch.float64).to(logits.device)


def _float_tensor(transition: Any) -> Tensor:
    array = np.asarray(transition)
    if array.dtype.kind != "f":
        raise TypeError(f"transition must be of a floating-point type, got {array.dtype}")
    return torch.from_numpy(np.array(array, dtype=np.float64))  # a copy: contiguous and writable, as torch wants it
