"""What shapes the compiled operators return, for torch.compile; imported where there are such operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _real(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def _loss_and_rows(logits: Tensor, *, choices: int) -> tuple[Tensor, ...]:
    """Return the loss, the rows' losses and masks of each choice, their counts and the non-finite's; statistics."""
    rows, real = logits.shape[0], _real(logits)
    return (
        logits.new_empty((), dtype=real),
        *(logits.new_empty((rows,), dtype=real) for _ in range(choices)),
        *(logits.new_empty((rows,), dtype=torch.bool) for _ in range(choices)),
        *(logits.new_empty((), dtype=torch.int64) for _ in range(choices + 1)),
        logits.new_empty((rows, 4), dtype=real),
    )


@torch.library.register_fake("jocor_fast::jocor_loss")
def _(logits1: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _loss_and_rows(logits1, choices=1)


@torch.library.register_fake("jocor_fast::coteaching_loss")
def _(logits1: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _loss_and_rows(logits1, choices=2)


@torch.library.register_fake("jocor_fast::joint_loss")
def _(logits1: Tensor, logits2: Tensor, target: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    rows, real = logits1.shape[0], _real(logits1)
    return logits1.new_empty((rows,), dtype=real), logits1.new_empty((rows, 4), dtype=real)


@torch.library.register_fake("jocor_fast::forward_corrected_loss")
def _(logits: Tensor, target: Tensor, log_transition_t: Tensor, mean: bool) -> tuple[Tensor, ...]:
    rows, real = logits.shape[0], _real(logits)
    return (
        logits.new_empty(() if mean else (rows,), dtype=real),
        logits.new_empty((rows,) if mean else (0,), dtype=real),
        logits.new_empty((), dtype=torch.int64),
        logits.new_empty((rows, 4), dtype=real) if logits.is_cpu else logits.new_empty((rows,), dtype=torch.bool),
    )


@torch.library.register_fake("jocor_fast::forward_corrected_loss_backward")
def _(grad: Tensor, logits: Tensor, *rest: Any) -> Tensor:
    return logits.new_empty(tuple(logits.shape))


@torch.library.register_fake("jocor_fast::robust_loss")
def _(logits: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    if rest[-1]:  # the mean
        return _loss_and_rows(logits, choices=1)
    rows, real = logits.shape[0], _real(logits)
    empty = (logits.new_empty((0,), dtype=dtype) for dtype in (real, torch.bool, torch.int64, torch.int64))
    return logits.new_empty((rows,), dtype=real), *empty, logits.new_empty((rows, 4), dtype=real)


@torch.library.register_fake("jocor_fast::robust_loss_backward")
def _(grad: Tensor, logits: Tensor, *rest: Any) -> Tensor:
    return logits.new_empty(tuple(logits.shape))


@torch.library.register_fake("jocor_fast::select_small_loss")
def _(losses: Tensor, *settings: Any) -> Tensor:
    return losses.new_empty((losses.shape[0],), dtype=torch.bool)


@torch.library.register_fake("jocor_fast::joint_loss_backward")
def _(grad: Tensor, logits1: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    needs_grad1, needs_grad2 = rest[-2:]
    whole, none = tuple(logits1.shape), (0,)
    return logits1.new_empty(whole if needs_grad1 else none), logits1.new_empty(whole if needs_grad2 else none)


@torch.library.register_fake("jocor_fast::perceptron_gradients")
def _(
    gradient: Tensor, inputs: Tensor, weight: Tensor, of_weight: Tensor, of_bias: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    rows = torch.library.get_ctx().new_dynamic_size()
    return gradient.new_empty((rows,), dtype=torch.int64), gradient.new_empty((rows, width))


@torch.library.register_fake("jocor_fast::rows_without_zeros")
def _(inputs: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    entries = torch.library.get_ctx().new_dynamic_size()
    starts = inputs.new_empty((inputs.shape[0] + 1,), dtype=torch.int32)
    return starts, starts.new_empty((entries,)), inputs.new_empty((entries,), dtype=torch.float32)


@torch.library.register_fake("jocor_fast::sparse_rows")
def _(starts: Tensor, columns: Tensor, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    entries = torch.library.get_ctx().new_dynamic_size()
    return starts.new_empty((rows.shape[0] + 1,)), columns.new_empty((entries,)), values.new_empty((entries,))


@torch.library.register_fake("jocor_fast::sparse_linear")
def _(starts: Tensor, columns: Tensor, values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return weight.new_empty((starts.shape[0] - 1, weight.shape[1]))


@torch.library.register_fake("jocor_fast::sparse_linear_gradient")
def _(
    starts: Tensor, columns: Tensor, values: Tensor, rows: Tensor, grad: Tensor, inputs: int
) -> tuple[Tensor, Tensor]:
    found = torch.library.get_ctx().new_dynamic_size()
    return rows.new_empty((found,)), grad.new_empty((found, grad.shape[1]))


@torch.library.register_fake("jocor_fast::sparse_adam_step_")
@torch.library.register_fake("jocor_fast::sparse_adam_catch_up_")
def _(weight: Tensor, *rest: Any) -> None:
    return None
