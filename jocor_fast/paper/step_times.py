"""How long an epoch will take on this machine, from a few of its steps; the data set need not be at hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from jocor_fast.config.resolve import Config
from jocor_fast.data.samples import Samples
from jocor_fast.methods import METHODS
from jocor_fast.models.networks import build_model
from jocor_fast.noise.drawing import expected_rate
from jocor_fast.noise.matrices import transition_matrix
from jocor_fast.runs.fit import fit
from jocor_fast.schedules import steps_per_epoch

MEASURED_SECONDS = 0.5  # of steps, where two do not take longer
MOST_STEPS = 200
SLOW_SECONDS = 2.0  # of a step: one is enough then
EVALUATED_SAMPLES = 512


@dataclass(frozen=True)
class DataShape:
    """What a data set looks like, without reading it.

    Attributes:
        train, test, val: how many samples; val: in a validation set of its own.
        sample: the shape of one, as `build_model` takes it.
        model: the network for it where none is asked for.
        class_counts: training samples of each class.
    """

    train: int
    test: int
    sample: tuple[int, ...]
    model: str
    class_counts: tuple[int, ...]
    val: int = 0


_MNIST_COUNTS = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
SHAPES = {
    "digits": DataShape(1437, 360, (8, 8), "mlp", (1,) * 10),
    "mnist": DataShape(60_000, 10_000, (28, 28), "mlp", _MNIST_COUNTS),
    "cifar10": DataShape(50_000, 10_000, (3, 32, 32), "cnn", (5000,) * 10),
    "cifar100": DataShape(50_000, 10_000, (3, 32, 32), "cnn", (500,) * 100),
    "clothing1m": DataShape(1_000_000, 10_526, (3, 224, 224), "resnet18", (1,) * 14, val=14_313),
}


def expected_forget_rate(config: Config) -> float | None:
    """Return τ as the run will have it; None for a method that trains on everything."""
    if not METHODS[config["method"]].selects:
        return None
    if config["forget_rate"] is not None:
        return float(config["forget_rate"])
    counts = SHAPES[config["dataset"]].class_counts
    matrix = transition_matrix(config["noise"], len(counts), config["noise_rate"], config["dataset"])
    return expected_rate(matrix, np.repeat(np.arange(len(counts)), counts))


class StepTimes:
    """Measures each network and method once, with so many threads; `failures` says why some cannot be measured."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.failures: dict[tuple[Any, ...], str] = {}
        self._known: dict[tuple[Any, ...], tuple[float, float]] = {}  # seconds of a step, of evaluating a sample

    def of_epoch(self, config: Config) -> float | None:
        """Return the seconds of an epoch with its evaluation, None where they cannot be measured."""
        shape = SHAPES[config["dataset"]]
        model = config["model"] or shape.model
        key = (config["dataset"], model, config["method"], config["batch_size"], config["device"])
        if key not in self._known and key not in self.failures:
            try:
                self._known[key] = self._measured(config, shape, model)
            except ValueError as error:  # such as a network that needs torchvision
                self.failures[key] = str(error)
        if key in self.failures:
            return None
        step, sample = self._known[key]
        held_out = round(config["val_fraction"] * shape.train)
        steps = steps_per_epoch(shape.train - held_out, config["batch_size"], config["recipe"])
        return step * steps + sample * (shape.test + shape.val + held_out)

    def _measured(self, config: Config, shape: DataShape, model: str) -> tuple[float, float]:
        """Return the seconds of a step and of evaluating a sample."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            first, evaluated = _trained(config, shape, model, steps=1, epochs=1)
            if first > SLOW_SECONDS:
                return first, evaluated
            steps = min(MOST_STEPS, max(2, int(MEASURED_SECONDS / first)))
            # The second of two epochs is measured where that costs little: the first pays for caches and captures.
            return _trained(config, shape, model, steps=steps, epochs=2 if first < MEASURED_SECONDS else 1)
        finally:
            torch.set_num_threads(before)


def _trained(config: Config, shape: DataShape, model: str, *, steps: int, epochs: int) -> tuple[float, float]:
    """Return what `_measured` does, of the last epoch of a run on random samples that writes no files."""
    settings = replace(config.train_settings(), epochs=epochs, decay_start=epochs, recipe="paper")
    classes, generator = len(shape.class_counts), torch.Generator().manual_seed(0)
    evaluated = min(EVALUATED_SAMPLES, steps * settings.batch_size)
    pixels = torch.randint(256, (steps * settings.batch_size, *shape.sample), dtype=torch.uint8, generator=generator)
    labels = torch.randint(classes, (len(pixels),), generator=generator)
    run = fit(
        settings,
        lambda: build_model(model, shape.sample, classes),
        Samples(pixels, labels, labels),
        test=Samples(pixels[:evaluated], labels[:evaluated]),
    )
    line = run.metrics[-1]
    return line["seconds"] / steps, line["eval_seconds"] / evaluated
