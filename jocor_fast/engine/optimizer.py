"""One optimiser over the parameters of all networks; each step is told the rates of its epoch.

A rate that is a 0-d tensor is read on the device, where a captured step finds each epoch's. Where `skip`, a 0-d
float32 tensor, is not 0, a step changes nothing (`loss_scale`).

`torch.optim.Adam` computes the same bits by the same kernel. It is not used because making one imports torch's
compiler (a second, in every process), and each of its steps passes through hooks and checks: a tenth of a millisecond,
where a step of MNIST's perceptrons takes one or two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from jocor_fast._extension import compiled
from jocor_fast.data.sparse import as_dense
from jocor_fast.engine.networks import NetworkGroup
from jocor_fast.engine.settings import OptimizerSource, TrainSettings
from jocor_fast.engine.sparse_perceptrons import SparsePerceptrons
from jocor_fast.errors import ArgumentTypeError

ADAM_BETA2 = 0.999
ADAM_EPSILON = 1e-8
DEFERRED = "rates"  # in the state of an optimiser that defers updates


class Optimizer:
    """Updates parameters in place by their gradients; a parameter that has none is left alone."""

    def __init__(self, parameters: Sequence[Tensor], *, weight_decay: float = 0.0) -> None:
        self.weight_decay = weight_decay
        self.parameters = list(parameters)

    def step(self, *, lr: float | Tensor, beta1: float, skip: Tensor | None = None) -> None:
        """Update; where `skip`, a 0-d float32 tensor on their device, is not 0, leave everything as it is."""
        raise NotImplementedError

    def catch_up(self, inputs: Tensor | None = None) -> None:
        """Make the updates that have been deferred, of those rows that sparse inputs read; None: of all."""

    def state_dict(self) -> dict[str, Any]:
        """Return what is kept of each parameter, not copied."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy what `state_dict` returned."""
        for name, tensors in self.state_dict().items():
            for mine, stored in zip(tensors, state[name], strict=True):
                mine.copy_(stored)


class FusedAdam(Optimizer):
    """Adam (Kingma & Ba, algorithm 1) with L2 weight decay, by torch's fused kernel.

    The first moment's bias is corrected by 1 − β1^t with the β1 of step t, as torch does it: where β1 changes (recipe
    "published"), the factor belongs to the new β1 alone, as in the published code.
    """

    def __init__(self, parameters: Sequence[Tensor], *, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, weight_decay=weight_decay)
        self.moments = [torch.zeros_like(parameter) for parameter in parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in parameters]
        self.steps = [torch.zeros((), device=parameter.device) for parameter in parameters]

    @torch.no_grad()
    def step(self, *, lr: float | Tensor, beta1: float, skip: Tensor | None = None) -> None:
        by_dtype: dict[torch.dtype, list[tuple[Tensor, ...]]] = {}  # the kernel takes one at a time
        columns = zip(self.parameters, self.moments, self.squares, self.steps, strict=True)
        for parameter, *state in columns:
            if parameter.grad is not None:
                by_dtype.setdefault(parameter.dtype, []).append((parameter, as_dense(parameter.grad), *state))
        for used in by_dtype.values():
            parameters, gradients, moments, squares, steps = map(list, zip(*used, strict=True))
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                parameters,
                gradients,
                moments,
                squares,
                [],
                steps,
                lr=lr,
                beta1=beta1,
                beta2=ADAM_BETA2,
                weight_decay=self.weight_decay,
                eps=ADAM_EPSILON,
                amsgrad=False,
                maximize=False,
                found_inf=skip,
            )
            if skip is not None:
                torch._foreach_sub_(steps, [skip] * len(steps))

    def state_dict(self) -> dict[str, Any]:
        return {"moments": self.moments, "squares": self.squares, "steps": self.steps}


class DeferringAdam(FusedAdam):
    """Adam on the CPU for `SparsePerceptrons`, whose first weight [D, width] has a gradient in some of its rows alone.

    The numbers are those of `FusedAdam` but for rounding. A row without a gradient is updated all the same, as its
    moments only decay; that follows from them and from the rates of the steps, and is made up for when the row is read:
    for 50,000 inputs a step takes a fifth of the time. Each update rounds as if it were made at once, so the bits do
    not depend on when that is, and a checkpoint between two steps changes nothing. The gradient is computed where it is
    used, a piece at a time, and never stored.
    """

    def __init__(self, group: SparsePerceptrons) -> None:
        super().__init__(group.parameters)
        self._group = group
        group.stores_gradient = False
        self.seen, self.current = (torch.zeros(len(group.first_weight), dtype=torch.int32) for _ in range(2))
        # As AdamStep in csrc/sparse_linear.h, and room for more.
        self._rates = torch.zeros(1024, 3, dtype=torch.float64)
        self._count = 0

    @torch.no_grad()
    def step(self, *, lr: float | Tensor, beta1: float, skip: Tensor | None = None) -> None:
        gradient, self._group.first_gradient = self._group.first_gradient, None
        if skip is not None and skip.item():
            return
        super().step(lr=lr, beta1=beta1)
        if self._count == len(self._rates):
            self._rates = torch.cat((self._rates, torch.zeros_like(self._rates)))
        self._count += 1
        rate, root = float(lr) / (1 - beta1**self._count), (1 - ADAM_BETA2**self._count) ** -0.5
        self._rates.numpy()[self._count - 1] = beta1, rate, root  # no tensor is made for them
        assert gradient is not None
        torch.ops.jocor_fast.sparse_adam_step_(*self._first_state(), *gradient.parts, ADAM_BETA2, ADAM_EPSILON)

    @torch.no_grad()
    def catch_up(self, inputs: Tensor | None = None) -> None:
        rows = None if inputs is None else inputs.col_indices()
        torch.ops.jocor_fast.sparse_adam_catch_up_(*self._first_state(), rows, ADAM_BETA2, ADAM_EPSILON)

    def _first_state(self) -> tuple[Tensor, ...]:
        rates = self._rates[: self._count]
        return self.parameters[0], self.moments[0], self.squares[0], self.seen, self.current, rates

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rows": [self.seen, self.current], DEFERRED: [self._rates[: self._count]]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rates, self._count = state[DEFERRED][0].clone(), len(state[DEFERRED][0])
        if not self._count:
            self._rates = torch.zeros(1024, 3, dtype=torch.float64)
        padded = {}  # as today: the first weight's rows had less of it before
        for name in ("moments", "squares"):
            first, *others = state[name]
            padded[name] = [F.pad(first, (0, self.parameters[0].shape[1] - first.shape[1])), *others]
        super().load_state_dict({**state, **padded})


class PlainSGD(Optimizer):
    """Gradient descent with L2 weight decay, without momentum."""

    @torch.no_grad()
    def step(self, *, lr: float | Tensor, beta1: float, skip: Tensor | None = None) -> None:
        """Update every parameter that has a gradient; `beta1` is Adam's."""
        pairs = []
        for parameter in self.parameters:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.is_sparse and not self.weight_decay and (skip is None or not skip.item()):
                parameter.index_add_(0, gradient._indices()[0], gradient._values(), alpha=-float(lr))
            else:
                pairs.append((parameter, as_dense(gradient)))
        if not pairs:
            return
        parameters, gradients = map(list, zip(*pairs, strict=True))
        torch._fused_sgd_(
            parameters,
            gradients,
            [],
            weight_decay=self.weight_decay,
            momentum=0.0,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
            found_inf=skip,
        )


class GivenOptimizer(Optimizer):
    """A torch optimiser that a function of the user's builds; its learning rates fall in step with the schedule's."""

    def __init__(self, build: OptimizerSource, parameters: Sequence[Tensor], *, lr: float) -> None:
        """`lr` is the schedule's full rate, at which the optimiser has the rates that it was built with."""
        super().__init__(parameters)
        given: Any = build(self.parameters)
        if not isinstance(given, torch.optim.Optimizer):
            kind = type(given).__name__
            raise ArgumentTypeError("optimizer", f"must be a function that returns a torch.optim.Optimizer, got {kind}")
        self._given = given
        self._full_rates = [group["lr"] / lr for group in self._given.param_groups]

    def step(self, *, lr: float | Tensor, beta1: float, skip: Tensor | None = None) -> None:
        """Update; the host reads `skip`, and `beta1` is the settings' Adam's."""
        if skip is not None and skip.item():
            return
        for group, rate in zip(self._given.param_groups, self._full_rates, strict=True):
            group["lr"] = rate * float(lr)
        self._given.step()

    def state_dict(self) -> dict[str, Any]:
        return self._given.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._given.load_state_dict(state)


def may_defer(settings: TrainSettings) -> bool:
    """Return whether a row without a gradient may wait for its updates: not where weights decay towards zero."""
    return settings.optimizer == "adam" and not settings.weight_decay and compiled is not None


def build_optimizer(settings: TrainSettings, group: NetworkGroup) -> Optimizer:
    """Return the optimiser that `settings.optimizer` names or builds, of the group's parameters."""
    if callable(settings.optimizer):
        return GivenOptimizer(settings.optimizer, group.parameters, lr=settings.lr)
    if isinstance(group, SparsePerceptrons) and may_defer(settings):
        return DeferringAdam(group)
    optimizer = PlainSGD if settings.optimizer == "sgd" else FusedAdam
    return optimizer(group.parameters, weight_decay=settings.weight_decay)
