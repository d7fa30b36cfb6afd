"""Methods of one network that keep an estimate of each sample's label: a row of C numbers a sample."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from jocor_fast.arguments import in_unit_interval, not_negative
from jocor_fast.methods.base import GROUP, History, Keep, Method, StepLoss, mean_step, register, without_gradient
from jocor_fast.option import option

if TYPE_CHECKING:
    from torch import Tensor

    from jocor_fast.closed_forms import Rows

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
        import torch

        self.state = {"mean prediction": torch.zeros(len(labels), classes, device=labels.device)}

    @without_gradient
    def _moved_means(self, p: Tensor, samples: Tensor) -> Tensor:
        """The samples' means, with their predictions; a prediction that is NaN leaves its mean as it was."""
        import torch

        means = self.state["mean prediction"]
        old, bounded = means.index_select(0, samples), p.clamp(_LEAST_OF_MEAN, 1.0 - _LEAST_OF_MEAN)
        new = old.lerp((bounded / bounded.sum(1, keepdim=True)).to(old.dtype), 1.0 - self.elr_memory)
        new = torch.where(new.isnan(), old, new)
        means.index_copy_(0, samples, new)
        return new

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        import torch

        from jocor_fast.closed_forms import elr_rows, log_probabilities

        assert keep.samples is not None
        with torch.no_grad():
            log_p = log_probabilities(logits[0])
            p = log_p.exp()
            rows = elr_rows(log_p, p, labels, self._moved_means(p, keep.samples), self.elr_strength)
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
        import torch

        given = torch.zeros(len(labels), classes, device=labels.device).scatter_(1, labels[:, None], 1.0)
        self.state = {"label": given, "mean prediction": given.clone(), "predictions": torch.zeros_like(given[:, 0])}

    def begin_epoch(self, keep: Keep, history: History) -> None:
        if keep.epoch > self.relabel_from * self.epochs:
            self.state["label"].copy_(self.state["mean prediction"])

    @without_gradient
    def _note(self, p: Tensor, samples: Tensor) -> None:
        """Average what the network predicts; a prediction that is NaN changes nothing."""
        import torch

        means, counts = self.state["mean prediction"], self.state["predictions"]
        old, count = means.index_select(0, samples), counts.index_select(0, samples)
        new = old + (p.to(old.dtype) - old) / (count + 1.0).clamp(max=_PREDICTIONS_AVERAGED)[:, None]
        sound = ~new.isnan()
        means.index_copy_(0, samples, torch.where(sound, new, old))
        counts.index_copy_(0, samples, count + sound[:, 0])

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        import torch

        from jocor_fast.closed_forms import Rows, entropy_rows, log_probabilities, soft_cross_entropy_rows

        assert keep.samples is not None
        with torch.no_grad():
            log_p = log_probabilities(logits[0])
            p = log_p.exp()
            self._note(p, keep.samples)
            goal = self.state["label"].index_select(0, keep.samples).to(p.dtype)
            losses, (gradient,) = soft_cross_entropy_rows(log_p, p, goal)
            entropy, (of_entropy,) = entropy_rows(p)
            prior, of_prior = _divergence_from_even_use(p, losses.isfinite())
            rows = Rows(
                losses + self.entropy_weight * entropy + self.prior_weight * prior,
                (gradient + self.entropy_weight * of_entropy + self.prior_weight * of_prior,),
            )
        return mean_step(rows, logits)._replace(per_sample=losses)


def _divergence_from_even_use(p: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """KL(1/C ‖ mean p of the counted rows), 0-d, and B times its gradient with respect to the rows' logits, [B, C]."""
    import torch

    classes = p.shape[1]
    mean = torch.where(counted[:, None], p, 0.0).sum(0) / counted.sum().clamp(min=1)
    mean = mean.clamp(min=torch.finfo(p.dtype).tiny)
    towards = -1.0 / (classes * mean)
    gradient = p * (towards - (p * towards).sum(1, keepdim=True))
    return -(classes * mean).log().mean(), gradient


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
        import torch

        scores = torch.zeros(len(labels), classes, device=labels.device)
        self.state = {"label scores": scores.scatter_(1, labels[:, None], _LABEL_SHARPNESS)}

    def phase(self, epoch: int) -> Hashable:
        """0 while cross-entropy trains, 1 while labels are learnt, 2 while they stay."""
        return int(epoch > self.pencil_from * self.epochs) + int(epoch > self.pencil_until * self.epochs)

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        return mean_step(self._rows(logits[0], labels, keep), logits)

    @without_gradient
    def _rows(self, logits: Tensor, labels: Tensor, keep: Keep) -> Rows:
        from jocor_fast.closed_forms import Rows, cross_entropy_rows, divergence_rows, entropy_rows, log_probabilities

        assert keep.samples is not None
        log_p, phase = log_probabilities(logits), self.phase(keep.epoch)
        if phase == 0:
            return cross_entropy_rows(log_p, labels)
        p, classes = log_p.exp(), log_p.shape[1]
        scores = self.state["label scores"].index_select(0, keep.samples)
        log_label = scores.log_softmax(1)
        losses, (gradient,) = divergence_rows(p, log_label.to(p.dtype))
        if phase == 1:
            entropy, (of_entropy,) = entropy_rows(p)
            losses = losses + self.pencil_entropy * entropy
            gradient = gradient + self.pencil_entropy * of_entropy
            self._learn(scores, log_label.exp(), p, labels, keep.samples)
        return Rows(losses / classes, (gradient / classes,))

    def _learn(self, scores: Tensor, label: Tensor, p: Tensor, labels: Tensor, samples: Tensor) -> None:
        """Let the samples' labels descend; a prediction that is NaN changes nothing."""
        import torch

        given = torch.zeros_like(label).scatter_(1, labels[:, None], 1.0)
        gradient = (label - p.to(label.dtype)) / label.shape[1] + self.pencil_compatibility * (label - given)
        new = scores - self.pencil_rate / _PENCIL_BATCH * gradient
        self.state["label scores"].index_copy_(0, samples, torch.where(new.isnan(), scores, new))
