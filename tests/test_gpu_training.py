"""Training on a GPU: recorded steps beside steps that the host launches, and steps that nothing waits for."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jocor_fast
from engine_cases import (
    CLASSES,
    Asks,
    adam_by_hand,
    blobs,
    fit,
    held_out,
    pair_of,
    parameters,
    same_bits,
    settings,
    small_cnn,
    small_mlp,
    small_tanh,
    without_timings,
)
from jocor_fast.data.samples import Samples
from jocor_fast.engine import loop
from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.engine.loop import Observer
from jocor_fast.engine.optimizer import FusedAdam, PlainSGD
from jocor_fast.engine.plan import DeviceRates, plan_epoch
from jocor_fast.engine.state import TrainingState
from jocor_fast.runs.fit import Run

pytestmark = pytest.mark.gpu

SAMPLES = 16 * 21 + 5  # three first steps, two graphs of eight and two of one
Build = Callable[[], nn.Module]


@pytest.fixture(autouse=True)
def convolutions_that_repeat() -> Iterator[None]:
    """cuDNN may otherwise add in another order each time, recorded or not."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before


def train(
    network: Build, *, output: Path | None = None, resume: bool = False, on_step: Any = None, **changes: Any
) -> Run:
    shape = (3, 8, 8) if network is small_cnn else (6,)
    return fit(
        settings(**{"device": "cuda", "epochs": 4, **changes}),
        network,
        blobs(SAMPLES, shape),
        test=held_out(45, shape),
        output=output,
        resume=resume,
        on_step=on_step,
    )


def assert_same(one: Run, other: Run) -> None:
    assert without_timings(one.metrics) == without_timings(other.metrics)
    assert same_bits(parameters(one.networks), parameters(other.networks))


RUNS: list[tuple[Build, dict[str, Any]]] = [
    (small_mlp, {}),
    (small_mlp, {"recipe": "published", "decay_start": 2}),
    (small_mlp, {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.01}),
    (small_mlp, {"method": "standard"}),
    (small_mlp, {"method": "decoupling", "precision": "float16"}),
    (small_mlp, {"method": "f-correction"}),
    (small_mlp, {"method": "coteaching-plus", "warmup_epochs": 2}),
    (small_cnn, {"augment": "crop-flip"}),
    (small_cnn, {"precision": "bfloat16"}),
    (small_cnn, {"precision": "float16", "recipe": "published", "decay_start": 2}),
]


@pytest.mark.parametrize(("network", "changes"), RUNS, ids=[f"{build.__name__}-{changes}" for build, changes in RUNS])
def test_recorded_steps_leave_the_bits_of_steps_launched_one_by_one(network: Build, changes: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorded = train(network, **changes)
    assert recorded.summary["environment"]["steps"] == "CUDA graphs"
    launched = train(network, no_graph=True, **changes)
    assert launched.summary["environment"]["steps"] == "launched by the host"
    assert_same(recorded, launched)


def test_a_recorded_run_learns() -> None:
    run = fit(settings(device="cuda", epochs=10), small_tanh, blobs(400), test=held_out(45))
    assert run.metrics[-1]["test_accuracy"] > 0.9


def test_sigterm_between_launches_and_a_resumed_run_give_the_bits_of_a_whole_one(tmp_path: Path) -> None:
    def kill(epoch: int, step: int, of: int) -> None:
        if (epoch, step) == (2, 8):
            os.kill(os.getpid(), signal.SIGTERM)

    whole = train(small_cnn, augment="crop-flip")
    with pytest.raises(SystemExit) as exit_:
        train(small_cnn, augment="crop-flip", output=tmp_path, on_step=kill)
    assert exit_.value.code == 143
    resumed = train(small_cnn, augment="crop-flip", output=tmp_path, resume=True)
    assert_same(resumed, whole)


class DrawsByItself(nn.Module):
    """Draws from a generator of its own, which no graph knows, and from torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.generator = nn.Linear(6, CLASSES), torch.Generator("cuda").manual_seed(3)
        self.dropout = nn.Dropout(0.2)

    def forward(self, inputs: Tensor) -> Tensor:
        noise = torch.rand(inputs.shape, generator=self.generator, device="cuda") if self.training else 0
        logits: Tensor = self.linear(self.dropout(inputs + noise))
        return logits


def test_a_network_that_asks_the_device_is_launched_by_the_host_and_one_line_says_why() -> None:
    with pytest.warns(UserWarning, match="no CUDA graph.*waits for the device"):
        run = train(Asks)
    assert "waits for the device" in run.summary["environment"]["steps"]
    assert_same(run, train(Asks, no_graph=True))


def test_a_recording_that_fails_leaves_a_run_that_goes_on() -> None:
    """Or, with a torch that records such draws too, one that is recorded: the same bits either way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = train(DrawsByItself)
    assert run.summary["status"] == "finished"
    assert len(run.metrics) == 4


def drawn_gradients() -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator("cuda").manual_seed(0)
    start, *gradients = torch.randn(5, 33, generator=generator, device="cuda")
    return start, gradients


def test_adam_with_a_rate_on_the_device_follows_a_change_of_beta1() -> None:
    start, gradients = drawn_gradients()
    beta1, rates = [0.9, 0.9, 0.1, 0.1], [0.1, 0.1, 0.1, 0.05]
    parameter, lr = nn.Parameter(start.clone()), torch.zeros((), device="cuda")
    optimizer = FusedAdam([parameter])
    for gradient, rate, b1 in zip(gradients, rates, beta1, strict=True):
        parameter.grad = gradient.clone()
        lr.fill_(rate)
        optimizer.step(lr=lr, beta1=b1)
    expected = adam_by_hand(start, gradients, rates, beta1)
    torch.testing.assert_close(parameter.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_a_captured_adam_step_follows_the_rate_and_is_captured_again_for_another_beta1() -> None:
    start, gradients = drawn_gradients()
    parameter, lr = nn.Parameter(start.clone()), torch.zeros((), device="cuda")
    parameter.grad = torch.zeros_like(start)
    optimizer = FusedAdam([parameter])
    unrelated = nn.Parameter(start.clone())
    unrelated.grad = start.clone()
    FusedAdam([unrelated]).step(lr=lr, beta1=0.9)  # loads the kernels
    rates, beta1 = [0.1, 0.2, 0.1, 0.05], [0.9, 0.9, 0.1, 0.1]
    graphs = {}
    for b1 in (0.9, 0.1):
        graphs[b1] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[b1]):
            optimizer.step(lr=lr, beta1=b1)
    for gradient, rate, b1 in zip(gradients, rates, beta1, strict=True):
        parameter.grad.copy_(gradient)
        lr.fill_(rate)
        graphs[b1].replay()
    expected = adam_by_hand(start, gradients, rates, beta1)
    torch.testing.assert_close(parameter.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_beta1_falls_in_recorded_steps_where_the_published_recipe_says_so() -> None:
    """One weight a class, the same batch in every step: every gradient is known, so is every Adam step."""
    samples, steps = 16 * 12, 12
    data = Samples(torch.ones(samples, 1), torch.zeros(samples, dtype=torch.int64))
    network = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(network.weight)
    chosen = settings(
        method="standard", recipe="published", epochs=5, decay_start=3, batch_size=16, lr=0.01, device="cuda"
    )
    run = fit(chosen, network, data)
    assert run.summary["environment"]["steps"] == "CUDA graphs"
    weight = torch.zeros(2, dtype=torch.float64)
    m, v = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    target, step = torch.tensor([1.0, 0.0], dtype=torch.float64), 0
    for factor, b1 in [(1.0, 0.9), (1.0, 0.9), (1.0, 0.1), (0.5, 0.1)]:  # (5 − 4)/(5 − 3); the fifth is not trained
        for _ in range(steps):
            step += 1
            g = weight.softmax(0) - target
            m, v = b1 * m + (1 - b1) * g, 0.999 * v + 0.001 * g * g
            weight = weight - 0.01 * factor * (m / (1 - b1**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
    torch.testing.assert_close(network.weight[:, 0].double().cpu(), weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("no_graph", [False, True])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_nothing_in_the_steps_of_an_epoch_waits_for_the_device(no_graph: bool, precision: str) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    networks = tuple(network.to(device) for network in pair_of(small_cnn))
    chosen = settings(device="cuda", no_graph=no_graph, precision=precision, augment="crop-flip")
    state = TrainingState(chosen, networks, blobs(SAMPLES, (3, 8, 8)), None, None, device)

    class Strict(Observer):
        reached = 0

        def on_step(self, epoch: int, log: EpochLog) -> None:
            self.reached += 1
            if self.reached == 6:  # past the recording of both graphs
                torch.cuda.set_sync_debug_mode("error")
            if log.step == log.steps:  # the evaluation waits
                torch.cuda.set_sync_debug_mode("default")

    loop.train(state, [1], Observer())
    strict = Strict()
    try:
        loop.train(state, [2], strict)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert strict.reached >= 6


@pytest.mark.parametrize("optimizer", [FusedAdam, PlainSGD])
def test_a_captured_step_of_another_loop_follows_new_inputs_a_new_rate_and_a_new_k(optimizer: Any) -> None:
    """Case 42 by hand: forward, loss, backward and update on a side stream, replayed beside the same run eagerly."""
    device = torch.device("cuda", torch.cuda.current_device())
    sides = [[network.to(device) for network in pair_of(small_mlp)] for _ in range(2)]
    optimizers = [optimizer([p for network in side for p in network.parameters()]) for side in sides]
    rates = [DeviceRates(device) for _ in sides]
    inputs, labels = torch.zeros(16, 6, device=device), torch.zeros(16, dtype=torch.int64, device=device)

    def step(side: int) -> None:
        for network in sides[side]:
            network.zero_grad(set_to_none=True)
        first, second = (network(inputs) for network in sides[side])
        jocor_fast.jocor_loss(first, second, labels, num_keep=rates[side].num_keep).loss.backward()
        optimizers[side].step(lr=rates[side].lr, beta1=0.9)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step(0)  # at rate 0 and without momentum from inputs of 0: it sets up the libraries
    torch.cuda.current_stream().wait_stream(stream)
    for side in range(2):
        optimizers[side] = optimizer([p for network in sides[side] for p in network.parameters()])
        for mine, theirs in zip(sides[side], pair_of(small_mlp), strict=True):
            mine.load_state_dict(theirs.state_dict())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step(0)
    generator = torch.Generator(device).manual_seed(0)
    for epoch in range(1, 6):
        inputs.copy_(torch.rand(16, 6, generator=generator, device=device))
        labels.copy_(torch.randint(CLASSES, (16,), generator=generator, device=device))
        plan = plan_epoch(settings(epochs=6, decay_start=2), epoch, 16)
        for side in range(2):
            rates[side].load(plan)
        graph.replay()
        step(1)
        assert same_bits(*(parameters(tuple(side)) for side in sides)), epoch


def test_convolutions_are_laid_out_for_tensor_cores_and_come_back_with_the_same_values() -> None:
    run = train(small_cnn, precision="bfloat16")
    weight = run.networks[0][0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    images = held_out(45, (3, 8, 8)).inputs[:4].cuda() / 255
    plain = small_cnn().cuda().eval()
    plain.load_state_dict(run.networks[0].state_dict())
    torch.testing.assert_close(plain(images), run.networks[0](images), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("count", [1, 511, 512, 3000])
def test_every_test_image_is_counted(count: int) -> None:
    networks = pair_of(small_cnn)
    data = blobs(32, (3, 8, 8))
    test = held_out(count, (3, 8, 8))
    run = fit(settings(device="cuda", epochs=1, lr=1e-9), networks, data, test=Samples(test.inputs, test.labels))
    near = max(1.5, 0.005 * count)  # a batch of another size may sum in another order
    right = [int((network(test.inputs.cuda() / 255).argmax(1) == test.labels.cuda()).sum()) for network in run.networks]
    for name, number in zip(("test_accuracy_1", "test_accuracy_2"), right, strict=True):
        counted = run.metrics[0][name] * count
        assert counted == pytest.approx(round(counted), abs=1e-6)
        assert counted == pytest.approx(number, abs=near)
