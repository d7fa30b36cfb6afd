"""Loss scaling for float16 with torch's GradScaler, and optimisers that read rate and overflow on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine_cases import blobs, pair_of, parameters, run, same_bits, settings, small_tanh, train_steps, training
from jocor_fast.engine.loss_scale import GROWTH_INTERVAL, INITIAL_SCALE, LossScale
from jocor_fast.engine.optimizer import FusedAdam, Optimizer, PlainSGD


def optimizer_of(kind: str, weights: nn.Parameter) -> tuple[Optimizer, torch.optim.Optimizer]:
    """Ours over the weights, and torch's over a copy of them."""
    copy = nn.Parameter(weights.detach().clone())
    if kind == "adam":
        return FusedAdam([weights]), torch.optim.Adam([copy], lr=0.1, fused=True)
    return PlainSGD([weights]), torch.optim.SGD([copy], lr=0.1, fused=True)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_scaled_steps_are_those_of_torchs_grad_scaler(kind: str) -> None:
    """Through overflows, in which nothing changes but the scale, and a stretch without one, after which it grows."""
    generator = torch.Generator().manual_seed(0)
    weights = nn.Parameter(torch.randn(33, generator=generator))
    mine, theirs = optimizer_of(kind, weights)
    copy = theirs.param_groups[0]["params"][0]
    scale, scaler = LossScale(torch.device("cpu")), torch.amp.GradScaler("cpu", growth_interval=GROWTH_INTERVAL)
    scale.steps_without_overflow.fill_(GROWTH_INTERVAL - 3)
    scaler.scale(torch.zeros(()))  # makes its tensors
    scaler._growth_tracker.fill_(GROWTH_INTERVAL - 3)  # type: ignore[union-attr]
    scales = []
    for step in range(8):
        factors = torch.randn(33, generator=generator)
        if step in (4, 5):
            factors[7] = torch.inf if step == 4 else torch.nan
        before = weights.detach().clone()
        for parameter, loss_of in ((weights, scale.scaled), (copy, scaler.scale)):
            parameter.grad = None
            loss_of((parameter * factors).sum()).backward()
        overflow = scale.unscale([weights.grad])  # type: ignore[list-item]
        mine.step(lr=0.1, beta1=0.9, skip=overflow)
        scaler.step(theirs)
        scaler.update()
        assert torch.equal(weights, copy), step
        assert torch.equal(weights, before) == (step in (4, 5)), step
        assert scale.scale.item() == scaler.get_scale(), step
        scales.append(scale.scale.item() / INITIAL_SCALE)
    assert scales == [1, 1, 2, 2, 1, 0.5, 0.5, 0.5]
    if isinstance(mine, FusedAdam):
        assert mine.steps[0] == 6  # the two that were left out do not count


@pytest.mark.parametrize("optimizer", [FusedAdam, PlainSGD])
def test_a_rate_on_the_device_gives_the_step_of_the_same_number(optimizer: Any) -> None:
    start, gradient = torch.randn(2, 33, generator=torch.Generator().manual_seed(1))
    weights = []
    for lr in (0.1, torch.tensor(0.1, dtype=torch.float64)):
        parameter = nn.Parameter(start.clone())
        ours = optimizer([parameter], weight_decay=0.01)
        for beta1 in (0.9, 0.1):
            parameter.grad = gradient.clone()
            ours.step(lr=lr, beta1=beta1)
        weights.append(parameter)
    assert same_bits(*([weight] for weight in weights))


def test_float16_trains_and_keeps_float32_weights() -> None:
    result = run(small_tanh, data=blobs(400), precision="float16", epochs=10)
    assert {value.dtype for value in parameters(result.networks)} == {torch.float32}
    assert result.metrics[-1]["test_accuracy"] > 0.9


def test_plain_gradient_descent_in_float16_takes_the_way_of_float32() -> None:
    """The scale is divided out: with it in the gradients, or in the reported loss, the two would be worlds apart."""
    ways = [run(small_tanh, optimizer="sgd", lr=0.5, precision=precision) for precision in ("float16", "float32")]
    weights = [parameters(way.networks) for way in ways]
    assert not same_bits(*weights)
    for half, single in zip(*weights, strict=True):
        torch.testing.assert_close(half, single, rtol=0, atol=5e-3)
    losses = [[line["train_loss"] for line in way.metrics] for way in ways]
    assert losses[0] == pytest.approx(losses[1], rel=5e-3)


class Overflows(nn.Module):
    """Gradients of which float16 holds no more than the scale's 65,536th part."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.linear(inputs)
        return (logits.half() * 16).half() if torch.is_grad_enabled() else logits


def test_a_step_that_overflows_changes_nothing_but_the_scale_which_a_checkpoint_keeps() -> None:
    networks = pair_of(Overflows)
    state = training(networks, blobs(64), precision="float16", ramp_epochs=0, co_lambda=0.0)
    before = parameters(networks)
    scale = state.step.loss_scale
    assert scale is not None
    scale.scale.fill_(2.0**40)
    train_steps(state, 2)
    assert same_bits(before, parameters(networks))
    assert scale.scale == 2.0**38

    other = training(pair_of(Overflows), blobs(64), precision="float16", ramp_epochs=0, co_lambda=0.0)
    other.load_state_dict(state.state_dict())
    assert other.step.loss_scale is not None
    assert other.step.loss_scale.scale == 2.0**38
    assert settings(precision="float16").precision == "float16"
