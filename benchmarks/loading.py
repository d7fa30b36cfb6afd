"""What is timed of loading: our loaders, a DataLoader as people write it, and training on what they bring."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from jocor_fast.data.images.preprocessing import Preprocessing
from jocor_fast.data.images.source import ImageFiles
from jocor_fast.data.samples import Samples
from jocor_fast.engine import loop
from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.engine.loop import Observer
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.state import TrainingState
from jocor_fast.models.networks import build_model

BATCH = 64  # the paper's for Clothing1M
CLASSES = 14
PREPROCESSING = Preprocessing((256, 256))
DALI, OURS_WITHOUT, DATALOADER = "DALI", "Pillow and torch (--loader pillow)", "a Pillow DataLoader"
WARM_UP_STEPS = 20

Batches = Callable[[], Iterator[Tensor]]  # a pass over the images, as networks take them


def loaded_by(loader: str, images: ImageFiles, device: torch.device) -> Batches:
    """One of our loaders, normalisation included, each pass in another order."""
    source = replace(images, preprocessing=PREPROCESSING, loader=loader).open(device, BATCH, training=True)
    epochs = itertools.count(1)

    def passed() -> Iterator[Tensor]:
        epoch = next(epochs)
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for _, stored in source.batches(order, BATCH, epoch):
            yield source.network_input(stored)

    return passed


class _Files(Dataset[Tensor]):
    """What the usual scripts do to an image: Pillow opens, converts, resizes and crops; a tensor is normalised."""

    def __init__(self, images: ImageFiles) -> None:
        self.paths = [os.path.join(images.folder, path) for path in images.paths]
        self.mean, self.std = (
            torch.tensor(values)[:, None, None] for values in (PREPROCESSING.mean, PREPROCESSING.std)
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        from torchvision.transforms.functional import pil_to_tensor

        with Image.open(self.paths[index]) as image:
            resized = image.convert("RGB").resize((256, 256), Image.Resampling.BILINEAR)
        return pil_to_tensor(resized.crop((16, 16, 240, 240))).float().div_(255).sub_(self.mean).div_(self.std)


def loaded_by_dataloader(images: ImageFiles, workers: int) -> Batches:
    """torch's DataLoader with a worker a core, which stay from pass to pass."""
    loader = DataLoader(_Files(images), BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    return lambda: iter(loader)


def seconds_of_a_pass(batches: Batches, device: torch.device) -> float:
    """All images of one pass, to the end of what the device does with them."""
    started = time.perf_counter()
    for _ in batches():
        pass
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def images_per_second(batches: Batches, count: int, device: torch.device, *, seconds: float) -> float:
    """Of passes over `count` images, for about that long; a first pass warms up."""
    seconds_of_a_pass(batches, device)
    started, passes = time.perf_counter(), 0
    while passes == 0 or time.perf_counter() - started < seconds:
        seconds_of_a_pass(batches, device)
        passes += 1
    return passes * count / (time.perf_counter() - started)


def train_resnets(images: ImageFiles, loader: str, device: torch.device, *, seconds: float) -> dict[str, float]:
    """JoCoR with two ResNet-18 in bfloat16, as `jocor-fast train` runs it: images a second, share of waiting."""
    settings = TrainSettings(forget_rate=0.3, batch_size=BATCH, epochs=1000, precision="bfloat16", device=str(device))
    torch.manual_seed(0)
    networks = [build_model("resnet18", (3, 224, 224), CLASSES).to(device) for _ in range(2)]
    inputs = replace(images, preprocessing=PREPROCESSING, loader=loader)
    labels = torch.arange(len(images)) % CLASSES
    state = TrainingState(settings, networks, Samples(inputs, labels), None, None, device)
    measured = _Measured(seconds)
    with contextlib.suppress(_MeasuredEnough):
        loop.train(state, range(1, 1000), measured)
    spent = measured.ended - measured.begun
    return {"images_per_second": measured.steps * BATCH / spent, "wait_share": measured.waited / spent}


class _MeasuredEnough(Exception):
    pass


class _Measured(Observer):
    """Counts the steps of some seconds, after a few to warm up, and how long they waited for their images."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.steps, self.waited = seconds, -WARM_UP_STEPS, 0.0
        self._known = 0.0  # waited in the epoch, as far as it is counted

    def on_step(self, epoch: int, log: EpochLog) -> None:
        self.steps += 1
        waited, self._known = log.waited - (self._known if log.step > 1 else 0.0), log.waited
        now = time.perf_counter()
        if self.steps <= 0:
            self.begun = now
            return
        self.waited, self.ended = self.waited + waited, now
        if now - self.begun >= self.seconds:
            raise _MeasuredEnough
