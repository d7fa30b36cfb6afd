"""TAkS: each epoch trains on the samples of the whole set whose losses so far are the smallest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jocor_fast._deferred import DeferredModule
from jocor_fast.arguments import not_negative
from jocor_fast.methods.base import GROUP, Keep, Method, StepLoss, register
from jocor_fast.methods.paper import own_small_loss
from jocor_fast.option import option

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from jocor_fast import losses
else:
    torch, losses = DeferredModule("torch"), DeferredModule("jocor_fast.losses")


@register("taks")
class TAkS(Method):
    """One network on k = (1 − τ) · N samples, chosen anew for each epoch (Song et al., WACV 2022, arXiv 2003.03179).

    After an epoch each of the N samples adds a loss in [0, 1] to its sum: with p the largest probability, (1 − p) / 2
    where that class is the label, (1 + p) / 2 where it is another. The next epoch has the k smallest sums plus normal
    noise of deviation `perturbation` · √(k · epochs), which bounds the regret of its choices for any losses. The
    first epoch has k samples at random.
    """

    title = "TAkS"
    num_networks = 1
    takes_terms = True
    chooses_samples = True
    epochs: int
    perturbation: float = option(
        0.005, GROUP, "P", "noise on the sums of losses that samples are chosen by, over √(k · epochs); 0: none",
        check=not_negative,
    )  # fmt: skip

    def start(self, labels: Tensor, classes: int) -> None:
        self.state["summed_losses"] = torch.zeros(len(labels), device=labels.device)

    def choose(
        self,
        epoch: int,
        num_keep: int,
        probabilities: Callable[[], Tensor],
        labels: Tensor,
        generator: torch.Generator,
        groups: Tensor | None,
    ) -> Tensor:
        sums = self.state["summed_losses"]
        noise = torch.randn(len(labels), generator=generator, device=labels.device)
        if epoch == 1:
            return losses.select_small_loss(noise, num_keep, groups=groups)
        largest, predicted = probabilities().nan_to_num(nan=1.0).max(1)  # of NaN: the largest loss
        sums += torch.where(predicted == labels, 1 - largest, 1 + largest).div(2).to(sums.dtype)
        deviation = self.perturbation * (num_keep * self.epochs) ** 0.5
        return losses.select_small_loss(sums + deviation * noise, num_keep, groups=groups)

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        return own_small_loss(logits[0], labels, keep._replace(num_keep=len(labels)))
