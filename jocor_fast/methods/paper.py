"""The paper's methods: JoCoR, and the seven that it compares against or consists of."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from jocor_fast._deferred import DeferredModule
from jocor_fast.arguments import check_co_lambda, check_fraction, not_negative_int
from jocor_fast.methods.base import GROUP, FirstStage, Keep, Method, StepLoss, register
from jocor_fast.option import option
from jocor_fast.schedules import keep_rounding

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from jocor_fast import composed_losses, forward_correction, losses, outputs
    from jocor_fast.composed_losses import Terms
    from jocor_fast.noise import estimate
    from jocor_fast.outputs import CoTeachingOutput, JoCoROutput
else:
    torch, composed_losses = DeferredModule("torch"), DeferredModule("jocor_fast.composed_losses")
    forward_correction, losses = DeferredModule("jocor_fast.forward_correction"), DeferredModule("jocor_fast.losses")
    estimate, outputs = DeferredModule("jocor_fast.noise.estimate"), DeferredModule("jocor_fast.outputs")


@register("standard")
class Standard(Method):
    """One network, cross-entropy on everything: Standard+ that keeps the whole batch.

    torch's own cross-entropy wakes threads for 128 rows, and takes up to twice as long. Where every loss is finite the
    two are the same; a row whose loss is not is left out and positive_int, as in every method but F-correction.
    """

    title = "Standard"
    num_networks = 1
    selects = False
    takes_terms = True

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        return own_small_loss(logits[0], labels, keep._replace(num_keep=len(labels)))


@register("standard-plus")
class StandardPlus(Method):
    """One network, its own small-loss rows."""

    title = "Standard+"
    num_networks = 1
    takes_terms = True

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        return own_small_loss(logits[0], labels, keep)


@register("f-correction")
class FCorrection(Method):
    """One network, -log((p·T)[y]) on everything; T is estimated from the predictions of a Standard network.

    A network that has learnt the wrong labels by heart predicts them, and its T is near the identity. So T is estimated
    at the epoch with the best accuracy on held-out noisy labels, as by the code of Patrini et al. (CVPR 2017).
    """

    title = "F-correction"
    num_networks = 1
    selects = False
    stages = ("Standard, for the transition matrix", "F-correction")

    transition_val_fraction: float = option(
        0.2, GROUP, "F",
        "share of the training data to hold out from the network that estimates the transition matrix, by whose noisy "
        "labels its epoch is chosen; 0: the last epoch of a network trained on all",
        check=check_fraction, before=0.0,
    )  # fmt: skip

    def __post_init__(self) -> None:
        self.transition: Tensor | None = None  # T, float64 [C, C]

    def prepare(self, first_stage: FirstStage) -> None:
        self.transition = first_stage("standard", _estimated_transition, self.transition_val_fraction)
        self.log_transition_t = forward_correction.log_transposed(self.transition, torch.float32)

    def summary(self) -> dict[str, Any]:
        return {"transition": None if self.transition is None else self.transition.tolist()}

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        loss, per_sample, num_nonfinite = forward_correction.corrected_loss(logits[0], labels, self.log_transition_t)
        everything = torch.ones_like(labels, dtype=torch.bool)
        return StepLoss(loss, (everything,), num_nonfinite, per_sample)


@register("decoupling")
class Decoupling(Method):
    """Two networks, each trained by its own CE on the rows where the two predictions differ; none differ: no update."""

    title = "Decoupling"
    selects = False
    takes_terms = True

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        if keep.terms is None:
            out = losses.decoupling_rows(logits[0], logits[1], labels)
        else:
            out = outputs.JoCoROutput(*composed_losses.decoupling(logits[0], logits[1], labels, terms=keep.terms))
        nothing = (out.num_selected == 0).float()
        return StepLoss(out.loss, (out.selected,), out.num_nonfinite, out.per_sample, nothing)


@register("coteaching")
class CoTeaching(Method):
    """Two networks, each trained on the k small-loss rows that the other picked."""

    title = "Co-teaching"
    num_choices = 2
    takes_terms = True

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        if keep.terms is not None:
            return _exchanged(_coteaching(logits, labels, keep.terms, num_keep=keep.num_keep))
        return _exchanged(losses.coteaching_loss(logits[0], logits[1], labels, num_keep=keep.num_keep))


@register("coteaching-plus")
class CoTeachingPlus(CoTeaching):
    """Co-teaching while it warms up, then the same among the rows where predictions differ: k = R(t) of those.

    Where no predictions of a batch differ, its choice is that of Co-teaching.
    """

    title = "Co-teaching+"
    recipe: str
    warmup_epochs: int = option(0, GROUP, "N", "Co-teaching+: warm-up epochs of Co-teaching", check=not_negative_int)

    def phase(self, epoch: int) -> Hashable:
        return epoch <= self.warmup_epochs

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        if self.phase(keep.epoch):
            return super().loss(logits, labels, keep)
        rounding = keep_rounding(self.recipe)
        if keep.terms is not None:
            how = {"forget_rate": keep.forget_rate, "disagreement": True, "rounding": rounding}
            return _exchanged(_coteaching(logits, labels, keep.terms, **how))
        out = losses.coteaching_loss(
            logits[0], logits[1], labels, forget_rate=keep.forget_rate, disagreement=True, rounding=rounding
        )
        return _exchanged(out)


@register("joint-only")
class JointOnly(Method):
    """JoCoR with λ = 0: joint selection, no agreement between the networks."""

    title = "Joint-only"
    takes_terms = True

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        return _joint(logits, labels, keep, 0.0)


@register("jocor")
class JoCoR(Method):
    """Two networks, one joint loss: the k rows with the smallest loss train both (paper, algorithm 1)."""

    title = "JoCoR"
    takes_terms = True
    co_lambda: float = option(
        0.9, GROUP, "L", "λ in [0, 1]: weight of the agreement between the networks",
        check=lambda name, value: check_co_lambda(value),
    )  # fmt: skip

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        return _joint(logits, labels, keep, self.co_lambda)


def _joint(logits: tuple[Tensor, ...], labels: Tensor, keep: Keep, co_lambda: float) -> StepLoss:
    out = _jocor(logits[0], logits[1], labels, keep, co_lambda)
    return StepLoss(out.loss, (out.selected,), out.num_nonfinite, out.per_sample)


def _jocor(logits1: Tensor, logits2: Tensor, labels: Tensor, keep: Keep, co_lambda: float) -> JoCoROutput:
    if keep.terms is None:
        return losses.jocor_loss(logits1, logits2, labels, co_lambda=co_lambda, num_keep=keep.num_keep)
    terms, num_keep = keep.terms, keep.num_keep
    out = composed_losses.jocor(logits1, logits2, labels, terms=terms, co_lambda=co_lambda, num_keep=num_keep)
    return outputs.JoCoROutput(*out)


def _coteaching(logits: tuple[Tensor, ...], labels: Tensor, terms: Terms, **settings: Any) -> CoTeachingOutput:
    return outputs.CoTeachingOutput(*composed_losses.coteaching(logits[0], logits[1], labels, terms=terms, **settings))


def _exchanged(out: CoTeachingOutput) -> StepLoss:
    masks = (out.selected1, out.selected2)
    return StepLoss(out.loss, masks, out.num_nonfinite, out.per_sample1 + out.per_sample2)


def own_small_loss(logits: Tensor, labels: Tensor, keep: Keep) -> StepLoss:
    """Mean CE of one network's small-loss rows: at λ = 0 the joint loss of a network with itself is twice its CE."""
    # The second network is a constant: the gradient is that of one CE; the values are halved, exactly.
    out = _jocor(logits, logits.detach(), labels, keep, 0.0)
    out.loss.detach().mul_(0.5)  # the value alone, for less than no_grad takes
    return StepLoss(out.loss, (out.selected,), out.num_nonfinite, out.per_sample.mul_(0.5))


def _estimated_transition(probabilities: np.ndarray) -> Tensor:
    percentile = estimate.anchor_percentile(probabilities.shape[1])
    return torch.from_numpy(estimate.estimate_transition(probabilities, percentile))
