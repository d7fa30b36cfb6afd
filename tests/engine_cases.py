"""Small data, networks and runs that the tests of the engine share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jocor_fast.data.samples import Samples
from jocor_fast.engine import loop
from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.engine.loop import EpochEvent, Observer
from jocor_fast.engine.processes import ALONE
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.state import TrainingState
from jocor_fast.runs import fit as runs_fit
from jocor_fast.runs.fit import Recording, Run

CLASSES = 4
METRICS = [  # the fields of a line of metrics.jsonl, in their order
    "epoch", "lr", "keep_rate", "forget_rate", "train_loss", "label_precision", "test_accuracy_1", "test_accuracy_2",
    "test_accuracy", "test_accuracy_ensemble", "val_accuracy", "nonfinite_rows", "bad_files", "wait_share", "seconds",
    "eval_seconds", "samples_per_second", "selected_share_per_class",
]  # fmt: skip
TIMINGS = ("seconds", "eval_seconds", "samples_per_second", "wait_share")


def blobs(count: int, shape: tuple[int, ...] = (6,), *, seed: int = 0, noise: float = 0.4) -> Samples:
    """uint8 samples around one centre a class; a share of the labels is drawn anew, the clean ones are known."""
    generator = torch.Generator().manual_seed(seed)
    centres = 60 + 130 * torch.randint(2, (CLASSES, *shape), generator=torch.Generator().manual_seed(4))
    clean = torch.randint(CLASSES, (count,), generator=generator)
    spread = torch.randint(-50, 51, (count, *shape), generator=generator)
    flipped = torch.rand(count, generator=generator) < noise
    noisy = torch.where(flipped, torch.randint(CLASSES, (count,), generator=generator), clean)
    return Samples((centres[clean] + spread).to(torch.uint8), noisy, clean)


def held_out(count: int, shape: tuple[int, ...] = (6,), *, seed: int = 1) -> Samples:
    """Samples with true labels."""
    data = blobs(count, shape, seed=seed, noise=0.0)
    return Samples(data.inputs, data.labels)


def small_mlp() -> nn.Module:
    """A network of which the engine pairs two."""
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def small_tanh() -> nn.Module:
    """The same with another activation: the engine runs two of them separately."""
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def small_cnn() -> nn.Module:
    """Convolution, BatchNorm and dropout on 8×8 colour images: all that has a state or draws at random."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32, CLASSES),
    )


def settings(**changes: Any) -> TrainSettings:
    """A short run on the CPU."""
    values: dict[str, Any] = {
        "forget_rate": 0.4,
        "ramp_epochs": 3,
        "epochs": 6,
        "batch_size": 16,
        "lr": 0.01,
        "device": "cpu",
    }
    return TrainSettings(**{**values, **changes})


def run(
    network: Callable[[], nn.Module] = small_mlp,
    *,
    data: Samples | None = None,
    output: Path | None = None,
    **changes: Any,
) -> Run:
    """A short run to its end."""
    return fit(settings(**changes), network, data or blobs(70), test=held_out(45), output=output)


def fit(
    settings: TrainSettings,
    networks: Any,
    train: Samples,
    *,
    test: Samples | None = None,
    val: Samples | None = None,
    output: str | Path | None = None,
    processes: Any = ALONE,
    on_epoch: Callable[[EpochEvent], object] | None = None,
    on_step: Callable[[int, int, int], object] | None = None,
    on_stage: Callable[[str], object] | None = None,
    **recording: Any,
) -> Run:
    """`runs.fit.fit` with functions for an observer, and the values of a `Recording`, whose folder is `output`."""

    class Told(Observer):
        def on_epoch(self, event: EpochEvent) -> None:
            if on_epoch is not None:
                on_epoch(event)

        def on_step(self, epoch: int, log: EpochLog) -> None:
            if on_step is not None:
                on_step(epoch, log.step, log.steps)

        def on_stage(self, stage: str) -> None:
            if on_stage is not None:
                on_stage(stage)

    kept = Recording(folder=output, **recording)
    return runs_fit.fit(
        settings, networks, train, test=test, val=val, recording=kept, processes=processes, observers=[Told()]
    )


def training(networks: tuple[nn.Module, ...], data: Samples, **changes: Any) -> TrainingState:
    """What the loop works on, without files."""
    return TrainingState(settings(**changes), networks, data, None, None, torch.device("cpu"))


class Paused(Exception):
    """Ends the loop between two steps; `loop.train` takes it up again."""


class Watch(Observer):
    """Notes what the loop tells of a state, and pauses it once `steps` of an epoch are done."""

    def __init__(self, state: TrainingState, steps: int | None = None) -> None:
        self.state, self.steps = state, steps
        self.reached: list[tuple[int, int, int]] = []
        self.lines: list[dict[str, Any]] = []
        self.logs: list[dict[str, Tensor]] = []  # of finished epochs, with the history of the samples

    def on_step(self, epoch: int, log: EpochLog) -> None:
        self.reached.append((epoch, log.step, log.steps))
        self._log = log

    def on_epoch(self, event: EpochEvent) -> None:
        self.lines.append(event.metrics)
        log = {name: getattr(self._log, name).clone() for name in ("order", "losses", "nonfinite", "selected")}
        self.logs.append({**log, "history": self.state.history.table.clone()})

    def pause_due(self, log: EpochLog) -> bool:
        return self.steps is not None and log.step >= self.steps

    def on_pause(self) -> None:
        raise Paused


def train_epochs(state: TrainingState, first: int, last: int | None = None) -> Watch:
    """Train some epochs, or the one; what was seen of them."""
    watch = Watch(state)
    assert loop.train(state, range(first, (last or first) + 1), watch) is None
    return watch


def train_steps(state: TrainingState, steps: int) -> Watch:
    """Train the first epoch, and pause after so many steps."""
    watch = Watch(state, steps)
    with pytest.raises(Paused):
        loop.train(state, [1], watch)
    return watch


def parameters(networks: tuple[nn.Module, ...]) -> list[Tensor]:
    """Copies of all parameters and buffers."""
    return [value.clone() for network in networks for value in network.state_dict().values()]


def same_bits(first: list[Tensor], second: list[Tensor]) -> bool:
    """Whether two lists of tensors are equal, bit for bit."""
    return len(first) == len(second) and all(map(torch.equal, first, second))


def first_batches(data: Samples, size: int, *, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The whole batches of the first epoch of a run with this seed."""
    order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(seed))
    for rows in order[: len(order) // size * size].split(size):
        yield data.inputs[rows] * (1 / 255), data.labels[rows]


def adam_by_hand(parameter: Tensor, gradients: list[Tensor], lr: list[float], beta1: list[float]) -> Tensor:
    """Kingma & Ba's algorithm 1 in float64, with a rate and a β1 of its own for each step."""
    p, m, v = parameter.double(), torch.zeros_like(parameter).double(), torch.zeros_like(parameter).double()
    for step, (gradient, rate, b1) in enumerate(zip(gradients, lr, beta1, strict=True), start=1):
        g = gradient.double()
        m, v = b1 * m + (1 - b1) * g, 0.999 * v + 0.001 * g * g
        p = p - rate * (m / (1 - b1**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
    return p


def strict_json(text: str) -> Any:
    """The content of a file of a run, in which NaN is never written."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in a file")

    return json.loads(text, parse_constant=refuse)


def without_timings(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what differs from run to run."""
    return [{name: value for name, value in line.items() if name not in TIMINGS} for line in metrics]


def pair_of(build: Callable[[], nn.Module], seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """Two networks, the same whenever the seed is."""
    torch.manual_seed(seed)
    return build(), build()


class Asks(nn.Module):
    """Asks the device for a number, in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.linear(inputs)
        return logits if logits.sum().item() == 0 else logits * 2
