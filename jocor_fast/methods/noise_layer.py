"""A layer for the noise on top of the network, trained with it."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from jocor_fast._deferred import DeferredModule
from jocor_fast.arguments import not_negative_int
from jocor_fast.methods.base import GROUP, History, Keep, Method, StepLoss, mean_step, register
from jocor_fast.option import option

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from jocor_fast import closed_forms
else:
    torch, closed_forms = DeferredModule("torch"), DeferredModule("jocor_fast.closed_forms")

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
        others = math.log(_SHARE_WRONG / max(1, classes - 1))
        scores = torch.full((classes, classes), others, device=labels.device)
        scores.fill_diagonal_(math.log(1.0 - _SHARE_WRONG))
        self.state = {"transition scores": scores.requires_grad_()}

    def phase(self, epoch: int) -> Hashable:
        return epoch > self.adaptation_warmup

    def begin_epoch(self, keep: Keep, history: History) -> None:
        scores = self.state["transition scores"].detach()
        predicted = history.predictions()[0]
        if keep.epoch == self.adaptation_warmup + 1 and (predicted >= 0).any():
            pairs = (predicted * len(scores) + history.labels)[predicted >= 0]
            counts = torch.bincount(pairs, minlength=scores.numel()).view_as(scores) + 1.0
            scores.copy_((counts / counts.sum(1, keepdim=True)).log())

    def summary(self) -> dict[str, Any]:
        return {"transition": self.state["transition scores"].detach().double().softmax(1).tolist()}

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        log_p = closed_forms.log_probabilities(logits[0])
        if not self.phase(keep.epoch):
            return mean_step(closed_forms.cross_entropy_rows(log_p, labels), logits)
        log_t = self.state["transition scores"].log_softmax(1)
        parts = log_p + log_t.detach().t().index_select(0, labels)  # log p_i T[i, y]
        losses = -parts.logsumexp(1)
        selected, count, num_nonfinite = closed_forms.rows_that_train(losses)
        column = selected[:, None]
        posterior = torch.where(column, (parts + losses[:, None]).exp_(), 0.0)  # of the clean class, given the label
        of_logits = torch.where(column, log_p.exp(), 0.0) - posterior
        given = torch.zeros_like(log_p).scatter_(1, labels[:, None], 1.0)
        of_log_t = -(posterior.t() @ given)
        total = torch.where(selected, losses, 0.0).sum()
        loss = closed_forms.value_with_slopes(total, (of_logits, of_log_t), (logits[0], log_t))
        return StepLoss(loss / count, (selected,), num_nonfinite, losses)
