"""The public loss functions."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class JoCoROutput(NamedTuple):
    """What `jocor_loss` returns; nothing of it waits for the device."""

    loss: Tensor  # 0-d, differentiable in both logits; 0 where nothing is selected
    per_sample: Tensor  # [B], detached; 0 for ignored rows, as computed (inf, NaN) for non-finite ones
    selected: Tensor  # [B] bool: the rows whose losses are averaged
    num_selected: Tensor  # 0-d int64
    num_nonfinite: Tensor  # 0-d int64: eligible rows whose per_sample is not finite
