"""The numbers of an epoch, from what its steps noted: denominators, another epoch in the same tensors, checkpoints."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine_cases import settings, without_timings
from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.engine.metrics import Epoch, Fault, epoch_metrics, fault_so_far
from jocor_fast.engine.plan import plan_epoch
from jocor_fast.engine.processes import ALONE
from jocor_fast.methods import METHODS, StepLoss

CLEAN = torch.tensor([True, False, False, True])  # of samples 0 … 3


def noted(loss: float, nonfinite: int, *masks: list[bool]) -> StepLoss:
    rows = len(masks[0])
    return StepLoss(torch.tensor(loss), tuple(map(torch.tensor, masks)), torch.tensor(nonfinite), torch.zeros(rows))


def a_log(*steps: StepLoss, order: Tensor | None = None) -> EpochLog:
    """Of two steps of two rows and two choices, of which some are done."""
    log = EpochLog(torch.tensor([3, 1, 0, 2]) if order is None else order, steps=2, num_choices=2)
    for step in steps:
        log.record(step)
    return log


FIRST = noted(3.0, 0, [True, False], [False, True])  # network 1 chose sample 3, network 2 sample 1
SECOND = noted(1.0, 1, [False, False], [True, True])  # network 2 chose samples 0 and 2


PLAN = plan_epoch(settings(epochs=9), 7, 4)


def numbers(
    log: EpochLog, clean: Tensor | None = CLEAN, labels: Tensor | None = None, classes: int = 1
) -> tuple[dict[str, Any], Fault | None]:
    log.seconds = log.seconds or 1.0
    state = a_state(
        clean=clean, labels=torch.zeros(4, dtype=torch.int64) if labels is None else labels, classes=classes
    )
    nothing = torch.empty(0)
    return epoch_metrics(Epoch(PLAN, log, state, nothing, nothing, None, 0.0))


def a_state(*, unsound: bool = False, **values: Any) -> Any:
    source = SimpleNamespace(reads_files=False)
    step = SimpleNamespace(method=METHODS["jocor"]())
    return SimpleNamespace(step=step, processes=ALONE, source=source, unsound=lambda: torch.tensor(unsound), **values)


def broken_batch(log: EpochLog) -> int | None:
    """The first one, where a parameter is not finite too."""
    fault = fault_so_far(PLAN, log, a_state(unsound=True))
    assert fault is not None
    return fault.batch


def test_label_precision_is_over_the_choices_of_both_networks_together() -> None:
    """Of the four that were chosen 3 and 0 are clean; of the first network's one, of the second's a third."""
    assert numbers(a_log(FIRST, SECOND))[0]["label_precision"] == 2 / 4
    assert numbers(a_log(FIRST, SECOND), None)[0]["label_precision"] is None


def test_the_loss_is_the_mean_over_the_steps_and_the_first_broken_batch_counts_from_one() -> None:
    line, fault = numbers(a_log(FIRST, SECOND))
    assert (line["train_loss"], line["nonfinite_rows"], fault, broken_batch(a_log(FIRST, SECOND))) == (2.0, 1, None, 2)
    assert broken_batch(a_log(FIRST, FIRST)) is None
    infinite = SECOND._replace(loss=torch.tensor(math.inf), num_nonfinite=torch.tensor(0))
    line, fault = numbers(a_log(FIRST, infinite))
    assert (line["train_loss"], fault, broken_batch(a_log(FIRST, infinite))) == (None, None, 2)
    assert numbers(a_log(infinite, infinite))[1] == Fault(7, 1, "no step had a finite loss")


def test_another_epoch_in_the_same_tensors_knows_nothing_of_the_one_before() -> None:
    log = a_log(FIRST, SECOND)
    log.seconds, log.waited = 7.0, 3.0
    log.restart(torch.tensor([0, 1, 2, 3]))
    assert (log.step, log.seconds, log.waited, log.order.tolist()) == (0, 0.0, 0.0, [0, 1, 2, 3])
    log.record(FIRST)  # and no more: what a checkpoint within the epoch is judged by
    line, _ = numbers(log)
    assert (int(log.selected.sum()), line["nonfinite_rows"], line["train_loss"]) == (2, 0, 1.5)
    assert broken_batch(log) is None


def test_the_log_of_an_epoch_under_way_comes_back_whole_from_a_checkpoint() -> None:
    log = a_log(SECOND)
    log.seconds, log.waited = 7.0, 3.0
    again = EpochLog.from_state_dict(log.state_dict(), torch.device("cpu"))
    assert (again.step, again.seconds, again.waited) == (1, 7.0, 3.0)
    for each in (log, again):
        each.record(FIRST)
    assert torch.equal(again.order, log.order)
    assert without_timings([numbers(again)[0]]) == without_timings([numbers(log)[0]])


def test_the_selected_share_is_told_for_each_class() -> None:
    log = EpochLog(torch.tensor([0, 1, 2, 3, 4, 5]), steps=2, num_choices=2)
    labels = torch.tensor([0, 0, 0, 2, 2, 3, 1])
    log.selected[0] = torch.tensor([True, True, False, True, False, False])
    log.selected[1] = torch.tensor([True, False, False, True, True, False])
    line, _ = numbers(log, None, labels, classes=5)
    assert line["selected_share_per_class"] == [1.5 / 3, None, 1.5 / 2, 0.0, None]


@pytest.mark.parametrize("choices", [1, 2])
def test_several_steps_taken_down_at_once_are_those_taken_down_in_turn(choices: int) -> None:
    steps = [step._replace(selected=step.selected[:choices]) for step in (FIRST, SECOND)]
    in_turn, at_once = (EpochLog(torch.tensor([3, 1, 0, 2]), steps=2, num_choices=choices) for _ in range(2))
    for step in steps:
        in_turn.record(step)
    at_once.record_at(torch.tensor([0, 1]), steps)
    assert torch.equal(at_once.selected, in_turn.selected)
    assert torch.equal(at_once.losses, in_turn.losses)
    assert torch.equal(at_once.nonfinite, in_turn.nonfinite)
