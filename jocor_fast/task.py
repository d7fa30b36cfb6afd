"""What a run learns and is measured on: a data set, its noisy labels, the validation split, and the rate to forget.

The order is fixed: noise is drawn (or labels are read) for the whole training set, in its own order; only then is a
part held out. So a split changes no label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from .config import Config, ConfigError
from .data import DataError, Dataset, load_dataset, read_labels
from .engine.run import EvalData, TrainData
from .methods import METHODS
from .models import build_model
from .noise import corrupt, expected_rate, read_transition, realised_rate, transition_matrix

# τ is "under" the realised rate only beyond this: the draw itself strays from its nominal rate by chance.
RATE_TOLERANCE = 0.005


@dataclass(frozen=True)
class Task:
    """Everything that the engine needs beside the settings, and what is known about the noise.

    Attributes:
        nominal_noise_rate: the rate that was asked for; None where the labels or the matrix come from a file.
        expected_noise_rate: what the transition matrix makes of the clean labels; None without a matrix.
        realised_noise_rate: share of wrong labels among those trained on; None where the truth is unknown.
    """

    dataset: Dataset
    train: TrainData
    test: EvalData | None
    val: EvalData | None
    build_network: Callable[[], nn.Module]
    nominal_noise_rate: float | None
    expected_noise_rate: float | None
    realised_noise_rate: float | None


@dataclass(frozen=True)
class _NoisyLabels:
    noisy: np.ndarray
    clean: np.ndarray | None
    expected_rate: float | None


def build_task(config: Config, announce: Callable[[str], None] | None = None) -> Task:
    """Load the data, make or read the noisy labels and hold out the validation part.

    What depends on the data (`model`, `forget_rate`) is decided in `config`. `announce` is called with a sentence
    before each download.

    Raises:
        ConfigError: an option has a wrong value, or does not go with this data set.
        DataError: a file is missing or broken.
    """
    try:
        return _built_task(config, announce)
    except ConfigError:
        raise
    except ValueError as error:
        message = str(error)
        if isinstance(error, DataError) and config.blamed(message) is None:
            raise
        raise ConfigError(config.relabelled(message)) from error


def _built_task(config: Config, announce: Callable[[str], None] | None) -> Task:
    root = Path(config["data_root"]) if config["data_root"] is not None else None
    dataset = load_dataset(config["dataset"], root, announce=announce)
    labels = _noisy_labels(config, dataset)
    held_out, kept = _split(len(dataset.train_labels), config, dataset)
    clean = labels.clean[kept] if labels.clean is not None else None
    realised = realised_rate(clean, labels.noisy[kept]) if clean is not None else None
    _decide_forget_rate(config, labels.expected_rate, realised)
    if config["model"] is None:
        config.decide("model", dataset.default_model)
    inputs = torch.from_numpy(dataset.train_inputs)
    return Task(
        dataset=dataset,
        train=TrainData(
            _rows(inputs, kept),
            torch.from_numpy(labels.noisy[kept]),
            torch.from_numpy(clean) if clean is not None else None,
            dataset.input_scale,
        ),
        test=None if config["no_test"] else _eval_data(dataset.test_inputs, dataset.test_labels, dataset),
        val=_validation(config, dataset, labels, held_out, inputs),
        build_network=lambda: build_model(config["model"], dataset.input_shape, dataset.num_classes),
        nominal_noise_rate=config["noise_rate"],
        expected_noise_rate=labels.expected_rate,
        realised_noise_rate=realised,
    )


def forget_rate_warning(config: Config, task: Task) -> str | None:
    """A sentence where τ was chosen lower than the share of wrong labels, else None."""
    realised, forget_rate = task.realised_noise_rate, config["forget_rate"]
    if not METHODS[config["method"]].selects or realised is None:
        return None
    expected = realised if task.expected_noise_rate is None else task.expected_noise_rate
    if forget_rate >= min(realised, expected) - RATE_TOLERANCE:
        return None
    return (
        f"{config.label('forget_rate')} {forget_rate:g} is under the share of wrong labels, {realised:.3g}, so that "
        "wrong labels are trained on even if all are found"
    )


def _noisy_labels(config: Config, dataset: Dataset) -> _NoisyLabels:
    clean, num_classes = dataset.train_labels, dataset.num_classes
    if config["labels"] is not None:
        table, clean_spec = dataset.label_table, config["clean_labels"]
        labels = read_labels(config["labels"], clean, num_classes, clean_spec=clean_spec, label_table=table)
        return _NoisyLabels(labels.noisy, labels.clean, None)
    if config["noise_matrix"] is not None:
        transition = read_transition(config["noise_matrix"], num_classes)
    else:
        transition = transition_matrix(config["noise"], num_classes, config["noise_rate"], dataset.name)
    noisy = corrupt(clean, transition, seed=config["noise_seed"])
    return _NoisyLabels(noisy, clean, expected_rate(transition, clean))


def _split(samples: int, config: Config, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Ids held out for validation and ids to train on, both in data-set order."""
    fraction = config["val_fraction"]
    if fraction == 0:
        return np.arange(0), np.arange(samples)
    flag = config.label("val_fraction")
    if dataset.val_inputs is not None:
        raise ConfigError(f"{flag} must be 0 for {dataset.name}, which comes with a validation set of its own")
    count = round(fraction * samples)
    if not 1 <= count < samples:
        purpose = "validate on" if count < 1 else "train on"
        raise ConfigError(f"{flag} {fraction:g} of {samples} samples leaves nothing to {purpose}")
    # Seeded apart from the noise, which may be drawn with the same number: the two must not depend on each other.
    generator = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([config["seed"], 1])))
    order = generator.permutation(samples)
    return np.sort(order[:count]), np.sort(order[count:])


def _validation(
    config: Config, dataset: Dataset, labels: _NoisyLabels, held_out: np.ndarray, inputs: torch.Tensor
) -> EvalData | None:
    if not len(held_out):
        return _eval_data(dataset.val_inputs, dataset.val_labels, dataset)
    kind = config["val_labels"]
    chosen = labels.clean if kind == "clean" else labels.noisy
    if chosen is None:
        raise ConfigError(f"{config.label('val_labels')} clean needs --clean-labels, or a clean column in --labels")
    keep_rate = 1.0 - config["forget_rate"] if kind == "small-loss" else 1.0
    return EvalData(_rows(inputs, held_out), torch.from_numpy(chosen[held_out]), dataset.input_scale, keep_rate)


def _eval_data(inputs: np.ndarray | None, labels: np.ndarray | None, dataset: Dataset) -> EvalData | None:
    if inputs is None or labels is None:
        return None
    return EvalData(torch.from_numpy(inputs), torch.from_numpy(labels), dataset.input_scale)


def _rows(inputs: torch.Tensor, ids: np.ndarray) -> torch.Tensor:
    """The samples with these ids; the array itself, not a copy, where that is all of them."""
    return inputs if len(ids) == len(inputs) else inputs[torch.from_numpy(ids)]


def _decide_forget_rate(config: Config, expected: float | None, realised: float | None) -> None:
    """τ where none was given: what the noise is expected to be, else what it is measured to be."""
    if config.given("forget_rate"):
        return
    if not METHODS[config["method"]].selects:
        config.decide("forget_rate", 0.0, reason=f"{config['method']} trains on everything")
    elif expected is not None:
        config.decide("forget_rate", expected, reason="the share of wrong labels to expect from the noise")
    elif realised is not None:
        config.decide("forget_rate", realised, reason="the share of labels that differ from the clean ones")
    else:
        raise ConfigError(
            f"--forget-rate is required with {config.label('labels')} where the clean labels are unknown: the share of "
            "wrong labels that you expect, in [0, 1)"
        )
