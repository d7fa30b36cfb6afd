"""What `jocor-fast train` prints before it trains: what is about to be done."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich.console import Console

from jocor_fast._extension import why_plain
from jocor_fast.config.resolve import Config
from jocor_fast.config.task import Task
from jocor_fast.data.images.preprocessing import Preprocessing
from jocor_fast.engine.plan import epoch_samples
from jocor_fast.engine.processes import Processes
from jocor_fast.engine.settings import SHOWN_AS
from jocor_fast.methods import METHODS
from jocor_fast.report.screen import counted, say_subjects
from jocor_fast.report.tables import percent
from jocor_fast.schedules import has_decay_start, planned_lr_factor, steps_per_epoch, trained_epochs

CLASSES_SHOWN = 20
RATES_SHOWN = 4


def print_heading(
    config: Config, task: Task, device: torch.device, processes: Processes, batch: int, console: Console
) -> None:
    """What is about to be done, a line a subject; defaults with their source and reason."""
    training, method = config.training, METHODS[config.training.method]
    epochs = trained_epochs(training.epochs, training.recipe)
    samples = epoch_samples(training, len(task.train.labels))
    steps = steps_per_epoch(samples, batch, training.recipe, training.max_batches)
    lines = {"data": _data_text(task), "noise": _noise_text(config, task)}
    if task.dataset.label_table is not None:
        lines["classes"] = _classes_text(task.dataset.label_table)
    lines["method"] = f"{method.title}, recipe {training.recipe}, seed {training.seed}"
    if method.selects:
        rate = training.forget_rate
        rate = "estimated in training," if isinstance(rate, str) else f"{rate:.4g}"
        lines["τ"] = f"{rate} from epoch {max(1, training.ramp_epochs)} on ({config.origin('forget_rate')})"
    lines |= {SHOWN_AS.get(name, name): f"{config.value(name):g} ({config.origin(name)})" for name in method.options}
    named = ("class_weights", "label_smoothing", "selection_per_class", "balanced_ramp")
    given = {name: config.value(name) for name in named}
    parts = [(name.replace("_", " "), "" if value is True else f" {value}") for name, value in given.items() if value]
    if parts:
        lines["loss"] = ", ".join(name + value for name, value in parts)
    networks = f"{method.num_networks} × {config.model}" if method.num_networks > 1 else config.model
    drawn = config.reasons.get("pretrained", "drawn at random")
    weights = drawn if config.pretrained is None else f"from {config.pretrained}"
    lines["network"] = f"{networks} on {device}, weights {weights}"
    if task.dataset.files is not None:
        lines["images"] = _images_text(config, task.dataset.files.preprocessing)
    if device.type == "cpu":
        lines["threads"] = _threads_text(config, processes)
    lines["kernels"] = "compiled" if why_plain(device.type) is None else "none compiled: losses in plain PyTorch"
    lines["batch"] = f"{training.batch_size} ({config.origin('batch_size')})"
    if processes.count > 1:
        lines["batch"] += f", of {batch} in all: {processes.count} processes have {batch // processes.count} rows each"
        if method.selects:
            whole = training.selection_scope == "global"
            lines["selects"] = "all processes together" if whole else "each process among its own rows"
            lines["selects"] += f" ({config.origin('selection_scope')})"
    lines["training"] = (
        f"{counted(epochs, 'epoch')} of {counted(steps, 'step')} ({config.origin('epochs')}), {training.optimizer}, "
        f"learning rate {_rate_text(config)}"
    )
    if len(method.stages) > 1:
        lines["training"] += f", in {len(method.stages)} stages: {'; '.join(method.stages)}"
    lines["output"] = config.output
    say_subjects(console, lines)


def _threads_text(config: Config, processes: Processes) -> str:
    if config.training.threads is not None:
        return f"{config.training.threads} ({config.origin('threads')})"
    number = torch.get_num_threads()
    either = number > 1 and processes.count == 1
    return f"{number}, or one for a step where that is faster and changes no bit" if either else str(number)


def _rate_text(config: Config) -> str:
    training = config.training
    if has_decay_start(training.lr_plan):
        start = training.decay_start
        since = f"after epoch {start}" if start else "from the first epoch on"
        return f"{training.lr:g} falling {since} ({config.origin('decay_start')})"
    plan = {name: config.value(name) for name in ("lr_plan", "epochs", "decay_start", "recipe")}
    epochs = range(1, trained_epochs(training.epochs, training.recipe) + 1)
    rates = list(dict.fromkeys(training.lr * planned_lr_factor(epoch=epoch, **plan) for epoch in epochs))
    if len(rates) > RATES_SHOWN:
        return f"{rates[0]:g} to {rates[-1]:g} by plan {training.lr_plan} ({config.origin('lr_plan')})"
    return f"{', '.join(f'{rate:g}' for rate in rates)} in turn ({config.origin('lr_plan')})"


def _images_text(config: Config, preprocessing: Preprocessing) -> str:
    """How files become inputs, and what reads them."""
    size, side = preprocessing.resize, preprocessing.crop
    resize = f"short side {size}" if isinstance(size, int) else f"resized to {size[0]}×{size[1]}"
    random = config.training.augment != "none"
    crop = "a random part, mirrored at even odds (centre to evaluate)" if random else "the centre"
    normalisation = f"{config.normalisation} normalisation ({config.origin('normalisation')})"
    reader = f"read by {config.loader} ({config.origin('loader')})"
    return f"{resize}, cropped to {crop} of {side}×{side}, {normalisation}, {reader}"


def _data_text(task: Task) -> str:
    parts = [f"{len(task.train.labels):,} training"]
    if task.val is not None:
        parts.append(f"{len(task.val.labels):,} validation")
    parts.append(f"{len(task.test.labels):,} test" if task.test is not None else "no test")
    classes = "1 class" if task.dataset.num_classes == 1 else f"{task.dataset.num_classes} classes"
    return f"{task.dataset.name}: {', '.join(parts)} samples, {classes}"


def _noise_text(config: Config, task: Task) -> str:
    rate = task.realised_noise_rate
    realised = (
        f"{percent(rate)} % of the labels are wrong" if rate is not None else "the share of wrong labels is unknown"
    )
    if config.labels is not None:
        return f"labels from {config.labels}: {realised}"
    if config.noise_matrix is not None:
        return f"matrix from {config.noise_matrix}, draw {config.noise_seed}: {realised}"
    if config.noise is None or (config.noise == "clean" and (rate is None or config.clean_labels is not None)):
        return f"none added, labels as {config.dataset} has them: {realised}"
    if config.noise == "clean":
        return "none added (--noise-rate 0.5 would flip half of the labels)"
    return f"{config.noise}, nominal {percent(config.noise_rate)} %, draw {config.noise_seed}: {realised}"


def _classes_text(label_table: Sequence[str]) -> str:
    shown = ", ".join(f"{number} = {label}" for number, label in enumerate(label_table[:CLASSES_SHOWN]))
    more = len(label_table) - CLASSES_SHOWN
    return f"{shown}, and {more} more in config.json" if more > 0 else shown
