"""What a run learns and is measured on: a data set, its noisy labels, the validation split, and the rate to forget.

The order is fixed: noise is drawn (or labels are read) for the whole training set, in its own order; only then is a
part held out. So a split changes no label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from jocor_fast.config.options import AUTO
from jocor_fast.config.resolve import Config
from jocor_fast.data.arrays import ARRAY_FORMS, read_array
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.data.dataset import Dataset
from jocor_fast.data.images.bad_files import BadFiles
from jocor_fast.data.images.source import ImageFiles, choose_loader
from jocor_fast.data.labels import read_labels
from jocor_fast.data.samples import Samples, split_ids
from jocor_fast.engine.settings import ADAPTIVE, BALANCED
from jocor_fast.errors import ArgumentValueError, ConfigError
from jocor_fast.files.names import CHECKPOINT, PREVIOUS_CHECKPOINT
from jocor_fast.machine import resolve_device
from jocor_fast.methods import uses_forget_rate
from jocor_fast.models.networks import build_model
from jocor_fast.models.pretrained import read_weights
from jocor_fast.noise.drawing import corrupt, expected_rate, realised_rate
from jocor_fast.noise.matrices import read_transition, transition_matrix
from jocor_fast.report.tables import percent


@dataclass(frozen=True)
class Task:
    """The data and networks of a run, and what is known about the noise.

    Attributes:
        nominal_noise_rate: the rate that was asked for; None where the labels or the matrix come from a file.
        expected_noise_rate: what the transition matrix makes of the clean labels; None without a matrix.
        realised_noise_rate: share of wrong labels among those trained on; None where the truth is unknown.
        given_labels: int64 [N], the labels of the whole training set, in its order: noisy, as drawn or read.
        true_labels: int64 [N], the true ones where they are known, else None.
        train_ids: which of those N samples are trained on; the others are held out.
    """

    dataset: Dataset
    train: Samples
    test: Samples | None
    val: Samples | None
    build_network: Callable[[], nn.Module]
    nominal_noise_rate: float | None
    expected_noise_rate: float | None
    realised_noise_rate: float | None
    given_labels: np.ndarray
    true_labels: np.ndarray | None
    train_ids: np.ndarray


@dataclass(frozen=True)
class _NoisyLabels:
    noisy: np.ndarray
    clean: np.ndarray | None
    expected_rate: float | None
    reason: str = "the share of wrong labels to expect from the noise"


def build_task(config: Config, announce: Callable[[str], None] | None = None) -> Task:
    """Load the data, make or read the noisy labels and hold out the validation part.

    What depends on the data (`model`, `forget_rate`) is decided in `config`. `announce` is called with a sentence
    before each download.

    Raises:
        ConfigError: an option has a wrong value, or does not go with this data set.
        DataError: a file is missing or broken.
    """
    dataset = load_data(config, announce)
    model = config.model
    assert model is not None
    labels = _noisy_labels(config, dataset)
    kept, held_out = _split(config, dataset)
    clean = labels.clean[kept] if labels.clean is not None else None
    realised = realised_rate(clean, labels.noisy[kept]) if clean is not None else None
    _decide_forget_rate(config, labels, realised)
    _decide_class_weights(config, dataset.num_classes)
    weights, output = None, Path(config.output)
    goes_on = config.resume and any((output / name).exists() for name in (CHECKPOINT, PREVIOUS_CHECKPOINT))
    if config.pretrained is not None and not goes_on:  # where it does, the file may be gone
        with config.naming("pretrained", "model"):
            weights = read_weights(config.pretrained, model)
    return Task(
        dataset=dataset,
        train=_labelled(dataset.train, labels.noisy, labels.clean).subset(kept),
        test=None if config.no_test else dataset.test,
        val=_validation(config, dataset, labels, held_out),
        build_network=lambda: build_model(model, dataset.input_shape, dataset.num_classes, weights=weights),
        nominal_noise_rate=None if labels.clean is None else config.noise_rate,
        expected_noise_rate=labels.expected_rate,
        realised_noise_rate=realised,
        given_labels=labels.noisy,
        true_labels=labels.clean,
        train_ids=kept,
    )


def validation_text(config: Config, task: Task) -> str:
    """Return what a task is validated on, for people."""
    assert task.val is not None
    count = f"{len(task.val.labels):,}"
    if config.val_fraction == 0:
        return f"the {count} validation samples of {task.dataset.name}"
    if config.val_labels == "small-loss":
        share = percent(task.val.keep_rate)
        return f"{count} samples held out, of them the {share} % with the smallest loss, by their noisy labels"
    return f"{count} samples held out, by their {config.val_labels} labels"


def load_data(config: Config, announce: Callable[[str], None] | None = None) -> Dataset:
    """Load the data set, image files as a run reads them; `model` and `loader` are decided in `config`.

    Raises:
        ConfigError, DataError: as for `build_task`.
    """
    root = Path(config.data_root) if config.data_root is not None else None
    with config.naming("dataset", "data_root"):
        dataset = load_dataset(config.dataset, root, announce=announce)
    if dataset.files is not None:
        dataset = _as_read(config, dataset, dataset.files)
    if config.model is None:
        config.decide("model", config.entry.model)
    return dataset


def _as_read(config: Config, dataset: Dataset, files: ImageFiles) -> Dataset:
    """Return a data set of image files as a run reads them; by which loader is decided here."""
    assert config.loader is not None
    assert config.image_size is not None
    assert config.normalisation is not None
    with config.naming("loader", "device"):
        loader, reason = choose_loader(config.loader, resolve_device(config.training.device))
    if config.loader == "auto":
        config.decide("loader", loader, reason=reason)
    with config.naming("image_size"):
        preprocessing = files.preprocessing.at_size(config.image_size)
    preprocessing = replace(
        preprocessing, augment=config.training.augment == "crop-flip", normalisation=config.normalisation
    )
    read: dict[str, Any] = {"preprocessing": preprocessing, "loader": loader, "seed": config.training.seed}
    read["bad_files"] = BadFiles(strict=config.strict)

    train, test, val = (
        replace(part, inputs=replace(part.inputs, **read))
        if part is not None and isinstance(part.inputs, ImageFiles)
        else None
        for part in (dataset.train, dataset.test, dataset.val)
    )
    assert train is not None
    return replace(dataset, train=train, test=test, val=val)


def _labelled(samples: Samples, labels: np.ndarray, clean: np.ndarray | None) -> Samples:
    return replace(
        samples,
        labels=torch.from_numpy(labels),
        clean_labels=None if clean is None else torch.from_numpy(clean),
    )


def _noisy_labels(config: Config, dataset: Dataset) -> _NoisyLabels:
    """The labels to train on, and the true ones where they are known.

    What a user's own data are labelled is only what was given. The truth are the labels of a named benchmark, those
    that the user calls clean, or those that noise is drawn on.
    """
    own, num_classes, table = dataset.train.labels.numpy(), dataset.num_classes, dataset.label_table
    column = None if dataset.train.clean_labels is None else dataset.train.clean_labels.numpy()
    if column is not None and (config.labels_are_clean or config.clean_labels is not None):
        name = "labels_are_clean" if config.labels_are_clean else "clean_labels"
        raise ConfigError(f"{config.label(name)} and the clean labels of {dataset.name} exclude each other")
    own_are_clean = config.labels_are_clean or config.entry.labels == "true"
    if config.labels is not None or config.clean_labels is not None:
        with config.naming("labels", "clean_labels"):
            labels = read_labels(
                config.labels,
                own if column is None else column,
                num_classes,
                clean_spec=config.clean_labels,
                label_table=table,
                own_are_clean=own_are_clean or column is not None,
            )
        clean = own if labels.clean is None and config.labels_are_clean else labels.clean
        return _NoisyLabels(labels.noisy, clean, None)
    if config.noise_matrix is not None:
        transition = read_transition(config.noise_matrix, num_classes)
    elif config.noise is None or (config.noise == "clean" and not own_are_clean):
        reason = "the share of wrong labels among the clean training images that have a noisy label too"
        return _NoisyLabels(own, own if own_are_clean else column, dataset.noise_estimate, reason)
    else:
        assert config.noise_rate is not None
        with config.naming(kind="noise", rate="noise_rate"):
            transition = transition_matrix(config.noise, num_classes, config.noise_rate, dataset.name)
    clean = own if column is None else column
    assert config.noise_seed is not None
    with config.naming(seed="noise_seed"):
        noisy = corrupt(clean, transition, seed=config.noise_seed)
    return _NoisyLabels(noisy, clean, expected_rate(transition, clean))


def _split(config: Config, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Ids to train on and ids held out for validation, both in data-set order."""
    samples, fraction = len(dataset.train), config.val_fraction
    if fraction == 0:
        return np.arange(samples), np.arange(0)
    flag = config.label("val_fraction")
    if dataset.val is not None:
        raise ConfigError(f"{flag} must be 0 for {dataset.name}, which comes with a validation set of its own")
    count = round(fraction * samples)
    if not 1 <= count < samples:
        purpose = "validate on" if count < 1 else "train on"
        raise ConfigError(f"{flag} {fraction:g} of {samples} samples leaves nothing to {purpose}")
    return split_ids(samples, count, config.training.seed)


def _validation(config: Config, dataset: Dataset, labels: _NoisyLabels, held_out: np.ndarray) -> Samples | None:
    if not len(held_out):
        return dataset.val
    kind = config.val_labels
    chosen = labels.clean if kind == "clean" else labels.noisy
    if chosen is None:
        raise ConfigError(
            f"{config.label('val_labels')} clean needs --clean-labels, "
            "--labels-are-clean, or a clean column in --labels"
        )
    rate = config.forget_rate
    if kind == "small-loss" and not isinstance(rate, float):
        raise ConfigError(
            f"{config.label('val_labels')} small-loss needs a number for {config.label('forget_rate')}: "
            "jocor-fast estimate-noise finds it"
        )
    keep_rate = 1.0 - rate if kind == "small-loss" and isinstance(rate, float) else 1.0
    return replace(_labelled(dataset.train, chosen, None).subset(held_out), keep_rate=keep_rate)


def _decide_class_weights(config: Config, num_classes: int) -> None:
    """Give the engine the class weights, of a file its numbers."""
    weights: Any = config.class_weights
    with config.naming("class_weights"):
        if weights not in (None, BALANCED):
            weights = np.asarray(read_array(weights, "class_weights", f"{BALANCED}, {ARRAY_FORMS}"))
            if weights.shape != (num_classes,) or weights.dtype.kind not in "iuf":
                raise ArgumentValueError(
                    "class_weights",
                    f"must hold a number for each of the {num_classes} classes, got {weights.dtype} {weights.shape}",
                )
        config.training = replace(config.training, class_weights=weights)


def _decide_forget_rate(config: Config, labels: _NoisyLabels, realised: float | None) -> None:
    """τ where none was given: what the noise is expected to be, else what it is measured to be."""
    expected, used = labels.expected_rate, uses_forget_rate(config.training.method, config.val_labels)
    if config.forget_rate == AUTO and used and config.labels_are_clean and not realised:
        reason = f"no label is wrong, by {config.label('labels_are_clean')}"
        config.decide("forget_rate", 0.0, config.sources["forget_rate"], reason)
    elif config.given("forget_rate") and (used or config.forget_rate not in (AUTO, ADAPTIVE)):
        return
    elif not used:
        reason = f"{config.training.method} does not select by loss"
        config.decide("forget_rate", 0.0, config.sources["forget_rate"], reason)
    elif expected is not None:
        config.decide("forget_rate", expected, reason=labels.reason)
    elif realised is not None:
        config.decide("forget_rate", realised, reason="the share of labels that differ from the clean ones")
    else:
        where = "with " + config.label("labels") if config.labels is not None else f"for {config.dataset}"
        raise ConfigError(
            f"--forget-rate is required {where} where the clean labels are unknown: the share of wrong labels that you "
            "expect, in [0, 1), auto to have it estimated first, or adaptive to have it estimated in training; "
            "--labels-are-clean says that none is wrong"
        )
