"""Threads of training steps: chosen by time where that changes no bit, or fixed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import jocor_fast as jf
from jocor_fast.engine import loop, threads
from jocor_fast.engine.plan import StepRates
from jocor_fast.engine.processes import ALONE
from jocor_fast.engine.threads import StepThreads
from jocor_fast.methods import Keep, StepLoss
from jocor_fast.models.networks import mlp


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Step:
    """A step that takes as long as `seconds` says of the number of threads, and adds `adds` of it to a parameter."""

    def __init__(self, *, adds: bool = False, number: int | None = None) -> None:
        self.seconds = {1: 1e-3, 2: 3e-3}
        self.now, self.adds, self.made = 0.0, adds, list[int]()
        self.parameter = nn.Parameter(torch.zeros(3))
        self.settings = SimpleNamespace(threads=number, optimizer="adam")
        self.device, self.processes, self.loss_scale = torch.device("cpu"), ALONE, None
        self.group = SimpleNamespace(parameters=[self.parameter])
        self.optimizer = SimpleNamespace(
            state_dict=lambda: {"moments": [torch.zeros(3)]}, load_state_dict=lambda state: None
        )
        self.method = SimpleNamespace(state={})
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, *batch: Any) -> StepLoss:
        number = torch.get_num_threads()
        self.made.append(number)
        self.now += self.seconds[number]
        with torch.no_grad():
            self.parameter += number if self.adds else torch.rand(3, generator=self.generator)
        return StepLoss(torch.tensor(0.0), (), torch.tensor(0), torch.zeros(2))


def made(step: Step, count: int, chosen: StepThreads, num_keep: int = 2) -> set[int]:
    """Make steps and return with how many threads the last ones were made."""
    rates = StepRates(0.1, 0.9, Keep(num_keep, 0.0))
    for _ in range(count):
        chosen(torch.zeros(2, 3), torch.zeros(2), rates, None, None)
    return set(step.made[-20:])


def threads_of(step: Step, told: list[str]) -> StepThreads:
    chosen = StepThreads(step, [], clock=lambda: step.now)  # type: ignore[arg-type]
    chosen.on_choice = told.append
    return chosen


def test_the_faster_number_is_taken_and_looked_for_again() -> None:
    step, told = Step(), list[str]()
    chosen = threads_of(step, told)
    assert made(step, 200, chosen) == {1}
    assert told == ["a step takes 1 ms with one thread and 3 ms with 2: one from here on"]
    step.seconds = {1: 1e-3, 2: 5e-4}
    assert made(step, int(threads.FIRST_PERIOD_SECONDS / 1e-3) + 300, chosen) == {2}
    assert told[1:] == ["a step takes 1 ms with one thread and 0.5 ms with 2: 2 from here on"]
    chosen.rest()
    assert torch.get_num_threads() == 2


def test_comparisons_become_rare() -> None:
    step = Step()
    made(step, 60_000, threads_of(step, []))
    comparisons = step.made.count(2) // (threads.BLOCK_SECONDS / step.seconds[2])
    assert 10 < comparisons < 16  # after 1, 3 and 7 seconds, then every 5


def test_a_small_gain_changes_nothing() -> None:
    step, told = Step(), list[str]()
    step.seconds = {1: 0.95e-3, 2: 1e-3}
    assert made(step, 300, threads_of(step, told)) == {2}
    assert len(told) == 1


def test_steps_whose_bits_depend_on_the_number_keep_all_threads() -> None:
    step, told = Step(adds=True), list[str]()
    assert made(step, 300, threads_of(step, told)) == {2}
    assert told == []
    assert step.parameter.tolist() == [600.0] * 3  # the trial left the step of both threads, once


def test_a_trial_counts_as_one_step_and_comes_again_for_another_number_of_rows() -> None:
    step, alone = Step(), Step()
    chosen = threads_of(step, [])
    made(step, 5, chosen)
    made(step, 5, chosen, num_keep=1)
    assert len(step.made) == 10 + 2
    for _ in range(10):
        alone()
    assert torch.equal(step.parameter, alone.parameter)


def test_a_number_that_is_given_is_kept() -> None:
    step = Step(number=2)
    assert made(step, 100, threads_of(step, [])) == {2}
    assert len(step.made) == 100


class Counting(nn.Module):
    """A network that keeps what is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls, self.mean = nn.Linear(64, 4), 0, torch.zeros(64)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(0)
        return self.linear(inputs - self.mean)


def plain_network() -> nn.Module:
    return mlp(64, 4)


def network_with_a_hook() -> nn.Module:
    network = mlp(64, 4)
    network.register_forward_hook(lambda module, inputs, output: CALLS.append(module) if module.training else None)
    return network


CALLS: list[nn.Module] = []


def steps_of(build: Any) -> jf.training.Run:
    generator = np.random.default_rng(0)
    data = generator.random((64, 64), dtype=np.float32), generator.integers(0, 4, 64)
    settings: dict[str, Any] = {"forget_rate": 0.4, "ramp_epochs": 2, "epochs": 3, "batch_size": 32, "device": "cpu"}
    return jf.train(build, data, **settings)


def test_a_network_of_the_users_own_is_passed_through_once_a_step() -> None:
    assert [network.calls for network in steps_of(Counting).networks] == [6, 6]
    CALLS.clear()
    networks = steps_of(network_with_a_hook).networks
    assert [CALLS.count(network) for network in networks] == [6, 6]


def trained(number: int | None) -> tuple[list[Tensor], dict[str, Any]]:
    generator = np.random.default_rng(0)
    data = generator.integers(0, 256, (256, 1, 8, 8), dtype=np.uint8), generator.integers(0, 4, 256)
    run = jf.train(
        lambda: mlp(64, 4), data, forget_rate=0.4, ramp_epochs=2, epochs=3, batch_size=32, device="cpu", threads=number
    )
    return [value for network in run.networks for value in network.state_dict().values()], run.summary["environment"]


def test_a_run_has_the_same_bits_whatever_is_chosen_and_puts_torchs_threads_back() -> None:
    one, environment = trained(1)
    assert (environment["threads"], environment["step_threads"]) == (1, 1)
    assert torch.get_num_threads() == 2
    chosen, environment = trained(None)
    assert environment["threads"] == 2
    assert torch.get_num_threads() == 2
    assert all(map(torch.equal, one, chosen))


def test_a_number_of_threads_must_be_at_least_one() -> None:
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        trained(0)


def test_an_epoch_is_evaluated_with_the_threads_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "BLOCK_SECONDS", 0.0)
    monkeypatch.setattr(threads, "BLOCK_STEPS", 1)
    monkeypatch.setattr(threads, "GAIN", 1e9)  # the other number is taken
    monkeypatch.setattr(threads, "FIRST_PERIOD_SECONDS", 1e9)
    counted, used = loop.count_correct, list[int]()

    def count_correct(*given: Any) -> Tensor:
        used.append(torch.get_num_threads())
        return counted(*given)

    monkeypatch.setattr(loop, "count_correct", count_correct)
    trained(None)
    assert set(used) == {1}
    assert torch.get_num_threads() == 2
