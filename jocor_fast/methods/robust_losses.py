"""Methods that put another loss in the place of Standard's cross-entropy: GCE, SCE, NCE+RCE and CORES²."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from jocor_fast._deferred import DeferredModule
from jocor_fast.arguments import check_positive_part, in_unit_interval, not_negative, not_negative_int, positive_int
from jocor_fast.methods.base import GROUP, History, Keep, Method, StepLoss, register
from jocor_fast.option import option

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from jocor_fast import closed_forms, robust_losses
else:
    torch, closed_forms = DeferredModule("torch"), DeferredModule("jocor_fast.closed_forms")
    robust_losses = DeferredModule("jocor_fast.robust_losses")


@register("gce")
class GeneralisedCrossEntropy(Method):
    """One network, the truncated generalised cross-entropy (Zhang and Sabuncu, NeurIPS 2018, section 3.3).

    Up to its first pruning it trains on everything. Then, every few epochs, the samples whose label has a probability
    of at most the truncation are left out until the next pruning. The paper takes the probability under its best
    weights so far; here it is the moving mean of what the steps saw, which needs no validation set.
    """

    title = "GCE"
    num_networks = 1
    selects = False
    sieves = True
    gce_q: float = option(0.7, GROUP, "Q", "q in (0, 1] of (1 − p^q) / q", check=check_positive_part)
    gce_truncation: float = option(
        0.5, GROUP, "K", "probability of the label up to which a sample is pruned; 0 prunes none",
        check=in_unit_interval,
    )  # fmt: skip
    gce_prune_from: int = option(40, GROUP, "N", "epoch of the first pruning", check=positive_int)
    gce_prune_every: int = option(10, GROUP, "N", "epochs between prunings", check=positive_int)

    def start(self, labels: Tensor, classes: int) -> None:
        self.state = {"kept": torch.ones_like(labels, dtype=torch.bool)}

    def begin_epoch(self, keep: Keep, history: History) -> None:
        since = keep.epoch - self.gce_prune_from
        if since >= 0 and since % self.gce_prune_every == 0:
            probability = history.probabilities()[0]  # NaN, of a sample never seen, is not pruned
            self.state["kept"].copy_(~(probability <= self.gce_truncation))

    def unreached(self, epochs: int) -> str | None:
        if self.gce_truncation == 0 or self.gce_prune_from <= epochs:
            return None
        return f"prunes first in epoch {self.gce_prune_from}"

    def phase(self, epoch: int) -> Hashable:
        return epoch >= self.gce_prune_from and self.gce_truncation > 0

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        if not self.phase(keep.epoch):
            return _mean(logits[0], labels, "gce", self.gce_q, 0.0)
        assert keep.samples is not None
        rows = robust_losses.loss_of_rows(logits[0], labels, "gce", self.gce_q, 0.0)
        kept = self.state["kept"].index_select(0, keep.samples)
        selected, count, num_nonfinite = closed_forms.rows_that_train(rows.detach(), kept)
        loss = torch.where(selected, rows, 0.0).sum() / count
        return StepLoss(loss, (selected,), num_nonfinite, rows.detach())


@register("sce")
class SymmetricCrossEntropy(Method):
    """One network, α times cross-entropy plus β times the reverse one, on everything (Wang et al., ICCV 2019)."""

    title = "SCE"
    num_networks = 1
    selects = False
    sce_alpha: float = option(0.1, GROUP, "A", "α, the weight of the cross-entropy", check=not_negative)
    sce_beta: float = option(1.0, GROUP, "B", "β, the weight of the reverse cross-entropy", check=not_negative)

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        return _mean(logits[0], labels, "sce", self.sce_alpha, self.sce_beta)


@register("nce-rce")
class NormalisedAndReverseCrossEntropy(Method):
    """One network, α times the normalised plus β times the reverse cross-entropy (Ma et al., ICML 2020)."""

    title = "NCE+RCE"
    num_networks = 1
    selects = False
    nce_rce_alpha: float = option(1.0, GROUP, "A", "α, the weight of the normalised cross-entropy", check=not_negative)
    nce_rce_beta: float = option(1.0, GROUP, "B", "β, the weight of the reverse cross-entropy", check=not_negative)

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        return _mean(logits[0], labels, "nce_rce", self.nce_rce_alpha, self.nce_rce_beta)


LOG_SMALLEST = -18.420680743952367  # log 1e-8


@register("cores")
class Cores(Method):
    """One network, cross-entropy less β times its mean over all classes, on the rows of its sieve (CORES², ICLR 2021).

    β is 0 at first and then rises to its value; later on the sieve keeps the rows with n ≤ S / C, without τ.

    The paper's loss has no lower bound: a network gains without end by logits that only grow. The authors' code takes
    −log(p + 1e-8), and so do we, nearly: no logit counts as further than log 1e-8 below the largest.
    """

    title = "CORES²"
    num_networks = 1
    selects = False
    sieves = True
    cores_beta: float = option(2.0, GROUP, "B", "β, the weight of confidence, after its ramp", check=not_negative)
    cores_beta_from: int = option(10, GROUP, "N", "epochs before β rises", check=not_negative_int)
    cores_beta_ramp: int = option(30, GROUP, "N", "epochs over which β rises", check=positive_int)
    cores_sieve_after: int = option(30, GROUP, "N", "epochs before the sieve", check=not_negative_int)

    def unreached(self, epochs: int) -> str | None:
        return f"has its sieve after epoch {self.cores_sieve_after}" if self.cores_sieve_after >= epochs else None

    def phase(self, epoch: int) -> tuple[float, bool]:
        """Return β and whether there is a sieve."""
        part = min(max(epoch - self.cores_beta_from, 0) / self.cores_beta_ramp, 1.0)
        return self.cores_beta * part, epoch > self.cores_sieve_after

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        beta, sieve = self.phase(keep.epoch)
        # Through amax too: without its gradient the largest logit would still be driven up. Its distance is bounded, as
        # log 1e-8 would be rounded next to a large logit.
        bounded = (logits[0] - logits[0].amax(1, keepdim=True)).clamp(min=LOG_SMALLEST)
        return _mean(bounded, labels, "cores", 0.0, beta, sieve=sieve)


def _mean(logits: Tensor, labels: Tensor, kind: str, a: float, b: float, *, sieve: bool = False) -> StepLoss:
    out = robust_losses.selected_mean(logits, labels, kind, a, b, sieve=sieve)
    return StepLoss(out.loss, (out.selected,), out.num_nonfinite, out.per_sample)
