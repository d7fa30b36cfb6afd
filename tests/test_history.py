"""What is kept of each sample: the table on the device against a plain loop over the steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine_cases import CLASSES, blobs, fit, pair_of, settings, small_mlp, small_tanh, train_epochs, training
from jocor_fast.engine.history import LARGEST_LOSS, WINDOW, SampleHistory, SampleStatistics
from jocor_fast.engine.step import TrainingStep
from jocor_fast.methods import METHODS, StepLoss

pytestmark = pytest.mark.usefixtures("curves_at_once")


def an_outcome(rows: int, networks: int, choices: int, seed: int) -> StepLoss:
    generator = torch.Generator().manual_seed(seed)
    masks = tuple(torch.rand(rows, generator=generator) < 0.5 for _ in range(choices))
    logits = tuple(3 * torch.randn(rows, CLASSES, generator=generator) for _ in range(networks))
    return StepLoss(torch.tensor(0.0), masks, torch.tensor(0), torch.rand(rows, generator=generator), logits=logits)


class PlainHistory:
    """The same, sample by sample, in Python floats."""

    def __init__(self, labels: Tensor) -> None:
        self.labels = labels.tolist()
        self.steps: list[list[tuple[float, float, list[float], list[int]]]] = [[] for _ in self.labels]

    def record(self, samples: Tensor, outcome: StepLoss) -> None:
        for row, sample in enumerate(samples.tolist()):
            probabilities = [logits[row].double().softmax(0) for logits in outcome.logits]
            given = [float(p[self.labels[sample]]) for p in probabilities]
            times = float(sum(mask[row] for mask in outcome.selected))
            predicted = [int(p.argmax()) for p in probabilities]
            self.steps[sample].append((times, float(outcome.per_sample[row]), given, predicted))

    def moving_mean(self, values: list[float]) -> float:
        weights = [(1 - 1 / WINDOW) ** age for age in reversed(range(len(values)))]
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights) if values else math.nan

    def check(self, statistics: SampleStatistics) -> None:
        networks = range(len(statistics.probability))
        for sample, steps in enumerate(self.steps):
            assert statistics.seen[sample] == len(steps)
            assert statistics.selected[sample] == sum(step[0] for step in steps)
            loss = self.moving_mean([step[1] for step in steps])
            assert statistics.loss[sample] == pytest.approx(loss, rel=1e-5, nan_ok=True)
            for network in networks:
                mean = self.moving_mean([step[2][network] for step in steps])
                assert statistics.probability[network, sample] == pytest.approx(mean, rel=1e-4, abs=1e-7, nan_ok=True)
                assert statistics.prediction[network, sample] == (steps[-1][3][network] if steps else -1)


@pytest.mark.parametrize(("networks", "choices"), [(1, 1), (2, 1), (2, 2)])
def test_the_table_says_what_a_plain_loop_over_the_steps_says(networks: int, choices: int) -> None:
    labels = torch.randint(CLASSES, (20,), generator=torch.Generator().manual_seed(1))
    history, plain = SampleHistory(labels, networks), PlainHistory(labels)
    generator = torch.Generator().manual_seed(2)
    for epoch in range(12):
        order = torch.randperm(18, generator=generator)  # two samples never come
        for step, samples in enumerate(order[:16].split(8)):  # and two of the others are left out each time
            outcome = an_outcome(8, networks, choices, seed=2 * epoch + step)
            history.record(samples, labels[samples], [outcome])
            plain.record(samples, outcome)
    statistics = SampleStatistics.of(history.state_dict())
    plain.check(statistics)
    on_device = (history.losses(), history.probabilities(), history.predictions())  # what methods read
    of_host = (statistics.loss, statistics.probability, statistics.prediction)
    for one, other in zip(on_device, of_host, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-6)


def test_several_steps_at_once_are_recorded_as_one_after_the_other() -> None:
    labels = torch.randint(CLASSES, (24,), generator=torch.Generator().manual_seed(1))
    in_turn, at_once = SampleHistory(labels, 2), SampleHistory(labels, 2)
    for seed in range(3):
        order = torch.randperm(24, generator=torch.Generator().manual_seed(seed))
        outcomes = [an_outcome(8, 2, 2, seed=3 * seed + step) for step in range(3)]
        for samples, outcome in zip(order.split(8), outcomes, strict=True):
            in_turn.record(samples, labels[samples], [outcome])
        at_once.record(order, labels[order], outcomes)
    torch.testing.assert_close(at_once.table, in_turn.table)


def test_a_loss_that_is_not_finite_counts_as_a_large_one_and_does_no_lasting_harm() -> None:
    labels = torch.zeros(3, dtype=torch.int64)
    history = SampleHistory(labels, 2)
    for per_sample in ([math.nan, math.inf, 1.0], *[[1.0, 1.0, 1.0]] * 60):
        logits = torch.full((3, CLASSES), math.nan) if per_sample[0] != 1 else torch.zeros(3, CLASSES)
        outcome = an_outcome(3, 2, 1, seed=0)._replace(per_sample=torch.tensor(per_sample), logits=(logits, logits))
        history.record(torch.arange(3), labels, [outcome])
        if per_sample[0] != 1:
            statistics = SampleStatistics.of(history.state_dict())
            np.testing.assert_allclose(statistics.loss, [LARGEST_LOSS, LARGEST_LOSS, 1.0], rtol=1e-6)
            assert (statistics.probability == 0).all()
    statistics = SampleStatistics.of(history.state_dict())
    np.testing.assert_allclose(statistics.loss, 1.0, atol=0.1)
    np.testing.assert_allclose(statistics.probability, 1 / CLASSES, rtol=1e-3)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_trainer_records_every_step_that_it_takes(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count = METHODS[method].num_networks
    state = training(pair_of(small_mlp)[:count], blobs(70), method=method)
    state.step.method.prepare(lambda *given: torch.eye(CLASSES))
    plain, take = PlainHistory(state.labels), TrainingStep.__call__

    def noted(step: TrainingStep, stored: Tensor, labels: Tensor, *further: Any) -> StepLoss:
        outcome = take(step, stored, labels, *further)
        assert state.log is not None
        at = state.log.step * len(labels)
        plain.record(state.log.order[at : at + len(labels)], outcome)
        return outcome

    monkeypatch.setattr(TrainingStep, "__call__", noted)
    train_epochs(state, 1, 3)
    plain.check(SampleStatistics.of(state.history.state_dict()))


def test_a_run_that_was_resumed_has_the_history_of_one_that_was_not(tmp_path: Path) -> None:
    data = blobs(70)
    fit(settings(), small_tanh, data, output=tmp_path / "whole")

    def stop_after_two(event: Any) -> None:
        if event.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(settings(), small_tanh, data, output=tmp_path / "halved", on_epoch=stop_after_two)
    fit(settings(), small_tanh, data, output=tmp_path / "halved", resume=True)
    whole, halved = (
        torch.load(tmp_path / run / "checkpoint.pt", weights_only=True)["training"]["history"]
        for run in ("whole", "halved")
    )
    assert torch.equal(whole["table"], halved["table"])
    assert torch.equal(whole["labels"].long(), data.labels)
    assert SampleStatistics.of(whole).seen.sum() == 6 * 64
