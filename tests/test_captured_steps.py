"""Steps as graphs, against a stand-in for the calls of a GPU (graph_stand_in.py): the same bits as step by step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine_cases import (
    CLASSES,
    Asks,
    blobs,
    fit,
    pair_of,
    parameters,
    same_bits,
    settings,
    small_cnn,
    small_mlp,
    small_tanh,
    train_epochs,
    train_steps,
)
from engine_cases import (
    training as a_training,
)
from graph_stand_in import StandIn
from jocor_fast.data.samples import ResidentInputs
from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.engine.graph import FIRST_STEPS, LAUNCHES_AHEAD, STEPS_PER_GRAPH, CapturedSteps
from jocor_fast.engine.plan import DeviceRates, plan_epoch
from jocor_fast.engine.state import TrainingState
from jocor_fast.methods import METHODS, StepLoss

STEPS = 2 * STEPS_PER_GRAPH + FIRST_STEPS + 2  # of an epoch: the first ones, two graphs of many and two of one
SAMPLES = 16 * STEPS + 5
Build = Callable[[], nn.Module]


@dataclass
class Training:
    """A training whose steps are recorded by the stand-in, and what it has left behind."""

    state: TrainingState
    cuda: StandIn | None
    networks: tuple[nn.Module, ...]

    def epochs(self, first: int, last: int) -> list[list[Tensor]]:
        """Train; what each epoch's log held, and all weights and statistics at the end."""
        logs = train_epochs(self.state, first, last).logs
        return [*(list(log.values()) for log in logs), parameters(self.networks)]


def made(network: Build, captured: bool, **changes: Any) -> Training:
    count = METHODS[changes.get("method", "jocor")].num_networks
    networks = pair_of(network)[:count]
    state = a_training(networks, blobs(SAMPLES, (3, 8, 8) if network is small_cnn else (6,)), **changes)
    cuda = StandIn() if captured else None
    if captured:
        assert isinstance(state.source, ResidentInputs)
        state.captured = CapturedSteps(state.step, state.source, state.labels, state.history, cuda=cuda)
    torch.manual_seed(0)  # dropout draws from torch's own generator
    return Training(state, cuda, networks)


def assert_same_epochs(mine: list[list[Tensor]], expected: list[list[Tensor]]) -> None:
    for number, (one, other) in enumerate(zip(mine, expected, strict=True), start=1):
        assert same_bits(one, other), f"epoch {number}"


RUNS: list[tuple[Build, dict[str, Any]]] = [
    (small_tanh, {}),
    (small_tanh, {"method": "standard", "weight_decay": 0.1}),
    (small_tanh, {"method": "decoupling"}),
    (small_tanh, {"method": "coteaching-plus", "warmup_epochs": 1}),
    (small_tanh, {"method": "elr"}),
    (small_tanh, {"method": "joint-optimization"}),
    (small_tanh, {"method": "pencil", "method_options": {"pencil_from": 0.2}}),  # of 6 epochs
    (small_tanh, {"method": "nlnl"}),
    (small_tanh, {"method": "dml"}),
    (small_tanh, {"method": "adaptation", "method_options": {"adaptation_warmup": 1}}),
    (small_tanh, {"optimizer": "sgd", "lr": 0.1}),
    (small_tanh, {"forget_rate": "adaptive", "ramp_epochs": 2}),
    (small_tanh, {"decay_start": 1}),
    (small_tanh, {"selection_per_class": True, "class_weights": "balanced", "label_smoothing": 0.1}),
    (small_tanh, {"selection_per_class": True, "method": "coteaching-plus", "warmup_epochs": 1}),
    (small_tanh, {"balanced_ramp": True, "ramp_epochs": 2}),
    (small_cnn, {"augment": "crop-flip"}),
    (small_cnn, {"precision": "float16", "recipe": "published", "decay_start": 2}),
]


@pytest.mark.parametrize(("network", "changes"), RUNS, ids=[f"{build.__name__}-{changes}" for build, changes in RUNS])
def test_recorded_steps_leave_the_bits_of_steps_launched_one_by_one(network: Build, changes: dict[str, Any]) -> None:
    """Through epochs whose k, rate, order and β1 differ, with dropout, crops, statistics and loss scaling."""
    expected = made(network, False, **changes).epochs(1, 3)
    training = made(network, True, **changes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_epochs(training.epochs(1, 3), expected)
    assert training.cuda is not None
    changes_of_what_runs = len(training.cuda.recorded) // 2 - 1  # the step after one is not recorded
    assert len(training.cuda.launches) == (2 + 2) + 2 * (2 + 5) - changes_of_what_runs
    assert training.state.how_steps_run == "CUDA graphs"


def test_steps_are_recorded_once_and_again_only_where_beta1_changes() -> None:
    training = made(small_tanh, True, recipe="published", decay_start=3, ramp_epochs=5)
    cuda = training.cuda
    assert cuda is not None
    recorded = []
    for epoch in range(1, 6):
        training.epochs(epoch, epoch)
        recorded.append(len(cuda.recorded))
    assert recorded == [2, 2, 4, 4, 4]  # a graph of many steps and one of one; β1 falls with epoch 3
    assert cuda.pools[0] is cuda.pools[1] is not cuda.pools[2]
    many, one = cuda.recorded[:2]
    assert many.names().count("aten::_fused_adam_") == STEPS_PER_GRAPH
    assert one.names().count("aten::_fused_adam_") == 1
    assert many.names().count("jocor_fast::jocor_loss") == STEPS_PER_GRAPH
    assert many.names().count("aten::index_copy_") == 4  # the metrics and the history of all its steps at once


def test_steps_of_co_teaching_plus_are_recorded_again_when_it_is_warm() -> None:
    training = made(small_tanh, True, method="coteaching-plus", warmup_epochs=2, ramp_epochs=5)
    cuda = training.cuda
    assert cuda is not None
    recorded = []
    for epoch in range(1, 5):
        training.epochs(epoch, epoch)
        recorded.append(len(cuda.recorded))
    assert recorded == [2, 2, 4, 4]


def test_only_a_generator_that_draws_in_a_step_is_registered() -> None:
    for augment in ("none", "crop-flip"):
        training = made(small_cnn, True, augment=augment)
        training.epochs(1, 1)
        assert training.cuda is not None
        for graph in training.cuda.recorded:
            assert graph.generators == ([] if augment == "none" else [training.state.generator])


@pytest.mark.parametrize("stopped_after", [1, FIRST_STEPS, FIRST_STEPS + STEPS_PER_GRAPH, STEPS - 1])
def test_a_run_stopped_between_launches_goes_on_to_the_same_bits(stopped_after: int) -> None:
    expected = made(small_cnn, False).epochs(1, 2)
    first = made(small_cnn, True)
    assert train_steps(first.state, stopped_after).reached[-1][1] == stopped_after
    state = first.state.state_dict()

    second = made(small_cnn, True)
    second.state.load_state_dict(state)
    assert_same_epochs(second.epochs(1, 2), expected)


def test_the_caller_is_told_after_every_launch_and_the_host_keeps_near_the_device() -> None:
    training = made(small_tanh, True)
    told = train_epochs(training.state, 1).reached
    assert [step for _, step, _ in told] == [1, 2, 3, 11, 19, 20, 21]
    assert {(epoch, of) for epoch, _, of in told} == {(1, STEPS)}
    training.epochs(2, 3)
    assert training.cuda is not None
    assert training.cuda.most_ahead == LAUNCHES_AHEAD + 1


def test_the_second_network_runs_on_a_stream_of_its_own() -> None:
    for two_streams in (True, False):
        training = made(small_tanh, True)
        if not two_streams:
            training.state.step.group.side = None  # type: ignore[attr-defined]
        training.epochs(1, 1)
        assert training.cuda is not None
        used = [stream for stream in training.cuda.streams if stream.given]
        assert len(used) == 1 + two_streams


def test_networks_that_share_a_layer_run_on_one_stream() -> None:
    """Both change the statistics of its BatchNorm."""

    def networks_of_one_trunk() -> Build:
        torch.manual_seed(1)
        trunk = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
        return lambda: nn.Sequential(trunk, nn.Tanh(), nn.Linear(8, CLASSES))

    expected = made(networks_of_one_trunk(), False).epochs(1, 2)
    training = made(networks_of_one_trunk(), True)
    assert_same_epochs(training.epochs(1, 2), expected)
    assert training.state.how_steps_run == "CUDA graphs"


def test_the_stand_in_sees_a_stream_that_is_not_joined() -> None:
    training = made(small_tanh, True)
    side = training.state.step.group.side  # type: ignore[attr-defined]
    side.join = lambda: None
    with pytest.raises(AssertionError, match="reads what it has not waited for"):
        training.epochs(1, 1)


def test_the_stand_in_keeps_the_numbers_of_the_host_as_they_were() -> None:
    """So a rate or k that came from the host would show: it would be that of the recording for ever."""
    cuda, stream = StandIn(), StandIn().Stream(torch.device("cpu"))
    total, on_device, on_host = torch.zeros(()), torch.ones(()), [1.0]
    graph = cuda.CUDAGraph()
    with cuda.stream(stream), cuda.graph(graph, pool=None, stream=stream, capture_error_mode=""):
        total.add_(on_device).add_(on_host[0])
    assert total == 0
    on_device.fill_(10)
    on_host[0] = 10.0
    graph.replay()
    assert total == 10 + 1


def test_a_network_may_wait_while_it_sets_itself_up() -> None:
    class AsksOnce(Asks):
        def forward(self, inputs: Tensor) -> Tensor:
            if self.training and not hasattr(self, "scale"):
                self.scale = float(self.linear(inputs).abs().max().item() > 0)
            logits: Tensor = self.linear(inputs)
            return logits

    expected = made(AsksOnce, False).epochs(1, 2)
    training = made(AsksOnce, True)
    assert_same_epochs(training.epochs(1, 2), expected)
    assert training.state.how_steps_run == "CUDA graphs"


class DrawsByItself(nn.Module):
    """Draws from a generator of its own, which no graph knows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.generator = nn.Linear(6, CLASSES), torch.Generator().manual_seed(3)

    def forward(self, inputs: Tensor) -> Tensor:
        noise = torch.rand(inputs.shape, generator=self.generator) if self.training else 0
        logits: Tensor = self.linear(inputs + noise)
        return logits


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (Asks, "a step waits for the device, which a graph cannot"),
        (small_mlp, "a step waits for the device, which a graph cannot"),  # two are paired, for the CPU alone
        (DrawsByItself, "a generator draws that is not registered with the graph"),
    ],
)
def test_what_cannot_be_recorded_is_launched_by_the_host_and_one_line_says_why(network: Build, reason: str) -> None:
    expected = made(network, False).epochs(1, 2)
    training = made(network, True)
    with pytest.warns(UserWarning, match="no CUDA graph") as caught:
        results = training.epochs(1, 2)
    assert [str(warning.message) for warning in caught] == [
        f"no CUDA graph, each step is launched by the host: {reason}"
    ]
    assert_same_epochs(results, expected)
    assert training.cuda is not None
    assert not training.cuda.launches
    assert not training.cuda.held
    assert training.state.how_steps_run == f"launched by the host: {reason}"


@pytest.mark.filterwarnings("ignore:mind the gap")  # of the forward passes before the first steps
def test_other_warnings_of_the_first_steps_are_passed_on() -> None:
    class Warns(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            warnings.warn("mind the gap", stacklevel=1)
            return super().forward(inputs)

    training = made(lambda: Warns(6, CLASSES), True)
    with pytest.warns(UserWarning, match="mind the gap"):
        training.epochs(1, 1)
    assert training.state.how_steps_run == "CUDA graphs"


def outcomes(count: int, choices: int) -> Iterator[StepLoss]:
    generator = torch.Generator().manual_seed(choices)
    for _ in range(count):
        masks = tuple(torch.rand(4, generator=generator) < 0.5 for _ in range(choices))
        nonfinite, losses = torch.randint(9, (), generator=generator), torch.rand(4, generator=generator)
        yield StepLoss(losses.mean(), masks, nonfinite, losses)


@pytest.mark.parametrize("choices", [1, 2])
def test_a_log_written_where_the_device_says_equals_one_written_in_turn(choices: int) -> None:
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    in_turn, by_place = EpochLog(order, 6, choices), EpochLog(order, 6, choices)
    steps = list(outcomes(6, choices))
    for step in steps:
        in_turn.record(step)
    for places in ([2, 3, 4], [0], [5, 1]):  # in any order
        assert torch.equal(
            by_place.rows(torch.tensor(places)), torch.cat([order[4 * at : 4 * at + 4] for at in places])
        )
        by_place.record_at(torch.tensor(places), [steps[at] for at in places])
    for name in ("losses", "nonfinite", "selected"):
        assert torch.equal(getattr(in_turn, name), getattr(by_place, name)), name


def test_rates_are_written_into_the_same_tensors_for_every_epoch() -> None:
    chosen = settings(recipe="published", decay_start=1, epochs=5)
    rates, seen = DeviceRates(torch.device("cpu")), []
    for epoch in range(1, 5):
        plan = plan_epoch(chosen, epoch, 100)
        loaded = rates.load(plan)
        assert isinstance(loaded.lr, Tensor)
        kept, forget_rate, *_ = loaded.keep
        assert isinstance(kept, Tensor)
        assert isinstance(forget_rate, Tensor)
        assert (loaded.lr.item(), loaded.beta1, kept.item()) == (plan.lr, plan.beta1, plan.num_keep)
        assert forget_rate.item() == 1 - plan.keep_rate
        seen.append((loaded.lr.data_ptr(), kept.data_ptr(), forget_rate.data_ptr()))
    assert len(set(seen)) == 1


def test_on_a_cpu_nothing_is_recorded_with_or_without_the_switch() -> None:
    networks = pair_of(small_tanh)
    for no_graph in (False, True):
        state = a_training(networks, blobs(40), no_graph=no_graph)
        assert state.captured is None
        assert state.rates is None
    result = fit(settings(epochs=1, no_graph=True), small_tanh, blobs(40))
    assert result.summary["environment"]["steps"] == "launched by the host"
    with pytest.raises(TypeError, match="no_graph must be a bool, got int"):
        settings(no_graph=1)
