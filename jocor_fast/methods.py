"""The methods as policies: which networks they train, on which rows of a batch, by which loss.

A method sees logits and labels, never a network, a data set or an optimiser; nothing here makes the host wait for the
device. `METHODS` holds every method by the name that the command line and `jf.train` take, in the order of the paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from jocor_fast.forward_correction import corrected_loss, log_transposed
from jocor_fast.losses import CoTeachingOutput, coteaching_loss, decoupling_rows, jocor_loss
from jocor_fast.schedules import keep_rounding

if TYPE_CHECKING:
    from jocor_fast.engine.settings import TrainSettings


class Keep(NamedTuple):
    """How much of a batch an epoch keeps. Numbers, or 0-d tensors on the device that a captured step reads there."""

    num_keep: int | Tensor  # k, the rows that R(t) leaves of a whole batch; int64
    forget_rate: float | Tensor  # 1 − R(t), for a method that counts k among fewer rows; float64
    warming_up: bool = False  # of Co-teaching+. It decides which operators run: a captured step holds for one value


class StepLoss(NamedTuple):
    """What a method makes of a batch; nothing of it waits for the device."""

    loss: Tensor  # 0-d, to be differentiated
    selected: tuple[Tensor, ...]  # masks [B]: the rows that train; two where each network makes a choice of its own
    num_nonfinite: Tensor  # 0-d int64: rows whose loss is not finite
    per_sample: Tensor  # [B], detached: the loss of each row, of both networks together where there are two
    skip: Tensor | None = None  # 0-d float32: 1 where the parameters are to stay as they are, which Adam's moments move
    logits: tuple[Tensor, ...] = ()  # [B, C] of each network, detached; the step adds them


class Method:
    """A policy, which is made from the settings of a run. What most methods have in common stands here."""

    title: ClassVar[str]  # as the paper heads its tables
    num_networks: ClassVar[int] = 2
    num_choices: ClassVar[int] = 1  # how many masks `StepLoss.selected` holds
    selects: ClassVar[bool] = True  # False: τ and its ramp change nothing, and the keep rate is reported as 1
    uses_co_lambda: ClassVar[bool] = False

    def __init__(self, settings: TrainSettings) -> None:
        """Read what the method has a use for; most have none for any."""

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        """The loss of a batch.

        Args:
            logits: [B, C] of each network.
            labels: int64 [B].
            keep: of the epoch.
        """
        raise NotImplementedError


class Standard(Method):
    """One network, cross-entropy on everything: Standard+ that keeps the whole batch.

    torch's own cross-entropy wakes threads for 128 rows, and takes up to twice as long. Where every loss is finite the
    two are the same; a row whose loss is not is left out and counted, as in every method but F-correction.
    """

    title: ClassVar[str] = "Standard"
    num_networks: ClassVar[int] = 1
    selects: ClassVar[bool] = False

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        return _own_small_loss(logits[0], labels, len(labels))


class StandardPlus(Method):
    """One network, its own small-loss rows."""

    title: ClassVar[str] = "Standard+"
    num_networks: ClassVar[int] = 1

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        return _own_small_loss(logits[0], labels, keep.num_keep)


class FCorrection(Method):
    """One network, -log((p·T)[y]) on everything; T comes from a first stage (engine/first_stage.py)."""

    title: ClassVar[str] = "F-correction"
    num_networks: ClassVar[int] = 1
    selects: ClassVar[bool] = False

    def __init__(self, settings: TrainSettings) -> None:
        self.log_transition_t: Tensor | None = None

    def set_transition(self, transition: Tensor) -> None:
        """Take T [C, C], on the run's device, before the first batch."""
        self.log_transition_t = log_transposed(transition, torch.float32)

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        assert self.log_transition_t is not None
        loss, per_sample, num_nonfinite = corrected_loss(logits[0], labels, self.log_transition_t)
        everything = torch.ones_like(labels, dtype=torch.bool)
        return StepLoss(loss, (everything,), num_nonfinite, per_sample)


class Decoupling(Method):
    """Two networks, each trained by its own CE on the rows where the two predictions differ; none differ: no update."""

    title: ClassVar[str] = "Decoupling"
    selects: ClassVar[bool] = False

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        out = decoupling_rows(logits[0], logits[1], labels)
        nothing = (out.num_selected == 0).float()
        return StepLoss(out.loss, (out.selected,), out.num_nonfinite, out.per_sample, nothing)


class CoTeaching(Method):
    """Two networks, each trained on the k small-loss rows that the other picked."""

    title: ClassVar[str] = "Co-teaching"
    num_choices: ClassVar[int] = 2

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        return _exchanged(coteaching_loss(logits[0], logits[1], labels, num_keep=keep.num_keep))


class CoTeachingPlus(CoTeaching):
    """Co-teaching while it warms up, then the same among the rows where predictions differ: k = R(t) of those.

    Where no predictions of a batch differ, its choice is that of Co-teaching.
    """

    title: ClassVar[str] = "Co-teaching+"

    def __init__(self, settings: TrainSettings) -> None:
        self.rounding = keep_rounding(settings.recipe)

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        if keep.warming_up:
            return super().loss(logits, labels, keep)
        out = coteaching_loss(
            logits[0], logits[1], labels, forget_rate=keep.forget_rate, disagreement=True, rounding=self.rounding
        )
        return _exchanged(out)


class JoCoR(Method):
    """Two networks, one joint loss: the k rows with the smallest loss train both (paper, algorithm 1)."""

    title: ClassVar[str] = "JoCoR"
    uses_co_lambda: ClassVar[bool] = True

    def __init__(self, settings: TrainSettings) -> None:
        self.co_lambda = settings.co_lambda

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        out = jocor_loss(logits[0], logits[1], labels, co_lambda=self.co_lambda, num_keep=keep.num_keep)
        return StepLoss(out.loss, (out.selected,), out.num_nonfinite, out.per_sample)


class JointOnly(JoCoR):
    """JoCoR with λ = 0: joint selection, no agreement between the networks."""

    title: ClassVar[str] = "Joint-only"
    uses_co_lambda: ClassVar[bool] = False

    def __init__(self, settings: TrainSettings) -> None:
        self.co_lambda = 0.0


def _exchanged(out: CoTeachingOutput) -> StepLoss:
    masks = (out.selected1, out.selected2)
    return StepLoss(out.loss, masks, out.num_nonfinite, out.per_sample1 + out.per_sample2)


def _own_small_loss(logits: Tensor, labels: Tensor, num_keep: int | Tensor) -> StepLoss:
    """Mean CE of one network's small-loss rows: at λ = 0 the joint loss of a network with itself is twice its CE."""
    # The second network is a constant, so that the gradient is that of one CE as it is; the values are halved, exactly.
    out = jocor_loss(logits, logits.detach(), labels, co_lambda=0.0, num_keep=num_keep)
    out.loss.detach().mul_(0.5)  # the value alone, for less than no_grad takes
    return StepLoss(out.loss, (out.selected,), out.num_nonfinite, out.per_sample.mul_(0.5))


METHODS: dict[str, type[Method]] = {
    "standard": Standard,
    "standard-plus": StandardPlus,
    "f-correction": FCorrection,
    "decoupling": Decoupling,
    "coteaching": CoTeaching,
    "coteaching-plus": CoTeachingPlus,
    "joint-only": JointOnly,
    "jocor": JoCoR,
}


def uses_forget_rate(method: str, val_labels: str | None) -> bool:
    """Whether τ changes anything: which rows train, or which the validation (`--val-labels`) leaves out."""
    return METHODS[method].selects or val_labels == "small-loss"
