"""What holds for one epoch: its learning rate, β1, keep rate and number of kept rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from jocor_fast import schedules
from jocor_fast.engine.processes import ALONE, Processes
from jocor_fast.engine.settings import ADAPTIVE, TrainSettings
from jocor_fast.errors import ArgumentValueError
from jocor_fast.losses import num_keep
from jocor_fast.methods import METHODS, Keep


class StepRates(NamedTuple):
    """What a step reads of its epoch's plan. Tensors are read on the device, so a captured step follows them."""

    lr: float | Tensor
    beta1: float  # Adam's, which its kernel takes from the host
    keep: Keep


@dataclass(frozen=True)
class EpochPlan:
    """The schedules of `jocor_fast.schedules`, read for one epoch."""

    epoch: int  # from 1
    lr: float
    beta1: float  # Adam's
    keep_rate: float  # R(t), 1 for a method that does not select by loss
    forget_rate: float | None  # τ as the run has estimated it so far; None where it is given, or not used
    num_keep: int  # k, of each batch, or of each process's part of it where that selects alone
    samples: int  # that it is drawn from: all, or those that the method chooses of them
    steps: int
    batch_size: int  # rows in all processes together (all N samples where they are fewer than a batch)
    own_rows: int  # of these, in each process

    @property
    def rates(self) -> StepRates:
        """What its steps read, as numbers."""
        return StepRates(self.lr, self.beta1, Keep(self.num_keep, 1.0 - self.keep_rate, self.epoch))


class DeviceRates:
    """Rates that stay in their places on a device while their values follow the epochs."""

    def __init__(self, device: torch.device) -> None:
        # The optimisers' CUDA kernels read the rate as float32. On the CPU it is read as float64, and the steps are
        # those of a Python float.
        self.lr = torch.zeros((), dtype=torch.float32 if device.type == "cuda" else torch.float64, device=device)
        self.num_keep = torch.ones((), dtype=torch.int64, device=device)
        self.forget_rate = torch.zeros((), dtype=torch.float64, device=device)

    def load(self, plan: EpochPlan) -> StepRates:
        """Write the epoch's values; nothing waits for the device."""
        self.lr.fill_(plan.lr)
        self.num_keep.fill_(plan.num_keep)
        self.forget_rate.fill_(1.0 - plan.keep_rate)
        return StepRates(self.lr, plan.beta1, Keep(self.num_keep, self.forget_rate, plan.epoch))


def epoch_samples(settings: TrainSettings, num_samples: int) -> int:
    """Return how many of the samples an epoch is drawn from: all, or those that the method chooses of them."""
    if not METHODS[settings.method].chooses_samples:
        return num_samples
    assert not isinstance(settings.forget_rate, str)  # TrainSettings refuses it
    return num_keep(num_samples, settings.forget_rate, rounding=schedules.keep_rounding(settings.recipe))


def whole_batch(settings: TrainSettings, num_samples: int, processes: Processes = ALONE) -> int:
    """Return the rows of a batch, in all processes together: at most all samples, and as many in each process.

    Raises:
        ValueError: the processes cannot share the batch evenly, or there are fewer samples than processes.
    """
    count, batch_size, num_samples = processes.count, settings.batch_size, epoch_samples(settings, num_samples)
    if settings.batch_scope == "process":
        batch_size *= count
    elif batch_size % count:
        raise ArgumentValueError(
            "batch_size", f"must be a multiple of the {count} processes that share it, got {batch_size}"
        )
    if num_samples < count:
        raise ValueError(f"training needs a sample for each of the {count} processes, got {num_samples}")
    return min(batch_size, num_samples - num_samples % count)


def unfinished_schedule(settings: TrainSettings) -> str | None:
    """Return a sentence where the run ends before its method is at full strength; else None."""
    method, epochs = METHODS[settings.method], schedules.trained_epochs(settings.epochs, settings.recipe)
    unreached = method.of(settings.as_dict()).unreached(epochs)
    if unreached is not None:
        return (
            f"the run ends with epoch {epochs}, and {method.title} {unreached}: it leaves no sample out; more epochs, "
            "or an earlier one, come to it"
        )
    return _unfinished_ramp(settings) if method.selects else None


def _unfinished_ramp(settings: TrainSettings) -> str | None:
    """Return a sentence where the run ends before its ramp and never reaches its forget rate; else None."""
    ramp, recipe, adaptive = settings.ramp_epochs, settings.recipe, settings.forget_rate == ADAPTIVE
    rate = 0.5 if isinstance(settings.forget_rate, str) else settings.forget_rate
    epochs = schedules.trained_epochs(settings.epochs, recipe)
    least = schedules.keep_rate(epochs, forget_rate=rate, ramp_epochs=ramp, recipe=recipe)
    if least <= 1.0 - rate:
        return None
    left_out = f"{100 * (1 - least):.3g} % of a batch are left out, not the forget rate's {100 * rate:.3g} %"
    if adaptive:
        left_out = f"{100 * (1 - least) / rate:.3g} % of the forget rate are left out"
    return (
        f"the ramp of {ramp} epochs is longer than the run of {epochs}: at most {left_out}; more epochs or a shorter "
        "ramp come to it"
    )


def plan_epoch(
    settings: TrainSettings,
    epoch: int,
    num_samples: int,
    processes: Processes = ALONE,
    *,
    estimated: float | None = None,
) -> EpochPlan:
    """Read every schedule for an epoch (from 1) of a run on `num_samples` samples.

    Args:
        settings: of the run.
        epoch: t.
        num_samples: N.
        processes: those that train together.
        estimated: τ as the run has estimated it so far, where the settings say that it is adaptive.
    """
    recipe = settings.recipe
    assert settings.decay_start is not None  # TrainSettings puts the default in
    keep_rate, forget_rate = 1.0, None
    if METHODS[settings.method].selects:
        rate = settings.forget_rate
        if isinstance(rate, str):
            assert estimated is not None
            rate = forget_rate = estimated
        keep_rate = schedules.keep_rate(epoch, forget_rate=rate, ramp_epochs=settings.ramp_epochs, recipe=recipe)
    factor = schedules.planned_lr_factor(
        settings.lr_plan, epoch, epochs=settings.epochs, decay_start=settings.decay_start, recipe=recipe
    )
    batch_size, samples = whole_batch(settings, num_samples, processes), epoch_samples(settings, num_samples)
    own_rows = batch_size // processes.count
    selected_from = batch_size if settings.selection_scope == "global" else own_rows
    return EpochPlan(
        epoch=epoch,
        lr=settings.lr * factor,
        beta1=schedules.adam_beta1(
            epoch, decay_start=settings.decay_start, recipe=recipe, beta1_after=settings.beta1_after
        ),
        keep_rate=keep_rate,
        forget_rate=forget_rate,
        num_keep=num_keep(selected_from, 1.0 - keep_rate, rounding=schedules.keep_rounding(recipe)),
        samples=samples,
        steps=schedules.steps_per_epoch(samples, batch_size, recipe, settings.max_batches),
        batch_size=batch_size,
        own_rows=own_rows,
    )
