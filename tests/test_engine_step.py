"""The training step against plain PyTorch loops, its repeatability, and that it does not wait for the device."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from engine_cases import (
    CLASSES,
    adam_by_hand,
    blobs,
    first_batches,
    fit,
    pair_of,
    parameters,
    run,
    same_bits,
    settings,
    small_cnn,
    small_mlp,
    small_tanh,
    train_epochs,
    train_steps,
    training,
)
from graph_stand_in import WAITING
from jocor_fast import reference
from jocor_fast.data.samples import Samples
from jocor_fast.engine.optimizer import FusedAdam, PlainSGD
from jocor_fast.engine.paired_mlp import PairedMLP
from jocor_fast.engine.plan import plan_epoch
from jocor_fast.methods import METHODS, Keep, Standard
from jocor_fast.models.networks import cnn, mlp

SEED = 5


def never() -> bool:
    return False


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_standard_equals_a_plain_loop(optimizer: str) -> None:
    data = blobs(48)
    (mine, theirs), initial = pair_of(small_mlp), small_mlp().state_dict()
    mine.load_state_dict(initial)
    theirs.load_state_dict(initial)
    fit(settings(method="standard", optimizer=optimizer, epochs=1, seed=SEED), mine, data)

    plain = (
        torch.optim.Adam(theirs.parameters(), 0.01)
        if optimizer == "adam"
        else torch.optim.SGD(theirs.parameters(), 0.01)
    )
    for inputs, labels in first_batches(data, 16, seed=SEED):
        plain.zero_grad()
        F.cross_entropy(theirs(inputs), labels).backward()
        plain.step()

    torch.testing.assert_close(dict(mine.state_dict()), dict(theirs.state_dict()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("network", [small_mlp, small_tanh], ids=["paired", "separate"])
def test_jocor_equals_a_plain_loop_with_the_reference_loss(network: Any) -> None:
    data = blobs(48)
    mine, theirs = pair_of(network), pair_of(network)
    changes = {"ramp_epochs": 0, "forget_rate": 0.5, "co_lambda": 0.6, "weight_decay": 0.01}
    fit(settings(epochs=1, seed=SEED, **changes), mine, data)

    plain = torch.optim.Adam([p for net in theirs for p in net.parameters()], 0.01, weight_decay=0.01)
    for inputs, labels in first_batches(data, 16, seed=SEED):
        plain.zero_grad()
        reference.jocor_loss(theirs[0](inputs), theirs[1](inputs), labels, co_lambda=0.6, num_keep=8).loss.backward()
        plain.step()

    for ours, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(dict(ours.state_dict()), dict(expected.state_dict()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", [small_mlp, small_tanh, small_cnn])
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_same_seed_gives_the_same_bits_after_50_steps(network: Any, deterministic: bool) -> None:
    data = blobs(800, (3, 8, 8) if network is small_cnn else (6,))
    torch.use_deterministic_algorithms(deterministic)
    try:
        results = []
        for _ in range(2):
            networks = pair_of(network)
            torch.manual_seed(0)  # dropout draws from torch's own generator, which `fit` seeds
            augment = "crop-flip" if network is small_cnn else "none"
            (log,) = train_epochs(training(networks, data, seed=SEED, augment=augment), 1).logs
            results.append([log["losses"], *parameters(networks)])
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(results[0][0]) == 50
    assert same_bits(*results)


def test_another_seed_gives_other_batches_and_other_weights() -> None:
    first, second = run(seed=1, epochs=1), run(seed=2, epochs=1)
    assert not same_bits(parameters(first.networks), parameters(second.networks))


@pytest.mark.parametrize(
    ("build", "shape"), [(lambda: mlp(64, 10), (8, 8)), (lambda: cnn(10), (3, 32, 32))], ids=["mlp", "cnn"]
)
def test_the_two_networks_differ_in_every_layer_and_a_step_changes_both(build: Any, shape: tuple[int, ...]) -> None:
    networks = pair_of(build)
    data = blobs(16, shape)
    layers = [[m for m in network.modules() if isinstance(m, (nn.Conv2d, nn.Linear))] for network in networks]
    for one, other in zip(*layers, strict=True):
        assert not torch.equal(one.weight, other.weight)
    before = [parameter.clone() for network in networks for parameter in network.parameters()]
    fit(settings(epochs=1), networks, data)
    after = [parameter for network in networks for parameter in network.parameters()]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_networks_that_a_function_builds_differ_and_follow_the_seed() -> None:
    built: list[list[Tensor]] = []

    def build() -> nn.Module:
        network = small_mlp()
        built.append([parameter.detach().clone() for parameter in network.parameters()])
        return network

    for seed in (3, 3, 4):
        fit(settings(epochs=1, seed=seed), build, blobs(20))
    first, second, again, _, other, _ = built
    assert not any(map(torch.equal, first, second))
    assert same_bits(first, again)
    assert not any(map(torch.equal, first, other))


def gradients_and_start() -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(33, generator=generator) for _ in range(4)], torch.randn(33, generator=generator)


BETA1 = [0.9, 0.9, 0.1, 0.1]


@pytest.mark.parametrize("flavour", [{}, {"foreach": True}, {"fused": True}], ids=["plain", "foreach", "fused"])
def test_adam_follows_a_change_of_beta1_as_every_adam_of_torch_does(flavour: dict[str, bool]) -> None:
    gradients, start = gradients_and_start()
    parameter, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer = FusedAdam([parameter])
    torchs = torch.optim.Adam([theirs], lr=0.1, **flavour)
    for gradient, beta1 in zip(gradients, BETA1, strict=True):
        parameter.grad = gradient.clone()
        theirs.grad = gradient.clone()
        optimizer.step(lr=0.1, beta1=beta1)
        torchs.param_groups[0]["betas"] = (beta1, 0.999)
        torchs.step()
    by_hand = adam_by_hand(start, gradients, [0.1] * 4, BETA1)
    torch.testing.assert_close(parameter.detach().double(), by_hand, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(theirs.detach().double(), by_hand, rtol=1e-5, atol=1e-6)
    if flavour == {"fused": True}:
        assert torch.equal(parameter, theirs)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_the_optimisers_leave_alone_what_has_no_gradient(weight_decay: float) -> None:
    gradients, start = gradients_and_start()
    pairs = (
        (FusedAdam, lambda parameters: torch.optim.Adam(parameters, 0.1, weight_decay=weight_decay, fused=True)),
        (PlainSGD, lambda parameters: torch.optim.SGD(parameters, 0.1, weight_decay=weight_decay)),
    )
    for mine, torchs in pairs:
        ours, theirs = ([nn.Parameter(start.clone()) for _ in range(3)] for _ in range(2))
        optimizer, expected = mine(ours, weight_decay=weight_decay), torchs(theirs)
        for step, gradient in enumerate(gradients):
            for side in (ours, theirs):
                side[0].grad = gradient.clone()
                side[1].grad = gradient.clone() if step % 2 else None
            optimizer.step(lr=0.1, beta1=0.9)
            expected.step()
        assert same_bits(ours, theirs)
        assert torch.equal(ours[2], start)
        assert not torch.equal(ours[1], start)


def test_the_published_recipe_lowers_beta1_where_the_decay_starts() -> None:
    """One weight, one batch an epoch: every gradient is known, so is every Adam step."""
    data = Samples(torch.ones(4, 1), torch.tensor([0, 0, 0, 1]))
    network = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(network.weight)
    changes = {"recipe": "published", "epochs": 5, "decay_start": 3, "optimizer": "adam", "lr": 0.01}
    fit(settings(method="standard", **changes), network, data)

    weight = torch.zeros(2, dtype=torch.float64)
    m, v = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    share = torch.tensor([0.75, 0.25], dtype=torch.float64)
    schedule = [(1.0, 0.9), (1.0, 0.9), (1.0, 0.1), (0.5, 0.1)]  # (5 − 4)/(5 − 3); the fifth epoch is not trained
    for step, (factor, b1) in enumerate(schedule, start=1):
        g = weight.softmax(0) - share
        m, v = b1 * m + (1 - b1) * g, 0.999 * v + 0.001 * g * g
        weight = weight - 0.01 * factor * (m / (1 - b1**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
    torch.testing.assert_close(network.weight[:, 0].double(), weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("recipe", "steps", "kept"), [("paper", 468, 116), ("published", 401, 113)])
def test_an_epoch_of_a_recipe_has_its_steps_and_its_kept_rows(recipe: str, steps: int, kept: int) -> None:
    # Rows to keep: .9 · 128 = 115.2, up; (1 − 1/9) · 128 = 113.8, down.
    plan = plan_epoch(settings(recipe=recipe, batch_size=128, forget_rate=0.5, ramp_epochs=10), 2, 60_000)
    assert (plan.steps, plan.batch_size, plan.num_keep) == (steps, 128, kept)


class Calls(TorchDispatchMode):
    """Names of the operators that run within."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket._qualified_op_name)
        return func(*args, **(kwargs or {}))


def calls_of_an_epoch(networks: tuple[nn.Module, ...], data: Samples, **changes: Any) -> set[str]:
    state = training(networks, data, **changes)
    state.step.method.prepare(lambda *given: torch.eye(CLASSES))
    with Calls() as calls:
        train_steps(state, len(data.labels) // 16 - 1)
    return calls.names


@pytest.mark.parametrize("method", METHODS)
def test_no_operator_of_a_step_waits_for_the_device(method: str) -> None:
    networks = pair_of(small_cnn)[: METHODS[method].num_networks]
    names = calls_of_an_epoch(networks, blobs(40, (3, 8, 8)), method=method, augment="crop-flip", forget_rate=0.1)
    assert "aten::convolution" in names
    assert "aten::_fused_adam_" in names
    assert not names & WAITING


def test_the_watch_for_waiting_operators_sees_one() -> None:
    with Calls() as calls:
        torch.ones(3)[0].item()
        torch.ones(3).nonzero()
    assert {"aten::_local_scalar_dense", "aten::nonzero"} <= calls.names & WAITING


def test_bfloat16_trains_and_keeps_float32_weights() -> None:
    result, exact = (
        run(small_tanh, data=blobs(400), precision=precision, epochs=10) for precision in ("bfloat16", "float32")
    )
    assert {value.dtype for value in parameters(result.networks)} == {torch.float32}
    assert not same_bits(parameters(result.networks), parameters(exact.networks))
    assert exact.metrics[-1]["test_accuracy"] > 0.9
    assert result.metrics[-1]["test_accuracy"] > 0.9


def test_cross_entropy_of_half_precision_logits_is_computed_in_float32() -> None:
    logits = torch.randn(16, CLASSES, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    labels = torch.arange(16) % CLASSES
    loss = Standard().loss((logits,), labels, Keep(16, 0.0)).loss
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(F.cross_entropy(logits.double(), labels).item(), rel=1e-6)
    double = Standard().loss((logits.double(),), labels, Keep(16, 0.0)).loss
    assert double.dtype == torch.float64


def test_a_frozen_parameter_stays_as_it_is() -> None:
    networks = pair_of(small_mlp)
    frozen = networks[0][1].weight.requires_grad_(False)
    before = frozen.clone()
    fit(settings(epochs=1), networks, blobs(40))
    assert torch.equal(frozen, before)
    assert not PairedMLP.fits(networks, torch.zeros(1, 6))


def test_compiled_networks_compute_the_same_and_stay_the_modules_that_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a backend that runs what was traced: what code the default one makes of it is torch's business."""
    traced: list[int] = []

    def as_traced(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        traced.append(len(inputs))
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=as_traced))
    data = blobs(64)
    networks = {compiled: pair_of(small_mlp) for compiled in (False, True)}
    for compiled, pair in networks.items():
        train_epochs(training(pair, data, compile=compiled, epochs=1), 1)
    assert traced
    assert list(networks[True][0].state_dict()) == list(networks[False][0].state_dict())
    for mine, plain in zip(parameters(networks[True]), parameters(networks[False]), strict=True):
        torch.testing.assert_close(mine, plain)
