"""A layer for the noise on top of the network, trained with it."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from jocor_fast.arguments import not_negative_int
from jocor_fast.methods.base import GROUP, History, Keep, Method, StepLoss, mean_step, register, without_gradient
from jocor_fast.option import option

if TYPE_CHECKING:
    from torch import Tensor

_SHARE_WRONG = 0.1  # of the matrix that a run without warm-up begins with


@register("adaptation")
class Adaptation(Method):
    """−log((p T)[y]) with a matrix T that is learnt (Goldberger and Ben-Reuven, ICLR 2017, simple model).

    T = softmax of parameters, by rows; T[i, j] = P(noisy j | clean i). Cross-entropy trains the network for some epochs
    first; then T begins as how often each class that was predicted in the last of them has each label.
    """

    title = "Adaptation layer"
    num_networks = 1
    selects = False
    adaptation_warmup: int = option(
        2, GROUP, "N", "adaptation: epochs of cross-entropy before the layer",
        check=not_negative_int,
    )  # fmt: skip

    def start(self, labels: Tensor, classes: int) -> None:
        import torch

        others = math.log(_SHARE_WRONG / max(1, classes - 1))
        scores = torch.full((classes, classes), others, device=labels.device)
        scores.fill_diagonal_(math.log(1.0 - _SHARE_WRONG))
        self.state = {"transition scores": scores.requires_grad_()}

    def phase(self, epoch: int) -> Hashable:
        return epoch > self.adaptation_warmup

    @without_gradient
    def begin_epoch(self, keep: Keep, history: History) -> None:
        import torch

        scores = self.state["transition scores"]
        predicted = history.predictions()[0]
        if keep.epoch == self.adaptation_warmup + 1 and (predicted >= 0).any():
            pairs = (predicted * len(scores) + history.labels)[predicted >= 0]
            counts = torch.bincount(pairs, minlength=scores.numel()).view_as(scores) + 1.0
            scores.copy_((counts / counts.sum(1, keepdim=True)).log())

    def summary(self) -> dict[str, Any]:
        return {"transition": self.state["transition scores"].detach().double().softmax(1).tolist()}

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        import torch

        from jocor_fast.closed_forms import cross_entropy_rows, differentiable, log_probabilities, row_shares

        with torch.no_grad():
            log_p = log_probabilities(logits[0])
            cross_entropy = cross_entropy_rows(log_p, labels)
        if not self.phase(keep.epoch):
            return mean_step(cross_entropy, logits)
        scores = self.state["transition scores"]
        with torch.no_grad():
            log_t = scores.log_softmax(1).to(log_p.dtype)
            parts = log_p + log_t.t().index_select(0, labels)  # log p_i T[i, y]
            losses = -parts.logsumexp(1)
            posterior = (parts + losses[:, None]).exp()  # of the clean class, by network and label
            selected, share, num_nonfinite = row_shares(losses)
            weighted = torch.where(selected[:, None], posterior, 0.0) * share[:, None]
            of_logits = torch.where(selected[:, None], log_p.exp(), 0.0) * share[:, None] - weighted
            given = torch.zeros_like(log_p).scatter_(1, labels[:, None], 1.0)
            of_scores = log_t.exp() * weighted.sum(0)[:, None] - weighted.t() @ given
            value = torch.where(selected, losses, 0.0).dot(share)
        loss = differentiable(value, (of_logits, of_scores), (logits[0], scores))
        return StepLoss(loss, (selected,), num_nonfinite, losses)
