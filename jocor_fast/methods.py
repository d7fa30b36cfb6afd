"""The methods as policies: which networks they train, on which rows of a batch, by which loss.

A method sees logits and labels, never a network, a data set or an optimiser; nothing here makes the host wait for the
device. `METHODS` holds every method by the name that the command line and `jf.train` take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from jocor_fast.losses import jocor_loss

if TYPE_CHECKING:
    from jocor_fast.engine.settings import TrainSettings


class StepLoss(NamedTuple):
    """What a method makes of a batch; nothing of it waits for the device."""

    loss: Tensor  # 0-d, to be differentiated
    selected: tuple[Tensor, ...]  # masks [B]: the rows that train; two where each network makes a choice of its own
    num_nonfinite: Tensor  # 0-d int64: rows whose loss is not finite
    per_sample: Tensor  # [B], detached: the loss of each row, of both networks together where there are two
    logits: tuple[Tensor, ...] = ()  # [B, C] of each network, detached; the step adds them


class Method(Protocol):
    """A policy. It is made from the settings of the run, which it reads what it needs of."""

    num_networks: ClassVar[int]
    num_choices: ClassVar[int]  # how many masks `StepLoss.selected` holds
    selects: ClassVar[bool]  # False: every row trains, and the keep rate is reported as 1

    def __init__(self, settings: TrainSettings) -> None: ...

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, num_keep: int | Tensor) -> StepLoss:
        """The loss of a batch.

        Args:
            logits: [B, C] of each network.
            labels: int64 [B].
            num_keep: k, the rows that this epoch's R(t) leaves of B; a 0-d int64 tensor is read on the device.
        """
        ...


class Standard:
    """One network, cross-entropy on everything."""

    num_networks: ClassVar[int] = 1
    num_choices: ClassVar[int] = 1
    selects: ClassVar[bool] = False

    def __init__(self, settings: TrainSettings) -> None:
        pass

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, num_keep: int | Tensor) -> StepLoss:
        accurate = logits[0].to(torch.promote_types(logits[0].dtype, torch.float32))  # no statistics in half precision
        per_sample = F.cross_entropy(accurate, labels, reduction="none")
        everything = torch.ones_like(labels, dtype=torch.bool)
        return StepLoss(per_sample.mean(), (everything,), (~per_sample.detach().isfinite()).sum(), per_sample.detach())


class JoCoR:
    """Two networks, one joint loss: the k rows with the smallest loss train both (paper, algorithm 1)."""

    num_networks: ClassVar[int] = 2
    num_choices: ClassVar[int] = 1
    selects: ClassVar[bool] = True

    def __init__(self, settings: TrainSettings) -> None:
        self.co_lambda = settings.co_lambda

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, num_keep: int | Tensor) -> StepLoss:
        out = jocor_loss(logits[0], logits[1], labels, co_lambda=self.co_lambda, num_keep=num_keep)
        return StepLoss(out.loss, (out.selected,), out.num_nonfinite, out.per_sample)


METHODS: dict[str, type[Method]] = {"standard": Standard, "jocor": JoCoR}
