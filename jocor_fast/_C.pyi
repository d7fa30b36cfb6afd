"""The compiled module (csrc/module.cpp), for type checkers."""

from typing import Any

from torch import Tensor

has_cuda: bool
operators: Any  # a function for each operator of torch.ops.jocor_fast that has no "backward" in its name

def joint_loss_forward(
    logits1: Tensor, logits2: Tensor, target: Tensor, co_lambda: float, ignore_index: int | None = None
) -> tuple[Tensor, Tensor]: ...
def select_small_loss(losses: Tensor, num_keep: int) -> Tensor: ...
def joint_loss_backward(
    grad: Tensor,
    logits1: Tensor,
    logits2: Tensor,
    target: Tensor,
    statistics: Tensor,
    selected: Tensor,
    num_selected: Tensor,
    co_lambda: float,
) -> tuple[Tensor, Tensor]: ...
def set_flush_denormal(on: bool) -> bool: ...
def num_keep(n: int, forget_rate: float, round_up: bool) -> int: ...
def cpu_instruction_set() -> str: ...
def cpu_instruction_sets() -> list[str]: ...
