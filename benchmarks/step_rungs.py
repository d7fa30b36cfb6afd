"""The training step, rung by rung: from the published code's to ours, each with one thing changed.

Every rung trains two networks on the same data by the same loss, k = B/2: forward, selection, backward, Adam.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import contenders
from inputs import CO_LAMBDA
from jocor_fast.data.samples import Samples
from jocor_fast.engine import loop
from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.engine.loop import EpochEvent, Observer
from jocor_fast.engine.networks import SeparateNetworks
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.state import TrainingState
from jocor_fast.models.networks import build_model

WORKERS = 4  # of the published code
SCALE = 1 / 255

Told = Callable[[int], None]  # of how many steps have been launched


@dataclass(frozen=True)
class Task:
    """What is trained; on a CPU less of it, so that the bench ends.

    Attributes:
        steps: how many are timed together; at least, where they are short.
    """

    name: str
    model: str
    shape: tuple[int, ...]
    classes: int
    batch: int
    samples: int
    steps: int

    def data(self) -> Samples:
        """Noise: what the pixels show changes no time."""
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randint(256, (self.samples, *self.shape), dtype=torch.uint8, generator=generator)
        labels = torch.randint(self.classes, (self.samples,), generator=generator)
        return Samples(inputs, labels, labels, SCALE)

    def networks(self, device: torch.device) -> tuple[nn.Module, ...]:
        torch.manual_seed(0)
        return tuple(build_model(self.model, self.shape, self.classes).to(device) for _ in range(2))


def tasks_of(device: str) -> list[Task]:
    """MNIST's perceptrons, CIFAR-10's convolutions, ResNet-18 on the images of Clothing1M."""
    if device == "cuda":
        return [
            Task("MNIST MLP", "mlp", (28, 28), 10, 128, 60_000, 468),
            Task("CIFAR-10 CNN", "cnn", (3, 32, 32), 10, 128, 50_000, 96),
            Task("ResNet-18 at 224", "resnet18", (3, 224, 224), 14, 64, 2_048, 24),
        ]
    return [
        Task("MNIST MLP", "mlp", (28, 28), 10, 128, 60_000, 117),
        Task("CIFAR-10 CNN", "cnn", (3, 32, 32), 10, 32, 1_024, 1),
        Task("ResNet-18 at 224", "resnet18", (3, 224, 224), 14, 2, 32, 1),
    ]


# --- loops as people write them ---------------------------------------------------------------------------------------


class OfOneSample(Dataset[tuple[Tensor, Tensor]]):
    """What a worker process does for each sample: as torchvision's ToTensor, but without the detour over Pillow."""

    def __init__(self, data: Samples) -> None:
        assert isinstance(data.inputs, Tensor)
        self.inputs, self.labels = data.inputs, data.labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index].float().div(255), self.labels[index]


def from_workers(data: Samples, batch: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are fewer cores
            loader = iter(DataLoader(OfOneSample(data), batch, shuffle=True, drop_last=True, num_workers=WORKERS))
        for inputs, labels in loader:
            yield inputs.to(device), labels.to(device)


def from_memory(data: Samples, batch: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    assert isinstance(data.inputs, Tensor)
    stored, labels = data.inputs.to(device), data.labels.to(device)
    while True:
        order = torch.randperm(len(labels), device=device)
        for rows in order[: len(labels) // batch * batch].split(batch):
            yield stored.index_select(0, rows).float().mul_(SCALE), labels.index_select(0, rows)


class PlainLoop:
    """A loop in plain PyTorch around a loss."""

    def __init__(
        self, task: Task, device: torch.device, batches: Iterator[tuple[Tensor, Tensor]], loss: contenders.Loss
    ) -> None:
        self.networks = task.networks(device)
        self.kept = task.batch // 2
        self.batches = batches
        self.loss = loss
        parameters = [parameter for network in self.networks for parameter in network.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=1e-3)

    def run(self, steps: int, told: Told) -> None:
        """Launch so many steps; nothing need have ended when it returns."""
        for step in range(1, steps + 1):
            inputs, labels = next(self.batches)
            first, second = (network(inputs) for network in self.networks)
            loss = self.loss(first, second, labels, self.kept)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            told(step)


# --- ours -------------------------------------------------------------------------------------------------------------


class OurTrainer:
    """The trainer, epoch after epoch."""

    def __init__(self, task: Task, device: torch.device, *, two_streams: bool = False, **settings: Any) -> None:
        chosen = TrainSettings(
            forget_rate=0.5, ramp_epochs=0, co_lambda=CO_LAMBDA, batch_size=task.batch, device=str(device), **settings
        )
        self.state = TrainingState(chosen, task.networks(device), task.data(), None, None, device)
        if not two_streams and isinstance(self.state.step.group, SeparateNetworks):
            self.state.step.group.side = None
        self.steps_of_epoch = task.samples // task.batch

    def run(self, steps: int, told: Told) -> None:
        until = Until(steps, told, 0 if self.state.log is None else self.state.log.step, self.steps_of_epoch)
        with contextlib.suppress(Enough):
            while True:
                loop.train(self.state, [1], until)


class Enough(Exception):
    """Ends the loop after a step; the next run takes it up there."""


class Until(Observer):
    def __init__(self, steps: int, told: Told, done_of_epoch: int, steps_of_epoch: int) -> None:
        self.steps, self.told, self.earlier, self.steps_of_epoch = steps, told, -done_of_epoch, steps_of_epoch

    def on_step(self, epoch: int, log: EpochLog) -> None:
        self.told(self.earlier + log.step)
        if self.earlier + log.step >= self.steps:
            raise Enough

    def on_epoch(self, event: EpochEvent) -> None:
        self.earlier += self.steps_of_epoch


Rung = PlainLoop | OurTrainer

PUBLISHED_STEP, IN_MEMORY, OUR_LOSS = "published: argsort on the host, workers", "plain PyTorch in memory", "+ our loss"
LAUNCHED, GRAPH, STREAMS, BFLOAT16 = "our trainer, launched by the host", "+ graph", "+ two streams", "+ bfloat16"
ON_GPU_ALONE = (GRAPH, STREAMS, BFLOAT16)

RUNGS: dict[str, Callable[[Task, torch.device], Rung]] = {
    PUBLISHED_STEP: lambda task, device: PlainLoop(
        task, device, from_workers(task.data(), task.batch, device), contenders.published
    ),
    IN_MEMORY: lambda task, device: PlainLoop(
        task, device, from_memory(task.data(), task.batch, device), contenders.eager
    ),
    OUR_LOSS: lambda task, device: PlainLoop(
        task, device, from_memory(task.data(), task.batch, device), contenders.ours
    ),
    LAUNCHED: lambda task, device: OurTrainer(task, device, no_graph=True),
    GRAPH: lambda task, device: OurTrainer(task, device),
    STREAMS: lambda task, device: OurTrainer(task, device, two_streams=True),
    BFLOAT16: lambda task, device: OurTrainer(task, device, two_streams=True, precision="bfloat16"),
}


def rungs_of(device: str) -> list[str]:
    return [name for name in RUNGS if device == "cuda" or name not in ON_GPU_ALONE]
