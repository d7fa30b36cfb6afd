"""What `jocor-fast train` says before it trains: what is about to be done, and what speaks against it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich.console import Console

from jocor_fast.config.options import OPTIONS, method_options
from jocor_fast.config.resolve import Config
from jocor_fast.config.task import Task
from jocor_fast.data.catalogue import entry_of
from jocor_fast.data.images.preprocessing import Preprocessing
from jocor_fast.data.samples import input_warnings
from jocor_fast.engine.plan import unfinished_ramp
from jocor_fast.engine.processes import Processes
from jocor_fast.methods import METHODS, uses_forget_rate
from jocor_fast.report.screen import counted, say_subjects
from jocor_fast.report.tables import percent
from jocor_fast.schedules import has_decay_start, planned_lr_factor, steps_per_epoch, trained_epochs

# T_k counts epochs of some 400 steps; far shorter ramps were measured to lose to plain training.
SHORT_RAMP_STEPS = 200
CLASSES_SHOWN = 20
RATES_SHOWN = 4
OPTION_NAMES = {"co_lambda": "λ", "warmup_epochs": "warm-up"}
# τ is "under" the realised rate only beyond this: the draw itself strays from its nominal rate by chance.
RATE_TOLERANCE = 0.005


def print_heading(
    config: Config, task: Task, device: torch.device, processes: Processes, batch: int, console: Console
) -> None:
    """What is about to be done, a line a subject; values that nobody asked for with their source and reason."""
    samples, recipe = len(task.train.labels), config["recipe"]
    epochs, steps = trained_epochs(config["epochs"], recipe), steps_per_epoch(samples, batch, recipe)
    method = METHODS[config["method"]]
    lines = {"data": _data_text(task), "noise": _noise_text(config, task)}
    if task.dataset.label_table is not None:
        lines["classes"] = _classes_text(task.dataset.label_table)
    lines["method"] = f"{METHODS[config['method']].title}, recipe {recipe}, seed {config['seed']}"
    if method.selects:
        lines["τ"] = (
            f"{config['forget_rate']:.4g} from epoch {config['ramp_epochs']} on ({config.origin('forget_rate')})"
        )
    lines |= {OPTION_NAMES.get(name, name): f"{config[name]:g} ({config.origin(name)})" for name in method.options}
    networks = f"{method.num_networks} × {config['model']}" if method.num_networks > 1 else config["model"]
    lines["network"] = f"{networks} on {device}, weights {_weights_text(config)}"
    if task.dataset.files is not None:
        lines["images"] = _images_text(config, task.dataset.files.preprocessing)
    lines["batch"] = f"{config['batch_size']} ({config.origin('batch_size')})"
    if processes.count > 1:
        lines["batch"] += f", of {batch} in all: {processes.count} processes have {batch // processes.count} rows each"
        if method.selects:
            whole = config["selection_scope"] == "global"
            lines["selects"] = "all processes together" if whole else "each process among its own rows"
            lines["selects"] += f" ({config.origin('selection_scope')})"
    lines["training"] = (
        f"{counted(epochs, 'epoch')} of {counted(steps, 'step')} ({config.origin('epochs')}), {config['optimizer']}, "
        f"learning rate {_rate_text(config)}"
    )
    if len(method.stages) > 1:
        lines["training"] += f", in {len(method.stages)} stages: {'; '.join(method.stages)}"
    lines["output"] = config["output"]
    say_subjects(console, lines)


def warnings_of(config: Config, task: Task, processes: Processes, batch: int) -> list[str]:
    """What a run with these settings, of `batch` rows in all processes, is to be warned of, a sentence each."""
    found = (
        _one_class_warning(task),
        *input_warnings(task.dataset.name, task.train.inputs),
        _forget_rate_warning(config, task),
        _ramp_warning(config, task, batch),
        _idle_warning(config, processes),
        *_data_warnings(config),
        _decay_start_warning(config),
    )
    return [warning for warning in found if warning is not None]


def _rate_text(config: Config) -> str:
    if has_decay_start(config["lr_plan"]):
        return f"{config['lr']:g} falling after epoch {config['decay_start']} ({config.origin('decay_start')})"
    plan = {name: config[name] for name in ("lr_plan", "epochs", "decay_start", "recipe")}
    epochs = range(1, trained_epochs(config["epochs"], config["recipe"]) + 1)
    rates = list(dict.fromkeys(config["lr"] * planned_lr_factor(epoch=epoch, **plan) for epoch in epochs))
    if len(rates) > RATES_SHOWN:
        return f"{rates[0]:g} to {rates[-1]:g} by plan {config['lr_plan']} ({config.origin('lr_plan')})"
    return f"{', '.join(f'{rate:g}' for rate in rates)} in turn ({config.origin('lr_plan')})"


def _weights_text(config: Config) -> str:
    if config["pretrained"] is None:
        return config.reasons.get("pretrained", "drawn at random")
    return f"from {config['pretrained']}"


def _images_text(config: Config, preprocessing: Preprocessing) -> str:
    """How files become inputs, and what reads them."""
    size, side = preprocessing.resize, preprocessing.crop
    resize = f"short side {size}" if isinstance(size, int) else f"resized to {size[0]}×{size[1]}"
    crop = "the centre" if config["augment"] == "none" else "a random part, mirrored at even odds (centre to evaluate)"
    normalisation = f"{config['normalisation']} normalisation ({config.origin('normalisation')})"
    reader = f"read by {config['loader']} ({config.origin('loader')})"
    return f"{resize}, cropped to {crop} of {side}×{side}, {normalisation}, {reader}"


def _data_text(task: Task) -> str:
    parts = [f"{len(task.train.labels):,} training"]
    if task.val is not None:
        parts.append(f"{len(task.val.labels):,} validation")
    parts.append(f"{len(task.test.labels):,} test" if task.test is not None else "no test")
    return f"{task.dataset.name}: {', '.join(parts)} samples, {_classes_count(task.dataset.num_classes)}"


def _classes_count(number: int) -> str:
    return "1 class" if number == 1 else f"{number} classes"


def _noise_text(config: Config, task: Task) -> str:
    rate = task.realised_noise_rate
    realised = (
        f"{percent(rate)} % of the labels are wrong" if rate is not None else "the share of wrong labels is unknown"
    )
    if config["labels"] is not None:
        return f"labels from {config['labels']}: {realised}"
    if config["noise_matrix"] is not None:
        return f"matrix from {config['noise_matrix']}, draw {config['noise_seed']}: {realised}"
    if config["noise"] is None or (config["noise"] == "clean" and rate is None):
        return f"none added, labels as {config['dataset']} has them: {realised}"
    if config["noise"] == "clean":
        return "none added (--noise-rate 0.5 would flip half of the labels)"
    return f"{config['noise']}, nominal {percent(config['noise_rate'])} %, draw {config['noise_seed']}: {realised}"


def _classes_text(label_table: Sequence[str]) -> str:
    shown = ", ".join(f"{number} = {label}" for number, label in enumerate(label_table[:CLASSES_SHOWN]))
    more = len(label_table) - CLASSES_SHOWN
    return f"{shown}, and {more} more in config.json" if more > 0 else shown


def _forget_rate_warning(config: Config, task: Task) -> str | None:
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


def _ramp_warning(config: Config, task: Task, batch: int) -> str | None:
    """A sentence where selection never is at full strength, or is before the networks know what to select by."""
    unfinished = unfinished_ramp(config.train_settings())
    if unfinished is not None:
        return unfinished
    ramp, selects = config["ramp_epochs"], METHODS[config["method"]].selects and config["forget_rate"] > 0
    steps = ramp * steps_per_epoch(len(task.train.labels), batch, config["recipe"])
    if not selects or not 0 < steps < SHORT_RAMP_STEPS:
        return None
    return (
        f"the ramp of {counted(ramp, 'epoch')} is only {counted(steps, 'step')} long, and a selection by loss so early "
        "can do harm: a smaller --batch-size or a larger --ramp-epochs helps"
    )


def _one_class_warning(task: Task) -> str | None:
    """A sentence where there is nothing to tell apart, as when the class folders lie a folder deeper than was said."""
    dataset = task.dataset
    if dataset.num_classes > 1:
        return None
    name = f", {dataset.class_names[0]!r}" if dataset.files is not None else ""
    return f"{dataset.name} has one class only{name}: there is nothing to learn"


def _idle_warning(config: Config, processes: Processes) -> str | None:
    """A sentence where flags were given that the method has no use for (in a file they may serve other methods)."""
    scopes = [OPTIONS[name].flag for name in ("selection_scope", "batch_scope") if config.sources[name] == "flag"]
    if scopes and processes.count == 1:
        return f"{' and '.join(scopes)} change{'s' * (len(scopes) == 1)} nothing: there is one process"
    method = METHODS[config["method"]]
    others = [name for name in ("co_lambda", *method_options()) if name not in method.options]
    unused = [*others, *["forget_rate"] * (not uses_forget_rate(config["method"], config["val_labels"]))]
    unused += ["ramp_epochs"] * (not method.selects)
    idle = [name for name in unused if config.sources[name] == "flag"]
    if not idle:
        return None
    flags = " and ".join(OPTIONS[name].flag for name in idle)
    of_others = [OPTION_NAMES.get(name, name) for name in idle if name in others]
    reason = f"has no {' and '.join(of_others)}" if len(of_others) == len(idle) else "does not select by loss"
    return f"{flags} change{'s' * (len(idle) == 1)} nothing: {config['method']} {reason}"


def _data_warnings(config: Config) -> list[str]:
    """A sentence for each flag on the data that changes nothing beside the others."""

    def asked(name: str) -> bool:
        return config.sources[name] == "flag"

    found = []
    if asked("noise_seed") and config["noise"] in (None, "clean") and config["noise_matrix"] is None:
        found.append("--noise-seed changes nothing: no noise is drawn (--noise-rate 0.5 would flip half of the labels)")
    entry = entry_of(config["dataset"])
    if asked("data_root") and entry is not None and entry.find is None:
        found.append(f"--data-root changes nothing: {config['dataset']} is not looked for in it")
    if asked("val_labels") and config["val_fraction"] == 0:
        found.append("--val-labels changes nothing: --val-fraction is 0, so that nothing is held out")
    return found


def _decay_start_warning(config: Config) -> str | None:
    """A sentence where a start of the decay is given and the plan has none; with recipe published β1 changes there."""
    if config.sources["decay_start"] != "flag" or has_decay_start(config["lr_plan"]) or config["recipe"] == "published":
        return None
    return f"--decay-start changes nothing: --lr-plan {config['lr_plan']} says when the learning rate falls"
