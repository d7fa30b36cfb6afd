"""The operators of the pair's loss from hidden states, made of torch's GEMMs and the compiled row loss and gradient.

Imported where there are compiled kernels. Few logits are kept whole for the backward pass. Of many, a tile exists at a
time: some rows of some classes. A row's loss is put together from its tiles, and the backward pass computes the tiles
of its rows again. It reads only rows whose loss got a gradient: what a selection drops costs no GEMM there.

Why tiles of few classes, and not rows of all: the gradient of a weight is finished by one GEMM, where a chunk of rows
would add its share to all of them; and a tile stays in a CPU's cache from the GEMM that makes it to those that read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from jocor_fast.reference import check_labels, eligible_rows

# Classes of a tile: on a CPU, tiles of 1,024 rows in float32 take 2 MB; a GPU wants larger GEMMs.
TILE_CLASSES = {"cpu": 512}
LARGE_TILE_CLASSES = 4096
_ALIGNED = 16  # columns: where the rows of a tile begin
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return each row's joint loss [B], statistics [B, 4] and maxima [B, 2], and both logits [B, C].

    The maxima are there where the logits are not kept, and the other way round; what is not there is [0, …].

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
    networks = [_Network(hidden1, weight1, bias1), _Network(hidden2, weight2, bias2)]
    rows, classes = len(hidden1), len(weight1)
    no_maxima, no_logits = hidden1.new_empty((0, 2)), hidden1.new_empty((0, classes))
    if keep_logits:
        logits = [network.logits(network.hidden, slice(None)) for network in networks]
        per_sample, statistics = _joint_loss(*logits, target, ignore_index, co_lambda)
        return per_sample, statistics, no_maxima, logits[0], logits[1]
    real = torch.promote_types(hidden1.dtype, torch.float32)
    per_sample, statistics = hidden1.new_empty(rows, dtype=real), hidden1.new_empty((rows, 4), dtype=real)
    maxima = hidden1.new_empty((rows, 2))
    for chunk in _chunks(rows, chunk_rows):
        per_sample[chunk], statistics[chunk], maxima[chunk] = _row_losses(
            networks, chunk, target[chunk], ignore_index, co_lambda
        )
    return per_sample, statistics, maxima, no_logits, no_logits.clone()


class _Network(NamedTuple):
    hidden: Tensor  # [B, D]
    weight: Tensor  # [C, D]
    bias: Tensor | None  # [C]

    def logits(self, hidden: Tensor, classes: slice, out: Tensor | None = None) -> Tensor:
        """Return the logits of rows with these hidden states, [rows, D], for these classes."""
        weight = self.weight[classes].t()
        if self.bias is None:
            return torch.mm(hidden, weight, out=out)
        return torch.addmm(self.bias[classes], hidden, weight, out=out)


def _row_losses(
    networks: Sequence[_Network], rows: slice, target: Tensor, ignore_index: int | None, co_lambda: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, statistics and maxima of some rows, from those of their tiles.

    With P_t the share of tile t's classes in p, and p_t = p / P_t their distribution within it, Q_t and q_t likewise:
    KL(p || q) = sum_t P_t (log P_t - log Q_t + KL(p_t || q_t)).
    """
    hidden = [network.hidden[rows] for network in networks]
    classes = len(networks[0].weight)
    tiles = _chunks(classes, _tile_classes(target))
    buffers = [states.new_empty((len(states), min(classes, _tile_classes(target)))) for states in hidden]
    real = torch.promote_types(hidden[0].dtype, torch.float32)
    sizes = (2, len(tiles), len(target))  # networks, tiles, rows
    maxima = hidden[0].new_empty(sizes)
    log_sums, divergences = (hidden[0].new_empty(sizes, dtype=real) for _ in range(2))
    at_label = hidden[0].new_full((2, len(target)), torch.nan)
    unlabelled = torch.zeros_like(target)
    for number, tile in enumerate(tiles):
        logits = [
            network.logits(states, tile, buffer[:, : tile.stop - tile.start])
            for network, states, buffer in zip(networks, hidden, buffers, strict=True)
        ]
        # All rows are ignored: what they give is statistics that know no label.
        statistics = _joint_loss(*logits, unlabelled, 0, co_lambda)[1].t()
        log_sums[:, number], divergences[:, number] = statistics[:2], statistics[2:]
        in_tile, label = _labels_in(tile, target)
        for of, z in enumerate(logits):
            torch.amax(z, 1, out=maxima[of, number])
            at_label[of] = torch.where(
                in_tile, z.gather(1, label.clamp_max(z.shape[1] - 1)[:, None])[:, 0], at_label[of]
            )

    largest = maxima.amax(1)
    empty = maxima == -torch.inf  # tiles whose classes a network all rules out
    log_parts = torch.where(empty, -torch.inf, (maxima - largest[:, None]) + log_sums)
    log_sum = log_parts.logsumexp(1)
    log_shares = log_parts - log_sum[:, None]
    shares = log_shares.exp()
    log_ratio = log_shares[0] - log_shares[1]
    divergences = torch.where(empty.any(0), 0.0, divergences)
    kl12 = _expected(shares[0], log_ratio + divergences[0]).sum(0)
    kl21 = _expected(shares[1], divergences[1] - log_ratio).sum(0)
    loss = torch.zeros_like(kl12)
    if co_lambda < 1:
        loss += (1 - co_lambda) * (log_sum - (at_label - largest)).sum(0)
    if co_lambda > 0:
        loss += co_lambda * (kl12 + kl21).clamp_min(0)
    loss = torch.where(eligible_rows(target, ignore_index), loss, 0.0)
    # As the kernel's: a NaN tells the gradient that the loss is not finite.
    log_sum[0].masked_fill_(~loss.isfinite(), torch.nan)
    return loss, torch.stack((*log_sum, kl12, kl21), 1), largest.t()


def _expected(probability: Tensor, log_ratio: Tensor) -> Tensor:
    """Return the product; 0 where the probability is, whatever the ratio."""
    return torch.where(probability == 0, 0.0, probability * log_ratio)


def _labels_in(tile: slice, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return which labels are of the tile's classes, and their places there; those that are not get the place after."""
    label = target.long() - tile.start  # uint8 has no 512
    classes = tile.stop - tile.start
    in_tile = (label >= 0) & (label < classes)
    return in_tile, torch.where(in_tile, label, classes)


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
    maxima: Tensor,
    logits1: Tensor,
    logits2: Tensor,
    ignore_index: int | None,
    co_lambda: float,
    chunk_rows: int,
    most_trained: int,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of both networks' hidden states, weights and biases; [0] where they are not wanted."""
    weights = torch.where(per_sample.isfinite() & eligible_rows(target, ignore_index), grad, 0.0)
    trained = _trained_rows(weights, most_trained)
    kept = len(maxima) == 0
    chunk_rows = max(1, len(trained)) if kept else chunk_rows
    classes = len(weight1)
    tiles = _chunks(classes, classes if kept else _tile_classes(target))
    networks = [
        _Gradients(_Network(hidden1, weight1, bias1), logits1 if kept else None, wanted[:3], len(trained)),
        _Gradients(_Network(hidden2, weight2, bias2), logits2 if kept else None, wanted[3:], len(trained)),
    ]
    for chunk in _chunks(len(trained), chunk_rows):
        rows = trained[chunk]
        # Of the rows that were taken without counting some are not trained: a zero times NaN would be NaN.
        real = None if _may_count(rows) else (weights[rows] != 0)[:, None]
        for of, network in enumerate(networks):
            network.begin(rows, real, None if kept else maxima[rows, of], min(classes, _tile_classes(target)))
        of_rows = weights[rows], target[rows], statistics[rows]
        for tile in tiles:
            logits = [network.logits(tile) for network in networks]
            label = of_rows[1] if kept else _labels_in(tile, of_rows[1])[1]
            # The gradients take the place of the logits, a few rows at a time: they stay in a CPU's cache.
            few = max(2, _CACHED_BYTES // logits[0][:1].nbytes) if _may_count(rows) else len(rows)
            for part in _chunks(len(rows), few):
                gradients = _joint_loss_backward(
                    *(of_rows[0][part], *(z[part] for z in logits), label[part]),
                    *(None, co_lambda, of_rows[2][part]),
                    *(None, None, None, None),
                    *(network.needed for network in networks),
                )
                for z, gradient, network in zip(logits, gradients, networks, strict=True):
                    if network.needed:
                        z[part] = gradient
            for network, gradient in zip(networks, logits, strict=True):
                if network.needed:
                    network.add(tile, gradient[:, : tile.stop - tile.start], chunk.start == 0)
        for network in networks:
            network.end()
    return (*networks[0].results(), *networks[1].results())


class _Gradients:
    """The gradients of one network, added up tile by tile: in float32 those of half-precision tensors."""

    def __init__(self, network: _Network, kept: Tensor | None, wanted: Sequence[bool], trained: int) -> None:
        self.network = network
        self.kept = kept  # the logits of all rows
        self.needed = any(wanted)
        hidden, weight, _ = network
        real = torch.promote_types(weight.dtype, torch.float32)
        self.hidden = torch.zeros_like(hidden) if wanted[0] else None
        made = weight.new_empty if trained else weight.new_zeros  # the first chunk writes, others add
        self.weight = made(weight.shape, dtype=real) if wanted[1] else None
        self.bias = made(len(weight), dtype=real) if wanted[2] else None

    def begin(self, rows: Tensor, real: Tensor | None, maxima: Tensor | None, tile_classes: int) -> None:
        """Begin with these rows and, where no logits are kept, their maxima; what is not `real` counts as zeros."""
        states = self.network.hidden[rows]
        self._rows = rows
        self._states = states if real is None else torch.where(real, states, 0.0)
        self._sum = states.new_empty(states.shape, dtype=torch.promote_types(states.dtype, torch.float32))
        if maxima is not None:
            self._maxima = maxima
            self._buffer = states.new_empty((len(rows), (tile_classes // _ALIGNED + 1) * _ALIGNED))

    def logits(self, tile: slice) -> Tensor:
        """Return a tile of the rows' logits, and after its classes a column of the rows' maxima.

        By these the gradient takes the maximum of a whole row off; and a label outside the tile points there.
        """
        if self.kept is not None:
            return self.kept.index_select(0, self._rows)
        classes = tile.stop - tile.start
        self.network.logits(self._states, tile, self._buffer[:, :classes])
        self._buffer[:, classes] = self._maxima
        return self._buffer[:, : classes + 1]

    def add(self, tile: slice, gradient: Tensor, first_rows: bool) -> None:
        """Add the share of a tile, from the gradient of its logits; write it where there is none before it."""
        if self.hidden is not None:
            _add_product(self._sum, gradient, self.network.weight[tile], tile.start == 0)
        if self.weight is not None:
            _add_product(self.weight[tile], gradient.t(), self._states, first_rows)
        if self.bias is not None:
            self.bias[tile] = gradient.sum(0, dtype=self.bias.dtype) + (0 if first_rows else self.bias[tile])

    def end(self) -> None:
        """Keep the gradient of the rows' hidden states."""
        if self.hidden is not None:
            self.hidden[self._rows] = self._sum.to(self.hidden.dtype)

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients in the types of what they are of."""
        of = zip((self.hidden, self.weight, self.bias), self.network, strict=True)
        first, second, third = (
            self.network.hidden.new_empty(0) if gradient is None or tensor is None else gradient.to(tensor.dtype)
            for gradient, tensor in of
        )
        return first, second, third


def _add_product(total: Tensor, left: Tensor, right: Tensor, first: bool) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right, beta=0 if first else 1)
    elif first:
        total.copy_(left @ right)
    else:
        total += left @ right


def _tile_classes(tensor: Tensor) -> int:
    return TILE_CLASSES.get(tensor.device.type, LARGE_TILE_CLASSES)


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
def _(hidden1: Tensor, weight1: Tensor, *others: object) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows, classes, keep_logits = hidden1.shape[0], weight1.shape[0], others[-2]
    real = torch.promote_types(hidden1.dtype, torch.float32)
    maxima = hidden1.new_empty((0 if keep_logits else rows, 2))
    logits = [hidden1.new_empty((rows if keep_logits else 0, classes)) for _ in range(2)]
    numbers = [hidden1.new_empty(size, dtype=real) for size in ((rows,), (rows, 4))]
    return numbers[0], numbers[1], maxima, logits[0], logits[1]


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
