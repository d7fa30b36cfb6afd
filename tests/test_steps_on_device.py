"""Nothing that a recorded step runs touches the host: on a GPU such a copy waits, and may not be recorded.

On the device `meta` a tensor of the host stands out; on the CPU, where the other tests run, it would not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from engine_cases import CLASSES, settings, small_cnn, small_tanh
from graph_stand_in import StandIn, name_of, tensors_in
from jocor_fast.data.samples import ResidentInputs
from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.engine.graph import CapturedSteps
from jocor_fast.engine.history import SampleHistory
from jocor_fast.engine.loss_scale import LossScale
from jocor_fast.engine.plan import plan_epoch
from jocor_fast.engine.step import TrainingStep
from jocor_fast.methods import METHODS

META = torch.device("meta")
SAMPLES, STEPS = 96, 6
NOT_ON_META = ("aten::_fused_adam_", "aten::_fused_sgd_", "aten::_amp_foreach_non_finite_check_and_unscale_",
               "aten::_amp_update_scale_")  # fmt: skip


class OnTheHost(TorchDispatchMode):
    """Collects the operators that read or make something there."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = name_of(func)
        outputs = None if name in NOT_ON_META else func(*args, **(kwargs or {}))
        if any(tensor.device.type == "cpu" for tensor in tensors_in(args, kwargs, outputs)):
            self.names.append(name)
        return outputs


class MadeOfNumbers(TorchFunctionMode):
    """Collects the calls that make a tensor of numbers: on a GPU they are copied there."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.tensor, torch.as_tensor):
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def operators_on_the_host(build: Callable[[], nn.Module], *, scaled: bool = False, **changes: Any) -> list[str]:
    """Of two steps, as they are recorded together."""
    chosen = settings(**changes)
    method = METHODS[chosen.method].of(chosen.as_dict())
    networks = tuple(build().to(META) for _ in range(method.num_networks))
    shape = (3, 8, 8) if build is small_cnn else (6,)
    source = ResidentInputs(torch.zeros(SAMPLES, *shape, dtype=torch.uint8), 1 / 255, META)
    labels = torch.zeros(SAMPLES, dtype=torch.int64, device=META)
    generator: Any = None  # there is none for this device
    method.start(labels, CLASSES)
    step = TrainingStep(chosen, method, networks, source, META, generator)
    step.method.prepare(lambda method, estimate, held_out: torch.eye(CLASSES, device=META))
    if scaled:
        step.loss_scale = LossScale(META)
    captured = CapturedSteps(step, source, labels, SampleHistory(labels, len(networks)), cuda=StandIn())
    log = EpochLog(torch.zeros(SAMPLES, dtype=torch.int64, device=META), STEPS, method.num_choices)
    captured.begin(log, plan_epoch(chosen, 1, SAMPLES))
    with OnTheHost() as found, MadeOfNumbers() as made:
        captured._steps(2)
    return [*found.names, *made.names]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("method", METHODS)
def test_no_operator_of_a_step_touches_the_host(method: str, optimizer: str) -> None:
    assert operators_on_the_host(small_tanh, method=method, optimizer=optimizer) == []


def test_nor_does_one_of_crops_statistics_and_loss_scaling() -> None:
    assert operators_on_the_host(small_cnn, augment="crop-flip", scaled=True) == []


def test_what_comes_from_the_host_is_seen() -> None:
    class Scales(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs * torch.tensor(2.0, device=inputs.device) + torch.ones(6).to(inputs.device))

    names = operators_on_the_host(lambda: Scales(6, CLASSES))
    assert {"tensor", "aten::ones", "aten::_to_copy"} <= set(names)
