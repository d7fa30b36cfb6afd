"""Two networks that teach each other on all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jocor_fast.methods.base import Keep, Method, StepLoss, mean_step, register

if TYPE_CHECKING:
    from torch import Tensor


@register("dml")
class DeepMutualLearning(Method):
    """Cross-entropy and the divergence from the other's prediction, a constant to each (Zhang et al., CVPR 2018).

    Both networks are updated in one step; the authors update the second by a new prediction of the first.
    """

    title = "Mutual learning"
    selects = False

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        import torch

        from jocor_fast.closed_forms import dml_rows, log_probabilities

        with torch.no_grad():
            rows = dml_rows(log_probabilities(logits[0]), log_probabilities(logits[1]), labels)
        return mean_step(rows, logits)
