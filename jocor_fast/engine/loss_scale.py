"""Loss scaling for float16, whose gradients would vanish: on the device, so no step waits for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

INITIAL_SCALE = 2.0**16
GROWTH, BACKOFF = 2.0, 0.5  # powers of two: scaling rounds nothing
GROWTH_INTERVAL = 2000  # steps without an overflow until the scale is tried twice as large


class LossScale:
    """A factor on the loss that is halved where a gradient overflows, which voids the step, and grows otherwise.

    The rule and its constants are those of `torch.amp.GradScaler`, which asks the device after every step whether to
    make it; here the optimiser's kernel reads that itself.
    """

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.full((), INITIAL_SCALE, device=device)
        self.steps_without_overflow = torch.zeros((), dtype=torch.int32, device=device)
        self._overflow = torch.zeros((), device=device)

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the 0-d loss to differentiate in place of `loss`."""
        return loss * self.scale

    @torch.no_grad()
    def unscale(self, gradients: Sequence[Tensor]) -> Tensor:
        """Divide the gradients by the scale, in place, and adapt the scale.

        Returns:
            0-d float32: not 0 where a gradient is not finite, for the optimiser to leave the step out.
        """
        self._overflow.zero_()
        inverse = self.scale.reciprocal()
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for gradient in gradients:
            by_dtype.setdefault(gradient.dtype, []).append(gradient)
        for alike in by_dtype.values():
            torch._amp_foreach_non_finite_check_and_unscale_(alike, self._overflow, inverse)
        torch._amp_update_scale_(
            self.scale, self.steps_without_overflow, self._overflow, GROWTH, BACKOFF, GROWTH_INTERVAL
        )
        return self._overflow

    def state_dict(self) -> dict[str, Tensor]:
        """Return the scale and how long it has held, not copied."""
        return {"scale": self.scale, "steps_without_overflow": self.steps_without_overflow}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy what `state_dict` returned."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])
