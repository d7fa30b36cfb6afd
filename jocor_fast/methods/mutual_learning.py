"""Two networks that teach each other on all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jocor_fast._deferred import DeferredModule
from jocor_fast.methods.base import Keep, Method, StepLoss, mean_step, register

if TYPE_CHECKING:
    from torch import Tensor

    from jocor_fast import closed_forms
else:
    closed_forms = DeferredModule("jocor_fast.closed_forms")


@register("dml")
class DeepMutualLearning(Method):
    """Cross-entropy and the divergence from the other's prediction, a constant to each (Zhang et al., CVPR 2018).

    Both networks are updated in one step; the authors update the second by a new prediction of the first.
    """

    title = "Mutual learning"
    selects = False

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        log_p1, log_p2 = map(closed_forms.log_probabilities, logits)
        return mean_step(closed_forms.dml_rows(log_p1, log_p2, labels), logits)
