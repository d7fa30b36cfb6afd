"""The compiled module (csrc/module.cpp), for type checkers."""

from torch import Tensor

has_cuda: bool

def jocor_loss(
    logits1: Tensor,
    logits2: Tensor,
    target: Tensor,
    co_lambda: float,
    forget_rate: float | None,
    num_keep: int | None,
    num_keep_tensor: Tensor | None,
    ignore_index: int | None,
    /,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]: ...
def decoupling_loss(
    logits1: Tensor, logits2: Tensor, target: Tensor, ignore_index: int | None, /
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]: ...
def coteaching_loss(
    logits1: Tensor,
    logits2: Tensor,
    target: Tensor,
    forget_rate: float | None,
    forget_rate_tensor: Tensor | None,
    num_keep: int | None,
    num_keep_tensor: Tensor | None,
    round_down: bool,
    disagreement: bool,
    ignore_index: int | None,
    /,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]: ...
def forward_corrected_loss(
    logits: Tensor, target: Tensor, log_transition_t: Tensor, mean: bool, /
) -> tuple[Tensor, Tensor, Tensor]: ...
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
def num_keep(n: int, forget_rate: float, round_up: bool) -> int: ...
def cpu_instruction_set() -> str: ...
def cpu_instruction_sets() -> list[str]: ...
