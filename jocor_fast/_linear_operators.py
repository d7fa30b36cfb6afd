"""The operators of the pair's loss from hidden states, made of torch's GEMMs and the compiled row loss and gradient.

Imported where there are compiled kernels. Logits exist for a chunk of rows at a time, unless those of all rows are few:
then they are kept for the backward pass, which otherwise computes those of its rows again. The backward pass reads only
rows whose loss got a gradient: what a selection drops costs no GEMM there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from jocor_fast.reference import check_labels, eligible_rows

_CACHED_BYTES = 1 << 20  # of one network's logits

_joint_loss = torch.ops.jocor_fast.joint_loss.default
_joint_loss_backward = torch.ops.jocor_fast.joint_loss_backward.default


@torch.library.custom_op("jocor_fast::linear_joint_loss", mutates_args=())
def linear_joint_loss(
    hidden1: Tensor,
    weight1: Tensor,
    bias1: Tensor | None,
    hidden2: Tensor,
    weight2: Tensor,
    bias2: Tensor | None,
    target: Tensor,
    ignore_index: int | None,
    co_lambda: float,
    chunk_rows: int,
    keep_logits: bool,
    most_trained: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the joint loss of each row [B], its statistics [B, 4], and both logits [B, C], [0, C] if not kept.

    Args:
        hidden1, weight1, bias1: [B, D], [C, D], [C] of the first network; the second has a D of its own.
        target: [B].
        ignore_index, co_lambda: as in `jocor_fast.joint_loss`.
        chunk_rows: how many rows have logits at a time, where they are not kept.
        keep_logits: whether to keep the logits of all rows for the backward pass.
        most_trained: how many rows get a gradient at most; on a GPU the host does not wait for their number.
    """
    if _may_count(target):  # else the error of a chunk would number its own rows
        check_labels(target, len(weight1), eligible_rows(target, ignore_index), ignore_index)
    networks = ((hidden1, weight1, bias1), (hidden2, weight2, bias2))
    rows, classes = len(hidden1), len(weight1)
    at_once = rows if keep_logits else min(chunk_rows, rows)
    buffers = [hidden.new_empty((at_once, classes)) for hidden, _, _ in networks]
    real = torch.promote_types(hidden1.dtype, torch.float32)
    per_sample, statistics = hidden1.new_empty(rows, dtype=real), hidden1.new_empty((rows, 4), dtype=real)
    for chunk in _chunks(rows, at_once):
        logits = [
            _logits(hidden[chunk], weight, bias, buffer)
            for (hidden, weight, bias), buffer in zip(networks, buffers, strict=True)
        ]
        per_sample[chunk], statistics[chunk] = _joint_loss(*logits, target[chunk], ignore_index, co_lambda)
    kept = buffers if keep_logits else [hidden1.new_empty((0, classes)) for _ in networks]
    return per_sample, statistics, kept[0], kept[1]


@torch.library.custom_op("jocor_fast::linear_joint_loss_backward", mutates_args=())
def linear_joint_loss_backward(
    grad: Tensor,
    hidden1: Tensor,
    weight1: Tensor,
    bias1: Tensor | None,
    hidden2: Tensor,
    weight2: Tensor,
    bias2: Tensor | None,
    target: Tensor,
    per_sample: Tensor,
    statistics: Tensor,
    logits1: Tensor,
    logits2: Tensor,
    ignore_index: int | None,
    co_lambda: float,
    chunk_rows: int,
    most_trained: int,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of both networks' hidden states, weights and biases; [0] where they are not wanted."""
    weights = torch.where(per_sample.isfinite(), grad, 0.0)
    trained = _trained_rows(weights, most_trained)
    kept = logits1.numel() > 0
    at_once = len(trained) if kept else min(chunk_rows, len(trained))
    networks = [
        _Gradients(hidden1, weight1, bias1, logits1 if kept else None, wanted[:3], at_once),
        _Gradients(hidden2, weight2, bias2, logits2 if kept else None, wanted[3:], at_once),
    ]
    for chunk in _chunks(len(trained), at_once):
        rows = trained[chunk]
        # Of the rows that were taken without counting some are not trained: a zero times NaN would be NaN.
        real = None if _may_count(rows) else (weights[rows] != 0)[:, None]
        logits = [network.logits(rows, real) for network in networks]
        inputs = (weights[rows], *logits, target[rows]), statistics[rows]
        # The gradients take the place of the logits. On a CPU a few rows at a time: they stay in its cache.
        few = max(2, _CACHED_BYTES // logits[0][:1].nbytes) if _may_count(rows) else len(rows)
        for part in _chunks(len(rows), few):
            gradients = _joint_loss_backward(
                *(of[part] for of in inputs[0]),
                *(ignore_index, co_lambda, inputs[1][part]),
                *(None, None, None, None),
                *(network.needed for network in networks),
            )
            for z, gradient, network in zip(logits, gradients, networks, strict=True):
                if network.needed:
                    z[part] = gradient
        for network, gradient in zip(networks, logits, strict=True):
            if network.needed:
                network.add(rows, gradient)
    return (*networks[0].results(), *networks[1].results())


class _Gradients:
    """The gradients of one network, added up chunk by chunk: in float32 those of half-precision weights."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        kept: Tensor | None,
        wanted: Sequence[bool],
        at_once: int,
    ) -> None:
        self.inputs = (hidden, weight, bias)
        self.kept = kept  # the logits of all rows
        self.buffer = hidden.new_empty((at_once, len(weight)))
        self.needed = any(wanted)
        real = torch.promote_types(weight.dtype, torch.float32)
        self.hidden = torch.zeros_like(hidden) if wanted[0] else None
        self.weight = torch.zeros_like(weight, dtype=real) if wanted[1] else None
        self.bias = weight.new_zeros(len(weight), dtype=real) if wanted[2] else None
        self._rows: Tensor | None = None  # hidden states of the chunk

    def logits(self, rows: Tensor, real: Tensor | None) -> Tensor:
        """Return the logits of some rows, in the buffer; hidden states that are not `real` count as zeros."""
        hidden, weight, bias = self.inputs
        self._rows = hidden[rows] if real is None else torch.where(real, hidden[rows], 0.0)
        if self.kept is not None:
            return torch.index_select(self.kept, 0, rows, out=self.buffer)
        return _logits(self._rows, weight, bias, self.buffer)

    def add(self, rows: Tensor, gradient: Tensor) -> None:
        """Add the share of some rows, from the gradient of their logits."""
        _, weight, _ = self.inputs
        assert self._rows is not None
        if self.hidden is not None:
            self.hidden[rows] = gradient @ weight
        if self.weight is not None and self.weight.dtype == gradient.dtype:
            self.weight.addmm_(gradient.t(), self._rows)
        elif self.weight is not None:
            self.weight += gradient.t() @ self._rows
        if self.bias is not None:
            self.bias += gradient.sum(0, dtype=self.bias.dtype)

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients in the types of what they are of."""
        of = zip((self.hidden, self.weight, self.bias), self.inputs, strict=True)
        first, second, third = (
            self.inputs[0].new_empty(0) if gradient is None or tensor is None else gradient.to(tensor.dtype)
            for gradient, tensor in of
        )
        return first, second, third


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, buffer: Tensor) -> Tensor:
    out = buffer[: len(hidden)]
    return torch.mm(hidden, weight.t(), out=out) if bias is None else torch.addmm(bias, hidden, weight.t(), out=out)


def _chunks(rows: int, at_once: int) -> list[slice]:
    return [slice(begin, min(begin + at_once, rows)) for begin in range(0, rows, max(at_once, 1))]


def _may_count(tensor: Tensor) -> bool:
    """Return whether the host learns how many numbers are not zero without waiting for a device."""
    return tensor.device.type == "cpu"


def _trained_rows(weights: Tensor, most: int) -> Tensor:
    """Return the numbers of the rows with a weight; where they may not be counted, of `most` rows."""
    if _may_count(weights):
        return weights.nonzero()[:, 0]
    return (weights == 0).byte().argsort(stable=True)[:most]


@linear_joint_loss.register_fake
def _(hidden1: Tensor, weight1: Tensor, *others: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, classes, keep_logits = hidden1.shape[0], weight1.shape[0], others[-2]
    real = torch.promote_types(hidden1.dtype, torch.float32)
    logits = [hidden1.new_empty((rows if keep_logits else 0, classes)) for _ in range(2)]
    return hidden1.new_empty((rows,), dtype=real), hidden1.new_empty((rows, 4), dtype=real), logits[0], logits[1]


@linear_joint_loss_backward.register_fake
def _(
    grad: Tensor,
    hidden1: Tensor,
    weight1: Tensor,
    bias1: Tensor | None,
    hidden2: Tensor,
    weight2: Tensor,
    bias2: Tensor | None,
    *others: object,
) -> tuple[Tensor, ...]:
    wanted = others[-1]
    assert isinstance(wanted, (list, tuple))
    return tuple(
        torch.empty_like(tensor) if needed and tensor is not None else hidden1.new_empty(0)
        for needed, tensor in zip(wanted, (hidden1, weight1, bias1, hidden2, weight2, bias2), strict=True)
    )


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def] # torch names no types for them
    *tensors, target, ignore_index, co_lambda, chunk_rows, _, most_trained = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, target, *output)
    ctx.settings = (ignore_index, co_lambda, chunk_rows, most_trained)


def _backward(ctx, grad, *_):  # type: ignore[no-untyped-def]
    if grad is None:
        return (None,) * 12
    wanted = [bool(needed) for needed in ctx.needs_input_grad[:6]]
    gradients = linear_joint_loss_backward(grad, *ctx.saved_tensors, *ctx.settings, wanted)
    return (*(gradient if needed else None for gradient, needed in zip(gradients, wanted, strict=True)), *(None,) * 6)


def _refuse(*_: object) -> None:
    raise RuntimeError("jocor_fast: this loss cannot be differentiated twice (create_graph=True)")


linear_joint_loss.register_autograd(_backward, setup_context=_save)
linear_joint_loss_backward.register_autograd(_refuse, setup_context=lambda ctx, inputs, output: None)
