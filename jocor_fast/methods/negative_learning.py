"""Learning from labels that a sample does not have."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from jocor_fast._deferred import DeferredModule
from jocor_fast.arguments import in_unit_interval
from jocor_fast.machine import derived_seed
from jocor_fast.methods.base import GROUP, History, Keep, Method, StepLoss, mean_step, register
from jocor_fast.option import option

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from jocor_fast import closed_forms
    from jocor_fast.closed_forms import Rows
else:
    torch, closed_forms = DeferredModule("torch"), DeferredModule("jocor_fast.closed_forms")

_DRAWS = 5  # the purpose that `derived_seed` is given


@register("nlnl")
class NLNL(Method):
    """Negative learning, then selective negative, then selective positive learning (Kim et al., ICCV 2019).

    −log(1 − p_c) of a class c that is not the label, drawn for each sample and epoch (equation 2): on all rows; then on
    rows whose label has p > 1/C; then cross-entropy on rows whose label has p > γ. A third of the epochs each.
    """

    title = "NLNL"
    num_networks = 1
    selects = False
    epochs: int
    seed: int
    nlnl_threshold: float = option(
        0.5, GROUP, "P", "NLNL: γ, least probability of labels to learn positively", check=in_unit_interval
    )

    def start(self, labels: Tensor, classes: int) -> None:
        self.classes = classes
        self.state = {"other class": torch.zeros_like(labels)}

    def phase(self, epoch: int) -> Hashable:
        """0 for negative, 1 for selective negative, 2 for selective positive learning."""
        return 3 * (epoch - 1) // self.epochs

    def begin_epoch(self, keep: Keep, history: History) -> None:
        others = self.state["other class"]
        generator = torch.Generator(others.device).manual_seed(derived_seed(self.seed, _DRAWS, keep.epoch))
        further = torch.randint(1, max(2, self.classes), others.shape, generator=generator, device=others.device)
        others.copy_((history.labels + further) % self.classes)

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        rows, trains = self._rows(logits[0], labels, keep)
        step = mean_step(rows, logits, trains)
        return step if trains is None else step._replace(skip=(~step.selected[0].any()).float())

    def _rows(self, logits: Tensor, labels: Tensor, keep: Keep) -> tuple[Rows, Tensor | None]:
        """The rows and which of them train; None: all."""
        assert keep.samples is not None
        log_p, phase = closed_forms.log_probabilities(logits), self.phase(keep.epoch)
        p = log_p.exp()
        if phase == 0:
            trains = None
        else:
            least = 1.0 / self.classes if phase == 1 else self.nlnl_threshold
            trains = p.gather(1, labels[:, None])[:, 0] > least
        if phase == 2:
            return closed_forms.cross_entropy_rows(log_p, labels, p), trains
        others = self.state["other class"].index_select(0, keep.samples)
        return closed_forms.complementary_rows(log_p, p, others), trains
