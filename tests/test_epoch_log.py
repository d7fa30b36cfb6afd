"""The numbers of an epoch, from what its steps noted: denominators, another epoch in the same tensors, checkpoints."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from jocor_fast.engine.epoch_log import EpochLog, EpochNumbers, shares
from jocor_fast.methods import StepLoss

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


def numbers(log: EpochLog, clean: Tensor | None = CLEAN) -> EpochNumbers:
    return EpochNumbers.of([log.totals(clean).tolist()])


def test_label_precision_is_over_the_choices_of_both_networks_together() -> None:
    """Of the four that were chosen 3 and 0 are clean; of the first network's one, of the second's a third."""
    assert numbers(a_log(FIRST, SECOND)).label_precision == 2 / 4
    assert numbers(a_log(FIRST, SECOND), None).label_precision is None


def test_the_loss_is_the_mean_over_the_steps_and_the_first_broken_batch_counts_from_one() -> None:
    found = numbers(a_log(FIRST, SECOND))
    assert (found.train_loss, found.nonfinite, found.first_broken_batch) == (2.0, 1, 2)
    assert numbers(a_log(FIRST, FIRST)).first_broken_batch is None
    infinite = numbers(a_log(FIRST, SECOND._replace(loss=torch.tensor(math.inf), num_nonfinite=torch.tensor(0))))
    assert (infinite.train_loss, infinite.first_broken_batch, infinite.without_loss) == (None, 2, False)


def test_another_epoch_in_the_same_tensors_knows_nothing_of_the_one_before() -> None:
    log = a_log(FIRST, SECOND)
    log.seconds, log.waited = 7.0, 3.0
    log.restart(torch.tensor([0, 1, 2, 3]))
    assert (log.step, log.seconds, log.waited, log.order.tolist()) == (0, 0.0, 0.0, [0, 1, 2, 3])
    log.record(FIRST)  # and no more: what a checkpoint within the epoch is judged by
    found = numbers(log)
    assert (found.selected, found.nonfinite, found.first_broken_batch, found.mean_loss) == (2, 0, None, 1.5)


def test_the_log_of_an_epoch_under_way_comes_back_whole_from_a_checkpoint() -> None:
    log = a_log(SECOND)
    log.seconds, log.waited = 7.0, 3.0
    again = EpochLog.from_state_dict(log.state_dict(), torch.device("cpu"))
    assert (again.step, again.seconds, again.waited) == (1, 7.0, 3.0)
    for each in (log, again):
        each.record(FIRST)
    assert torch.equal(again.order, log.order)
    assert numbers(again) == numbers(log)


def test_the_selected_share_is_told_for_each_class() -> None:
    log = EpochLog(torch.tensor([0, 1, 2, 3, 4, 5]), steps=2, num_choices=2)
    labels = torch.tensor([0, 0, 0, 2, 2, 3, 1])
    log.selected[0] = torch.tensor([True, True, False, True, False, False])
    log.selected[1] = torch.tensor([True, False, False, True, True, False])
    counts = log.class_counts(labels, classes=5)
    assert counts.tolist() == [[1.5, 0, 1.5, 0, 0], [3, 0, 2, 1, 0]]
    assert shares(counts.flatten().tolist()) == [0.5, None, 0.75, 0.0, None]


@pytest.mark.parametrize("choices", [1, 2])
def test_several_steps_taken_down_at_once_are_those_taken_down_in_turn(choices: int) -> None:
    steps = [step._replace(selected=step.selected[:choices]) for step in (FIRST, SECOND)]
    in_turn, at_once = (EpochLog(torch.tensor([3, 1, 0, 2]), steps=2, num_choices=choices) for _ in range(2))
    for step in steps:
        in_turn.record(step)
    at_once.record_at(torch.tensor([0, 1]), steps)
    assert torch.equal(at_once.selected, in_turn.selected)
    assert torch.equal(at_once.totals(CLEAN), in_turn.totals(CLEAN))
