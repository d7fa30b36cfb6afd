"""What the losses return."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class JoCoROutput(NamedTuple):
    """The result of `jocor_loss`; it stays on the device.

    Attributes:
        loss: 0-d, differentiable in both logits; 0 where nothing is selected.
        per_sample: [B], detached; 0 for ignored rows, as computed (inf, NaN) for non-finite ones.
        selected: [B] bool, the rows whose losses are averaged.
        num_selected: 0-d int64.
        num_nonfinite: 0-d int64, eligible rows whose per_sample is not finite.
    """

    loss: Tensor
    per_sample: Tensor
    selected: Tensor
    num_selected: Tensor
    num_nonfinite: Tensor


class CoresOutput(NamedTuple):
    """The result of `cores_loss`; it stays on the device.

    Attributes:
        loss: 0-d, differentiable in the logits; 0 where nothing is selected.
        per_sample: [B], detached; 0 for ignored rows, as computed (inf, NaN) for non-finite ones.
        selected: [B] bool, the rows whose losses are averaged.
        num_selected: 0-d int64.
        num_nonfinite: 0-d int64, rows whose per_sample is not finite.
    """

    loss: Tensor
    per_sample: Tensor
    selected: Tensor
    num_selected: Tensor
    num_nonfinite: Tensor


class CoTeachingOutput(NamedTuple):
    """The result of `coteaching_loss`; it stays on the device.

    Attributes:
        loss: 0-d, differentiable in both logits; mean CE1 over selected2 + mean CE2 over selected1.
        per_sample1: [B], detached, CE1; 0 for ignored rows, as computed (inf, NaN) for non-finite ones.
        per_sample2: [B], detached, CE2 likewise.
        selected1: [B] bool, the rows that network 1 chose, which train network 2.
        selected2: [B] bool, the rows that network 2 chose, which train network 1.
        num_selected1: 0-d int64.
        num_selected2: 0-d int64.
        num_nonfinite: 0-d int64, eligible rows whose CE1 or CE2 is not finite.
    """

    loss: Tensor
    per_sample1: Tensor
    per_sample2: Tensor
    selected1: Tensor
    selected2: Tensor
    num_selected1: Tensor
    num_selected2: Tensor
    num_nonfinite: Tensor


class DecouplingOutput(NamedTuple):
    """The result of `decoupling_loss`; it stays on the device.

    Attributes:
        loss: 0-d, differentiable in both logits; 0 where no predictions differ.
        selected: [B] bool, the rows with differing predictions and a finite loss.
        num_selected: 0-d int64.
    """

    loss: Tensor
    selected: Tensor
    num_selected: Tensor
