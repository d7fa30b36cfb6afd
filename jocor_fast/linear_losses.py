"""The pair's losses from hidden states and the last layers' weights: many classes, without the logits of all rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jocor_fast import _operators, arguments, composed_losses, tensor_arguments
from jocor_fast._extension import compiled
from jocor_fast.outputs import JoCoROutput

if compiled is not None:
    from jocor_fast import _linear_operators as _linear_operators

_linear_joint_loss = _operators.operator("linear_joint_loss")

# Logits of both networks that together take no more are kept: the memory is no matter, and reading them a second time
# costs less than a second GEMM.
KEPT_BYTES = 64 << 20
# Else rows that have logits at a time, of a tile of classes (see _linear_operators.py).
CHUNK_ROWS = {"cpu": 1024}
LARGE_CHUNK_ROWS = 4096


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
    """Return `jocor_loss(F.linear(hidden1, weight1, bias1), F.linear(hidden2, weight2, bias2), target)`.

    The logits, [B, C], never exist whole where they would be large: some rows of some classes are computed at a time,
    and in the backward pass again for the selected rows alone, which are the only ones that its GEMMs read. Small
    logits are kept (those of both networks in 64 MB), which costs less than to compute them twice.

    >>> import torch
    >>> import jocor_fast as jf
    >>> hidden, weight = torch.eye(4), torch.zeros(1000, 4, requires_grad=True)
    >>> out = jf.linear_jocor_loss(hidden, weight, hidden, weight, torch.arange(4), forget_rate=0.5)
    >>> out.per_sample, out.num_selected
    (tensor([1.3816, 1.3816, 1.3816, 1.3816]), tensor(2))

    Args:
        hidden1: [B, D1], what the first network's last layer reads; float16, bfloat16, float32 or float64. Under
            autocast, hidden states, weights and biases are cast to its type, as by `F.linear`.
        weight1: [C, D1], the last layer; it may be the same tensor as weight2.
        hidden2: [B, D2] of the second network.
        weight2: [C, D2].
        target: [B] labels in [0, C), any integer type.
        bias1: [C], or None.
        bias2: [C], or None.
        co_lambda: λ in [0, 1], the weight of the agreement between the networks.
        forget_rate: τ(t) in [0, 1), the share of the eligible rows to drop; exactly one of it and num_keep.
        num_keep: k >= 1, an int or a 0-d int64 tensor on the same device. On a GPU, whose host does not wait for a
            tensor's value, the backward pass then computes all rows.
        ignore_index: label of rows to ignore.
        chunk_rows: rows that have logits at a time, >= 1; no logits are kept then. None: chosen from the sizes.

    Returns:
        JoCoROutput, as `jocor_loss`; its loss is differentiable in hidden states, weights and biases, once.

    Raises:
        TypeError, ValueError, RuntimeError: as `jocor_loss`.
    """
    forget_rate, num_keep = tensor_arguments.check_keep_arguments(forget_rate, num_keep, hidden1)
    ignore_index = arguments.check_ignore_index(ignore_index)
    rows = _rows_of(hidden1)
    if forget_rate is not None:
        # or one more than `num_keep`, which torch.compile cannot look into
        most = max(min(rows, 1), rows - int(forget_rate * rows))
    else:
        most = rows if isinstance(num_keep, Tensor) else min(int(num_keep or 0), rows)
    tensors = hidden1, weight1, bias1, hidden2, weight2, bias2
    per_sample = _per_sample(tensors, target, ignore_index, co_lambda, chunk_rows, most)
    return JoCoROutput(*composed_losses.selected_mean(per_sample, target, forget_rate, num_keep, ignore_index))


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
    """Return `joint_loss` of the logits `F.linear(hidden1, weight1, bias1)` and `F.linear(hidden2, weight2, bias2)`.

    >>> import torch
    >>> import jocor_fast as jf
    >>> hidden, weight = torch.eye(2), torch.zeros(10, 2)
    >>> jf.linear_joint_loss(hidden, weight, hidden, weight, torch.tensor([0, 9]))
    tensor([0.4605, 0.4605])

    Args and errors as in `linear_jocor_loss`.

    Returns:
        [B], differentiable in hidden states, weights and biases; float32 (float64 for float64 inputs).
    """
    ignore_index = arguments.check_ignore_index(ignore_index)
    most = _rows_of(hidden1)
    tensors = hidden1, weight1, bias1, hidden2, weight2, bias2
    return _per_sample(tensors, target, ignore_index, co_lambda, chunk_rows, most)


def _per_sample(
    tensors: tuple[Any, ...],
    target: Tensor,
    ignore_index: int | None,
    co_lambda: float,
    chunk_rows: int | None,
    most_trained: int,
) -> Tensor:
    """Return the joint loss of each row, [B]; of which at most so many will get a gradient."""
    co_lambda = arguments.check_co_lambda(co_lambda)
    tensors = _in_one_type(tensors)
    tensor_arguments.check_linear_pair(*tensors)
    hidden1, weight1 = tensors[:2]
    tensor_arguments.check_target("hidden1", hidden1, target)
    rows, row_bytes = hidden1.shape[0], 2 * weight1.shape[0] * hidden1.element_size()
    if chunk_rows is None:
        chunk = CHUNK_ROWS.get(hidden1.device.type, LARGE_CHUNK_ROWS)
        keeps = rows * row_bytes <= KEPT_BYTES
    else:
        chunk, keeps = arguments.at_least("chunk_rows", chunk_rows, 1), False
    keeps = keeps and torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    result: Tensor = _linear_joint_loss(*tensors, target, ignore_index, co_lambda, chunk, keeps, most_trained)[0]
    return result


def _in_one_type(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cast the tensors as autocast casts those of `F.linear`, where it is enabled on their device."""
    first = tensors[0]
    if not torch.is_autocast_enabled(first.device.type):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    return tuple(tensor.to(dtype) if isinstance(tensor, Tensor) else tensor for tensor in tensors)


def _rows_of(hidden: Tensor) -> int:
    tensor_arguments.check_hidden("hidden1", hidden)
    return hidden.shape[0]
