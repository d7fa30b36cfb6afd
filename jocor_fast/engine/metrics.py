"""The line of metrics.jsonl that an epoch leaves, an entry a metric, and whether the run has diverged.

What a metric counts is counted on the device, by each process of its own rows. The numbers of all metrics come to the
host in one transfer, those of all processes together; of its own each metric makes its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.engine.evaluate import Accuracy
from jocor_fast.engine.plan import EpochPlan
from jocor_fast.engine.processes import Processes
from jocor_fast.engine.state import TrainingState

Metrics = dict[str, Any]  # a line of metrics.jsonl
Numbers = list[list[float]]  # what was measured, of each process by its rank
UNSOUND = "a parameter or running statistic is not finite"


class Epoch(NamedTuple):
    """An epoch whose steps are done."""

    plan: EpochPlan
    log: EpochLog
    state: TrainingState
    test: Tensor  # `count_correct` of each set
    val: Tensor
    bad_files: int | None  # known to all processes
    ended: float  # when its last step was over, by `time.perf_counter`


@dataclass(frozen=True)
class Fault:
    """Why and where a run has diverged; `batch` counts from 1, None where all losses were finite."""

    epoch: int
    batch: int | None
    reason: str


class Metric(NamedTuple):
    """An entry of the line: its value, of the epoch and of what was measured on the device, without waiting for it."""

    value: Callable[[Epoch, Numbers], Any]
    measure: Callable[[Epoch], Tensor] = lambda epoch: epoch.log.losses[:0]


def epoch_metrics(epoch: Epoch) -> tuple[Metrics, Fault | None]:
    """Return the epoch's line of metrics.jsonl, and why the run has diverged if it has; waits for the device."""
    parts = [metric.measure(epoch) for metric in METRICS.values()]
    *numbers, health = read_at_once([*parts, _health(epoch.log, epoch.state)], epoch.state.processes)
    line = {name: METRICS[name].value(epoch, measured) for name, measured in zip(METRICS, numbers, strict=True)}
    return line, _fault(epoch.plan, health)


def fault_so_far(plan: EpochPlan, log: EpochLog, state: TrainingState) -> Fault | None:
    """Return why a run has diverged in an epoch under way, if its networks have; waits for the device."""
    (health,) = read_at_once([_health(log, state)], state.processes)
    return _fault(plan, health, whole=False)


def read_at_once(parts: Sequence[Tensor], processes: Processes) -> list[Numbers]:
    """Return the numbers of several tensors on a device, in one transfer: of each tensor a list for each process."""
    everywhere = processes.gathered(torch.cat([part.double().flatten() for part in parts]))
    ends = list(accumulate(part.numel() for part in parts))
    rows = everywhere.tolist()
    return [[row[end - part.numel() : end] for row in rows] for part, end in zip(parts, ends, strict=True)]


def _stacked(*numbers: Tensor) -> Tensor:
    return torch.stack([number.double() for number in numbers])


def _summed(numbers: Numbers) -> list[float]:
    return [sum(column) for column in zip(*numbers, strict=True)]


def _health(log: EpochLog, state: TrainingState) -> Tensor:
    """What tells whether a run has diverged: see `_fault`."""
    finite = log.losses.isfinite()
    broken = (log.nonfinite > 0) | ~finite
    first_broken = torch.arange(log.steps, dtype=torch.float64, device=broken.device).where(broken, math.inf).amin()
    return _stacked(finite.sum(), log.selected.sum(), log.nonfinite.sum(), first_broken, state.unsound())


def _fault(plan: EpochPlan, health: Numbers, *, whole: bool = True) -> Fault | None:
    finite_steps, selected, nonfinite, first_broken, unsound = zip(*health, strict=True)
    reasons = [UNSOUND] * any(unsound)
    # A method may find nothing to train on in sound rows.
    without_loss = not min(finite_steps) or (not sum(selected) and sum(nonfinite) > 0)
    reasons += ["no step had a finite loss"] * (whole and without_loss)
    batch = int(min(first_broken)) + 1 if math.isfinite(min(first_broken)) else None
    return Fault(plan.epoch, batch, " and ".join(reasons)) if reasons else None


def _train_loss(epoch: Epoch, numbers: Numbers) -> float | None:
    """The mean over the steps; None where it is not finite, or nothing was trained on."""
    losses, selected = zip(*numbers, strict=True)
    mean = fmean(losses)
    return mean if sum(selected) and math.isfinite(mean) else None


def _clean_and_selected(epoch: Epoch) -> Tensor:
    log, clean = epoch.log, epoch.state.clean
    selected = log.selected.sum()
    return _stacked(selected * math.nan if clean is None else (log.selected & clean[log.order]).sum(), selected)


def _label_precision(epoch: Epoch, numbers: Numbers) -> float | None:
    """Clean among selected / selected; None where the truth is unknown, or nothing was trained on."""
    clean, selected = _summed(numbers)
    return clean / selected if selected and clean >= 0 else None


def _class_counts(epoch: Epoch) -> Tensor:
    """How many rows were selected, and of how many, by their noisy label: [2, C]."""
    log, state = epoch.log, epoch.state
    rows = torch.stack([log.selected.double().mean(0), torch.ones_like(log.losses[:1]).expand(len(log.order))])
    counts = torch.zeros(2, state.classes, dtype=torch.float64, device=rows.device)
    counts.index_add_(1, state.labels[log.order], rows)
    if state.step.method.chooses_samples:  # of all samples, those of the epoch are selected
        counts[1] = torch.bincount(state.labels, minlength=state.classes).double() / state.processes.count
    return counts


def _selected_shares(epoch: Epoch, numbers: Numbers) -> list[float | None]:
    """The selected share of each class; None for a class that did not occur."""
    counts, classes = _summed(numbers), epoch.state.classes
    pairs = zip(counts[:classes], counts[classes:], strict=True)
    return [selected / rows if rows else None for selected, rows in pairs]


def _keep_rate(epoch: Epoch, numbers: Numbers) -> float:
    """R(t), or the share of the rows that a method without τ chose."""
    if not epoch.state.step.method.sieves:
        return epoch.plan.keep_rate
    return sum(_summed(numbers)) / (epoch.log.selected.numel() * epoch.state.processes.count)


def _wait_share(epoch: Epoch, _: Numbers) -> float | None:
    return epoch.log.waited / epoch.log.seconds if epoch.state.source.reads_files else None


def _samples_per_second(epoch: Epoch, _: Numbers) -> float:
    return len(epoch.log.order) * epoch.state.processes.count / epoch.log.seconds


def _accuracy(data: str, which: str) -> Metric:
    return Metric(
        lambda epoch, numbers: getattr(Accuracy.of(_summed(numbers)), which), lambda epoch: getattr(epoch, data)
    )


METRICS: dict[str, Metric] = {
    "epoch": Metric(lambda epoch, _: epoch.plan.epoch),
    "lr": Metric(lambda epoch, _: epoch.plan.lr),
    "keep_rate": Metric(_keep_rate, lambda epoch: epoch.log.selected.sum()),
    "forget_rate": Metric(lambda epoch, _: epoch.plan.forget_rate),
    "train_loss": Metric(_train_loss, lambda epoch: _stacked(epoch.log.losses.mean(), epoch.log.selected.sum())),
    "label_precision": Metric(_label_precision, _clean_and_selected),
    "test_accuracy_1": _accuracy("test", "first"),
    "test_accuracy_2": _accuracy("test", "second"),
    "test_accuracy": _accuracy("test", "mean"),
    "test_accuracy_ensemble": _accuracy("test", "ensemble"),
    "val_accuracy": _accuracy("val", "mean"),
    "nonfinite_rows": Metric(lambda _, numbers: int(sum(_summed(numbers))), lambda epoch: epoch.log.nonfinite.sum()),
    "bad_files": Metric(lambda epoch, _: epoch.bad_files),
    "wait_share": Metric(_wait_share),
    "seconds": Metric(lambda epoch, _: epoch.log.seconds),
    "eval_seconds": Metric(lambda epoch, _: perf_counter() - epoch.ended),
    "samples_per_second": Metric(_samples_per_second),
    "selected_share_per_class": Metric(_selected_shares, _class_counts),
}
