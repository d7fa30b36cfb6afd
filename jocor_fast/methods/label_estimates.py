"""Methods of one network that keep an estimate of each sample's label: a row of C numbers a sample."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING

from jocor_fast._deferred import DeferredModule
from jocor_fast.arguments import in_unit_interval, not_negative
from jocor_fast.methods.base import GROUP, History, Keep, Method, StepLoss, mean_step, register
from jocor_fast.option import option

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from jocor_fast import closed_forms
    from jocor_fast.closed_forms import Rows
else:
    torch, closed_forms = DeferredModule("torch"), DeferredModule("jocor_fast.closed_forms")

_LEAST_OF_MEAN = 1e-4  # the authors' bound on what enters ELR's moving mean
_PREDICTIONS_AVERAGED = 10  # of a sample, for joint optimisation; the authors', an epoch each
_LABEL_SHARPNESS = 10.0  # PENCIL's K, by which a given label outweighs the other classes at first
_PENCIL_BATCH = 128  # rows, over which its authors average the loss whose gradient moves the labels


@register("elr")
class ELR(Method):
    """Cross-entropy, and a term that keeps predictions near their moving means (Liu et al., NeurIPS 2020, eq. 6).

    A step first moves the mean of each of its samples, as the authors' code does.
    """

    title = "ELR"
    num_networks = 1
    selects = False
    elr_memory: float = option(
        0.7, GROUP, "B", "ELR: β in [0, 1], what stays of a sample's mean prediction in a step", check=in_unit_interval
    )
    elr_strength: float = option(3.0, GROUP, "L", "ELR: weight of the term", check=not_negative)

    def start(self, labels: Tensor, classes: int) -> None:
        self.state = {"mean prediction": torch.zeros(len(labels), classes, device=labels.device)}

    def _moved_means(self, p: Tensor, samples: Tensor) -> Tensor:
        """The samples' means, with their predictions; a prediction that is NaN leaves its mean as it was."""
        means = self.state["mean prediction"]
        old, bounded = means.index_select(0, samples), p.clamp(_LEAST_OF_MEAN, 1.0 - _LEAST_OF_MEAN)
        new = old.lerp((bounded / bounded.sum(1, keepdim=True)).to(old.dtype), 1.0 - self.elr_memory)
        new = torch.where(new.isnan(), old, new)
        means.index_copy_(0, samples, new)
        return new

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        assert keep.samples is not None
        log_p = closed_forms.log_probabilities(logits[0])
        p = log_p.exp()
        rows = closed_forms.elr_rows(log_p, p, labels, self._moved_means(p, keep.samples), self.elr_strength)
        return mean_step(rows, logits)


@register("joint-optimization")
class JointOptimization(Method):
    """Labels that become the network's own predictions (Tanaka et al., CVPR 2018, equations 4 to 8, soft labels).

    The loss is CE(label, p) + α KL(1/C ‖ mean p of the batch) + β H(p). From an epoch on a sample's label is, before
    each epoch, the mean of its last ten predictions (here a moving mean once there are ten, which is a tenth of the
    memory). The authors then train a second network on the labels; here the network trains on as the rate falls.
    """

    title = "Joint optimisation"
    num_networks = 1
    selects = False
    epochs: int
    relabel_from: float = option(
        0.35, GROUP, "S", "joint optimisation: share of the epochs before labels change", check=in_unit_interval
    )
    prior_weight: float = option(
        1.2, GROUP, "A", "joint optimisation: α, weight of even use of classes", check=not_negative
    )
    entropy_weight: float = option(0.8, GROUP, "B", "joint optimisation: β, weight of the entropy", check=not_negative)

    def start(self, labels: Tensor, classes: int) -> None:
        given = torch.zeros(len(labels), classes, device=labels.device).scatter_(1, labels[:, None], 1.0)
        self.state = {"label": given, "mean prediction": given.clone(), "predictions": torch.zeros_like(given[:, 0])}

    def begin_epoch(self, keep: Keep, history: History) -> None:
        if keep.epoch > self.relabel_from * self.epochs:
            self.state["label"].copy_(self.state["mean prediction"])

    def _note(self, p: Tensor, samples: Tensor) -> None:
        """Average what the network predicts; a prediction that is NaN changes nothing."""
        means, counts = self.state["mean prediction"], self.state["predictions"]
        old, count = means.index_select(0, samples), counts.index_select(0, samples)
        weight = (count + 1.0).clamp_(max=_PREDICTIONS_AVERAGED)
        new = torch.addcdiv(old, p.to(old.dtype) - old, weight[:, None])
        sound = new == new  # false of NaN, for half of what isnan and its reverse take
        means.index_copy_(0, samples, torch.where(sound, new, old))
        counts.index_copy_(0, samples, count + sound[:, 0])

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        assert keep.samples is not None
        log_p = closed_forms.log_probabilities(logits[0])
        p = log_p.exp()
        self._note(p, keep.samples)
        goal = self.state["label"].index_select(0, keep.samples).to(p.dtype)
        losses = -torch.where(goal > 0, goal * log_p, 0.0).sum(1)  # 0 · −∞ is 0 here
        counted, count, num_nonfinite = closed_forms.rows_that_train(losses)
        column, classes = counted[:, None], p.shape[1]
        p, goal = torch.where(column, p, 0.0), torch.where(column, goal, 0.0)
        mean = (p.sum(0) / count).clamp_(min=torch.finfo(p.dtype).tiny)
        prior = -mean.log().mean() - math.log(classes)  # KL(1/C ‖ mean)
        entropies = self.entropy_weight * torch.special.entr(p)
        total = torch.where(counted, losses, 0.0).sum() + entropies.sum() + self.prior_weight * prior * count
        # Of β H(p) + α prior the gradient is u − p Σ u, with u = −β p log p − α p / (C mean); of CE it is p − goal.
        parts = entropies.addcdiv_(p, mean, value=-self.prior_weight / classes)
        slopes = parts.addcmul_(p, 1.0 - parts.sum(1, keepdim=True)).sub_(goal)
        loss = closed_forms.value_with_slopes(total, (slopes,), logits)
        return StepLoss(loss / count, (counted,), num_nonfinite, losses)


@register("pencil")
class Pencil(Method):
    """Labels that are learnt as distributions (Yi and Wu, CVPR 2019, equations 3 to 9), in three stages.

    First cross-entropy. Then KL(p‖l)/C + β H(p)/C, where l = softmax(y) is a sample's label; its y, which begins as 10
    times the given label, descends by that loss and α CE(given label, l). Then KL(p‖l)/C with labels that stay.
    """

    title = "PENCIL"
    num_networks = 1
    selects = False
    epochs: int
    pencil_from: float = option(
        0.22, GROUP, "S", "PENCIL: share of the epochs before labels are learnt", check=in_unit_interval
    )
    pencil_until: float = option(
        0.625, GROUP, "S", "PENCIL: share of the epochs after which labels stay", check=in_unit_interval
    )
    pencil_compatibility: float = option(0.1, GROUP, "A", "PENCIL: α, weight of the given labels", check=not_negative)
    pencil_entropy: float = option(0.4, GROUP, "B", "PENCIL: β, weight of the predictions' entropy", check=not_negative)
    pencil_rate: float = option(
        600.0, GROUP, "R", "PENCIL: λ, learning rate of the labels, as for batches of 128", check=not_negative
    )

    def start(self, labels: Tensor, classes: int) -> None:
        scores = torch.zeros(len(labels), classes, device=labels.device)
        self.state = {"label scores": scores.scatter_(1, labels[:, None], _LABEL_SHARPNESS)}

    def phase(self, epoch: int) -> Hashable:
        """0 while cross-entropy trains, 1 while labels are learnt, 2 while they stay."""
        return int(epoch > self.pencil_from * self.epochs) + int(epoch > self.pencil_until * self.epochs)

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        return mean_step(self._rows(logits[0], labels, keep), logits)

    def _rows(self, logits: Tensor, labels: Tensor, keep: Keep) -> Rows:
        assert keep.samples is not None
        log_p, phase = closed_forms.log_probabilities(logits), self.phase(keep.epoch)
        if phase == 0:
            return closed_forms.cross_entropy_rows(log_p, labels)
        p, classes = log_p.exp(), log_p.shape[1]
        scores = self.state["label scores"].index_select(0, keep.samples)
        log_label = closed_forms.log_probabilities(scores)
        entropy_weight = self.pencil_entropy if phase == 1 else 0.0
        losses, (gradient,) = closed_forms.divergence_rows(p, log_label.to(p.dtype), entropy_weight)
        if phase == 1:
            self._learn(scores, log_label.exp(), p, labels, keep.samples)
        return closed_forms.Rows(losses / classes, (gradient / classes,))

    def _learn(self, scores: Tensor, label: Tensor, p: Tensor, labels: Tensor, samples: Tensor) -> None:
        """Let the samples' labels descend; a prediction that is NaN changes nothing."""
        given = torch.zeros_like(label).scatter_(1, labels[:, None], 1.0)
        gradient = (label - p.to(label.dtype)) / label.shape[1] + self.pencil_compatibility * (label - given)
        new = scores.sub(gradient, alpha=self.pencil_rate / _PENCIL_BATCH)
        self.state["label scores"].index_copy_(0, samples, torch.where(new.isnan(), scores, new))
